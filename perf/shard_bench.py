"""A shard in a directory of its own, driven by hand: what the worker's loop does, without its sockets.

Syncs and maintenance run inline, where the worker has threads for them; callers decide whether to time them.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from shard_worker.request import Extents, Request
from shard_worker.shard import Shard
from shared.io.durable_fs import RealFileSystem
from shared.limits import SEQ_RESERVE_MAX
from shared.settings import Settings, load_settings
from shared.wire import Op

NEVER = str(1 << 40)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class CountingSink:
    """Takes answers like a link would; keeps the last one."""

    __slots__ = ("answers", "body", "extents", "failed", "tail")

    def __init__(self) -> None:
        self.answers = 0
        self.failed = 0
        self.body = b""
        self.extents: Extents | None = None
        self.tail: bytes | None = None

    def answer(
        self,
        id: int,
        status: int,
        body: bytes,
        timings: Mapping[str, float] | None = None,
        extents: Extents | None = None,
        tail: bytes | None = None,
    ) -> None:
        self.answers += 1
        if status >= 300:
            self.failed += 1
        self.body, self.extents, self.tail = body, extents, tail


def bench_settings(data_dir: str, *, sealing: bool = True, **changes: str) -> Settings:
    given = {"data_dir": data_dir, "wal_shards": "1", **changes}
    if not sealing:
        given |= {"segment_max_events": NEVER, "segment_max_bytes": NEVER, "segment_max_age_ms": "0"}
    return load_settings(given, {}, None, cpus=1)


class BenchShard:
    def __init__(self, directory: str, *, sealing: bool = True, **changes: str) -> None:
        self.directory = directory
        self.settings = bench_settings(directory, sealing=sealing, **changes)
        self.sink = CountingSink()
        self._next_id = 0
        self.maintenance_s = 0.0
        self.open_s = 0.0
        self.shard = self._open()

    def _open(self) -> Shard:
        started = time.perf_counter()
        shard = Shard.open(RealFileSystem(), self.settings, 0, wall_ms=wall_ms, clock=time.perf_counter)
        self.open_s = time.perf_counter() - started
        self.engine = shard.engine
        return shard

    def abandon(self) -> None:
        """End like a killed process: nothing is synced, no snapshot is taken."""
        self.shard.engine.wal.close()
        self.shard.store.close()

    def reopen(self) -> None:
        self.abandon()
        self.shard = self._open()

    # --- calls ------------------------------------------------------------------------------------------

    def request(
        self, op: int, topic: str, body: bytes = b"", options: Mapping[str, object] | None = None
    ) -> Request:
        self._next_id += 1
        return Request(self.sink, self._next_id, op, topic, body, options)

    def call(
        self, op: int, topic: str, body: bytes = b"", options: Mapping[str, object] | None = None
    ) -> bytes:
        """One request, answered, whatever it has to wait for."""
        self.turn([self.request(op, topic, body, options)])
        self.settle()
        assert not self.sink.failed, self.sink.body
        return self.sink.body

    def turn(self, requests: Sequence[Request]) -> None:
        submit = self.engine.submit
        for request in requests:
            submit(request)
        self.engine.commit()

    def settle(self) -> None:
        """Sync if anybody waits for it."""
        if self.engine.commits.waiting:
            self.engine.sync_now()

    def fill(self, topic: str, bodies: Sequence[bytes], calls: int, *, per_turn: int = 100) -> None:
        """Many appends, as fast as they go."""
        done = 0
        while done < calls:
            upto = min(calls, done + per_turn)
            self.turn([self.request(Op.APPEND, topic, bodies[at % len(bodies)]) for at in range(done, upto)])
            self.settle()
            done = upto
        assert not self.sink.failed, self.sink.body

    def reserve_seqs(self, topic: str) -> None:
        """As if a sync had just made a large reservation durable: what a busy topic has nearly all the time.

        Without it some of the calls that are timed would wait for a sync, and so leave half of their work undone.
        """
        found = self.engine.state.catalog.visible[topic]
        found.reserved = found.reserved_synced = found.head + SEQ_RESERVE_MAX

    def maintain(self) -> None:
        """Everything that is due now, as the worker's maintenance task would do it."""
        maintenance = self.shard.maintenance
        started = time.perf_counter()
        while (job := maintenance.next_job()) is not None or maintenance.stepping:
            if job is not None:
                job.run()
                maintenance.finish(job)
        retired = maintenance.counters.retired_files
        for file in retired:
            file.close()
        retired.clear()
        self.maintenance_s += time.perf_counter() - started

    def seal_all(self) -> None:
        maintenance = self.shard.maintenance
        for topic in self.engine.state.catalog.by_id.values():
            maintenance.due[topic] = None
        self.maintain()

    def snapshot(self) -> None:
        self.shard.maintenance.snapshot_now(clean=False)
        self.maintain()


@contextmanager
def scratch(parent: str | None = None) -> Iterator[str]:
    """A directory on the file system to be measured, gone afterwards."""
    path = tempfile.mkdtemp(prefix="topicsd-perf-", dir=parent)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def touch_memory(parent: str | None, size: int = 1 << 30) -> None:
    """Fill the page cache once and let it go: on a virtual machine the first use of a page costs many times more."""
    with scratch(parent) as directory, open(f"{directory}/fill", "wb", buffering=0) as file:
        block = bytes(1 << 20)
        for _ in range(size >> 20):
            file.write(block)


@contextmanager
def bench_shard(parent: str | None, *, sealing: bool = True, **changes: str) -> Iterator[BenchShard]:
    with scratch(parent) as directory:
        shard = BenchShard(str(Path(directory) / "data"), sealing=sealing, **changes)
        try:
            yield shard
        finally:
            shard.abandon()


def write_body(batch: int, size: int, variant: int = 0, *, labels: bool = False) -> bytes:
    """A write of `batch` records whose `data` has `size` bytes each."""
    records = []
    for at in range(batch):
        start = b'{"id":%08d,"kind":"order.created","text":"' % (10_000_000 + variant * batch + at)
        data = start + b"x" * (size - len(start) - 2) + b'"}'
        extra = b',"tag":"t%d","node":"n%d"' % (at % 10, at % 3) if labels else b""
        records.append(b'{"data":%b%b}' % (data, extra))
    return b'{"records":[%b]}' % b",".join(records)


def write_bodies(batch: int, size: int, *, labels: bool = False) -> list[bytes]:
    return [write_body(batch, size, variant, labels=labels) for variant in range(16)]
