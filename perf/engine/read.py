"""Reads of 1000 records: what they cost the worker, next to a `sendfile` of the same bytes.

The floor sends as many bytes as the answer has from a log file into a Unix socket that another process empties, with
one `sendfile` call (more only if the socket's buffer is full). The time is CPU time of the calling thread, because
whoever waits for the other process is not working. An answer in extents holds no record bytes: the gateway
does the sending, so such a read can cost less than the floor.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from perf.report import Aim, Case, Round, Row, compare, interleave, summary, time_calls
from perf.shard_bench import BenchShard, CountingSink, bench_shard, write_bodies
from shard_worker.request import Request
from shard_worker.serve.link import Link
from shard_worker.serve.served_files import ServedFiles
from shared.session import ClientSession
from shared.wire import Answer, Op

RECORDS = 1000
_TOPIC_RECORDS = 20_000
_CALLS = 200
_INLINE = {"inline": True}
_HOT = "hot, batch 100"


def run(parent: str | None, rounds: int) -> tuple[list[Row], list[Aim]]:
    with bench_shard(parent, sealing=False) as hot, bench_shard(parent, sealing=False) as sealed:
        _fill(hot)
        _fill(sealed)
        sealed.seal_all()
        rows = []
        with drain() as sink:
            for name, case, size in _cases(hot, sealed):
                rows.append(_row(name, case, size, hot, sink, rounds))
    plain = next(row for row in rows if row["read"] == _HOT)
    return rows, [Aim(f"plain read of {RECORDS} hot records: µs of worker CPU", plain["cpu_us"], 50)]


def _row(name: str, case: Case, size: int, hot: BenchShard, sink: int, rounds: int) -> Row:
    file = min(hot.engine.wal.files.values(), key=lambda file: file.path)
    found = interleave({"floor": lambda: _sendfile_round(sink, file.fileno(), size), "ours": case}, rounds)
    ours, floor = summary(found["ours"]), summary(found["floor"])
    compared = compare(found["floor"], found["ours"])
    return {
        "read": name,
        "answer_bytes": size,
        "cpu_us": ours["cpu_us"],
        "floor_cpu_us": floor["cpu_us"],
        "cpu_ratio": compared["cpu_ratio"],
        "call": ours,
        "floor": floor,
    }


def _fill(shard: BenchShard) -> None:
    for batch in (1, 100, 1000):
        shard.fill(f"batch-{batch}", write_bodies(batch, 100), _TOPIC_RECORDS // batch)
    shard.fill("labelled", write_bodies(100, 100, labels=True), _TOPIC_RECORDS // 100)
    shard.engine.sync_now()


def _cases(hot: BenchShard, sealed: BenchShard) -> Iterator[tuple[str, Case, int]]:
    cache = sealed.shard.store.cache
    case = _case
    yield _HOT, *case(hot, "batch-100")
    yield "hot, batch 100, from the middle of a batch", *case(hot, "batch-100", shift=50)
    yield "hot, batch 100, through a link", *_link_case(hot)
    yield "hot, batch 100, inline", *case(hot, "batch-100", options=_INLINE)
    yield "hot, batch 1000", *case(hot, "batch-1000")
    yield "hot, batch 1 (inline: too many extents)", *case(hot, "batch-1")
    yield "hot, tag filter, 1 of 10 matches", *case(hot, "labelled", b',"match":["tag","Eq","t3"]', limit=100)
    yield "hot, node left out, 2 of 3 stay", *case(hot, "labelled", b',"node":"n1"', limit=666)
    yield "hot, with tags shown", *case(hot, "labelled", b',"include_tags":true')
    yield "sealed, blocks cached", *case(sealed, "batch-100")
    yield "sealed, caches empty", *case(sealed, "batch-100", prepare=lambda _: cache.drop(lambda key: True))


def _case(
    shard: BenchShard,
    topic: str,
    more: bytes = b"",
    *,
    shift: int = 0,
    limit: int = RECORDS,
    options: dict[str, object] | None = None,
    prepare: Callable[[object], object] | None = None,
) -> tuple[Case, int]:
    """Reads from 16 places of the topic in turns."""
    requests = [
        shard.request(Op.READ, topic, _diff(start + shift, limit, more), options)
        for start in range(0, 16 * RECORDS, RECORDS)
    ] * (2 if prepare else _CALLS // 16)

    def read(request: Request) -> None:
        shard.engine.submit(request)
        shard.engine.commit()

    def run() -> Round:
        return time_calls(read, requests, prepare=prepare)

    run()
    assert not shard.sink.failed, shard.sink.body
    return run, _answer_bytes(shard.sink)


def _link_case(shard: BenchShard) -> tuple[Case, int]:
    """The same read as a worker's whole turn. Descriptors of the files went over with the first answer."""
    link = WorkerLink(shard)
    turns = [[(Op.READ, "batch-100", _diff(start, RECORDS))] for start in range(0, 16_000, RECORDS)] * 8
    _, size = _case(shard, "batch-100")
    return lambda: time_calls(link.turn, turns, prepare=link.send), size


def _diff(from_seq: int, limit: int, more: bytes = b"") -> bytes:
    return b'{"from_seq":%d,"limit":%d%b}' % (from_seq, limit, more)


def _answer_bytes(sink: CountingSink) -> int:
    return len(sink.body) + len(sink.tail or b"") + sum(length for _, _, length in sink.extents or ())


# --- the link ---------------------------------------------------------------------------------------------


class WorkerLink:
    """Both ends of a link. `turn` is what a worker does with one frame of requests: receive, serve, send."""

    def __init__(self, shard: BenchShard) -> None:
        self._engine = shard.engine
        self._near, self._far = socket.socketpair()
        self._files = ServedFiles(shard.engine.wal)
        self._link = Link(self._near, self._files, shard=0, shards=1)
        self._client: ClientSession[None] = ClientSession(role="gateway", version="perf", max_queued=1)
        self._far.send(self._client.hello())
        self._link.receive(0, 0)
        self._client.receive(self._far.recv(1 << 16))

    def send(self, messages: Sequence[tuple[int, str, bytes]]) -> None:
        """The gateway's part: take the last answers in, send the next requests."""
        self._far.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while data := self._far.recv(1 << 20):
                for message in self._client.receive(data):
                    if isinstance(message, Answer):
                        assert message.status < 300, message.body
                        self._client.settle(message.id)
        self._far.setblocking(True)
        for op, topic, body in messages:
            self._client.submit(op, topic, body, None, None)
        self._far.sendall(self._client.take_outgoing())

    def turn(self, _: object) -> None:
        link = self._link
        for message in link.receive(1, 1):
            self._engine.submit(
                Request(link, message.id, message.op, message.topic, message.body, message.options)
            )
        self._engine.commit()
        link.flush(1, 1)

    def close(self) -> None:
        self._near.close()
        self._far.close()
        self._files.close()


@contextmanager
def drain() -> Iterator[int]:
    """A socket whose other end is emptied by another process."""
    near, far = socket.socketpair()
    reader = subprocess.Popen(["cat"], stdin=far, stdout=subprocess.DEVNULL)
    far.close()
    try:
        yield near.fileno()
    finally:
        near.close()
        reader.wait()


def _sendfile_round(sink: int, fd: int, size: int) -> Round:
    def send(_: int) -> None:
        sent = 0
        while sent < size:
            sent += os.sendfile(sink, fd, sent, size - sent)

    return time_calls(send, range(_CALLS))
