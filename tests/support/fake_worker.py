"""A stand-in for shard_worker: listens, says hello, answers PING, and misbehaves on cue.

Cues are files in `DATA_DIR/cues`, read at start unless said otherwise; N is the shard:

- `crash-N`: die before being ready. `fail-N`: report the file's JSON as a failure, then exit 1.
- `hold-N`: stay at 40 % of the replay for as long as the file is there.
- `stuck-N`: read when told to drain, and then do not.

Every step is written to `DATA_DIR/journal`, so that tests can see the order in which things happened.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys

import trio

from shared.io.child_channel import Boot, ChildChannel, socket_path
from shared.session import LinkState, ServerSession
from shared.wire import Answer, Op


class Journal:
    def __init__(self, data_dir: str, name: str) -> None:
        self._fd = os.open(
            os.path.join(data_dir, "journal"), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        self._name = name

    def write(self, step: str, **fields: object) -> None:
        line = json.dumps({"who": self._name, "step": step, "pid": os.getpid(), **fields})
        os.write(self._fd, line.encode() + b"\n")


def cue_text(data_dir: str, name: str) -> str | None:
    try:
        with open(os.path.join(data_dir, "cues", name)) as file:
            return file.read()
    except FileNotFoundError:
        return None


class FakeWorker:
    def __init__(self, channel: ChildChannel, boot: Boot) -> None:
        assert boot.shard is not None
        self._channel = channel
        self._boot = boot
        self._shard = boot.shard
        self._data_dir = boot.settings.data_dir
        self._journal = Journal(self._data_dir, f"shard-{boot.shard}")

    def cue(self, name: str) -> str | None:
        return cue_text(self._data_dir, f"{name}-{self._shard}")

    async def run(self) -> int:
        keys = len(self._boot.settings.key_ring())
        secret_in_env = "TOPICS_API_KEYS" in os.environ
        self._journal.write("started", keys=keys, secret_in_env=secret_in_env)
        if self.cue("crash") is not None:
            os._exit(7)
        failure = self.cue("fail")
        if failure is not None:
            self._channel.report("failed", **json.loads(failure))
            return 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._channel.heartbeat)
            nursery.start_soon(self.serve)
            await self._channel.closed()
            self._channel.report("draining")
            self._journal.write("draining")
            if self.cue("stuck") is not None:
                await trio.sleep_forever()
            nursery.cancel_scope.cancel()
        self._journal.write("gone")
        return 0

    async def serve(self) -> None:
        while self.cue("hold") is not None:
            self._channel.report("replaying", progress=0.4)
            await trio.sleep(0.01)
        path = socket_path(self._boot.socket_dir, self._shard)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        with trio.socket.socket(trio.socket.AF_UNIX) as listener:
            await listener.bind(path)
            listener.listen()
            self._channel.report("ready")
            streams = trio.SocketListener(listener)
            await trio.serve_listeners(self.talk, [streams])

    async def talk(self, stream: trio.SocketStream) -> None:
        session = ServerSession(shard=self._shard, shards=self._boot.shards, credits=64)
        # A gateway that leaves while it is answered costs this link only, as with a real worker.
        with contextlib.suppress(trio.BrokenResourceError):
            await self.answer_all(session, stream)

    async def answer_all(self, session: ServerSession, stream: trio.SocketStream) -> None:
        async with stream:
            while data := await stream.receive_some():
                requests = session.receive(data)
                if session.state is LinkState.HELLO and session.client is not None:
                    await stream.send_all(session.accept(topics=0, bytes=0))
                # A gateway that drains cancels what waits, which nobody answers.
                answers = [Answer(request.id, 200, b"") for request in requests if request.op != Op.CANCEL]
                if answers:
                    await stream.send_all(session.encode(answers))


if __name__ == "__main__":
    sys.exit(trio.run(FakeWorker(*ChildChannel.open(sys.argv)).run))
