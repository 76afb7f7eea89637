"""The plans of all shards of a running server, taken at one moment.

Every worker is asked to hold; when all of them stand still, their log positions form one consistent state, and they are
released. The links stay open while the files are copied: they keep the files in place.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from shard_worker.backup_pins import ShardPlan
from shared.cbor_body import as_bool, load_map
from shared.format_errors import BadBytes
from shared.session import ClientSession, LinkState
from shared.version import VERSION
from shared.wire import Answer, LinkError, Op
from topicsd.backup.refusal import BackupRefused
from topicsd.exits import Exit

_TIMEOUT_S = 60.0
_RECV_BYTES = 1 << 16
_ATTEMPTS = 5


class WorkerLink:
    """A blocking link to one worker, for one request at a time."""

    def __init__(self, path: str, shard: int) -> None:
        self._shard = shard
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.settimeout(_TIMEOUT_S)
        self._session: ClientSession[None] = ClientSession(role="cli", version=VERSION, max_queued=1)
        self._answers: list[Answer] = []
        try:
            self._sock.connect(path)
            self._sock.sendall(self._session.hello())
            while self._session.state is LinkState.HELLO:
                self._receive()
        except (OSError, LinkError) as err:
            self.close()
            raise self._refused(f"cannot be reached: {err}") from err

    def _refused(self, what: str) -> BackupRefused:
        return BackupRefused(
            f"shard {self._shard} {what}; see /v0/ready, and run the backup again", Exit.UNCLEAN_STOP
        )

    def send(self, op: int) -> None:
        try:
            self._session.submit(op, "", b"", None, None)
            self._sock.sendall(self._session.take_outgoing())
        except OSError as err:
            raise self._refused(f"went away: {err}") from err

    def answer(self) -> bytes:
        """The body of the answer to what was sent last."""
        try:
            while not self._answers:
                self._receive()
        except (OSError, LinkError) as err:
            raise self._refused(f"went away: {err}") from err
        answer = self._answers.pop()
        self._session.settle(answer.id)
        if answer.status >= 400:
            raise self._refused(f"refuses: {answer.body.decode(errors='replace')}")
        return answer.body

    def _receive(self) -> None:
        data = self._sock.recv(_RECV_BYTES)
        if not data:
            raise ConnectionResetError("the link was closed")
        self._answers += [message for message in self._session.receive(data) if isinstance(message, Answer)]

    def close(self) -> None:
        self._sock.close()


@contextmanager
def online_plans(
    paths: Sequence[str], wall_ms: Callable[[], int], attempts: int = _ATTEMPTS
) -> Iterator[tuple[list[ShardPlan], int]]:
    """The plans, synced and pinned while the context lasts, and the moment they are of. `paths`: of the sockets."""
    for _ in range(attempts):
        with ExitStack() as held:
            links = [WorkerLink(path, shard) for shard, path in enumerate(paths)]
            for link in links:
                held.callback(link.close)
            found = _hold_all(links, wall_ms)
            if found is not None:
                yield found
                return
    raise BackupRefused(
        "the shards could not be brought to stand still together: the machine is too busy; run the backup again",
        Exit.UNCLEAN_STOP,
    )


def _hold_all(links: Sequence[WorkerLink], wall_ms: Callable[[], int]) -> tuple[list[ShardPlan], int] | None:
    """None: a shard went on before all of them stood still."""
    for link in links:
        link.send(Op.BACKUP_HOLD)
    try:
        plans = [ShardPlan.decode(link.answer()) for link in links]
        moment_ms = wall_ms()
        for link in links:
            link.send(Op.BACKUP_RELEASE)
        unbroken = [load_map(link.answer()).need("unbroken", as_bool) for link in links]
    except BadBytes as err:
        raise BackupRefused(f"a worker answered what this release does not understand: {err}") from err
    return (plans, moment_ms) if all(unbroken) else None
