"""A shard on a fake disk, driven step by step.

    driver = ShardDriver()
    driver.append("t", [{"data": 1}])         # submitted, committed, synced if its ack waits for that
    call = driver.start_append("t", [...])    # submitted only; `call.answer` is None until it is answered
    driver.commit(); driver.sync()            # the two halves of a turn
    driver.lose_power(seed=7)                 # the disk forgets, the shard recovers

Everything runs in the calling thread. Background jobs can be held between their steps: `begin_seal()` plans one,
`finish_job(job)` runs and finishes it, and anything may happen in between.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from shard_worker.disk.wal import SyncJob, wal_file_name
from shard_worker.maintenance import Job
from shard_worker.request import Extents, Request
from shard_worker.shard import Shard
from shared.errors import DataDamage
from shared.settings import Settings
from shared.wire import Op, decode_list_body
from tests.support.fake_disk import FakeDisk, Keep

DATA_DIR = "/data"
COLD_DIR = "/cold"
STORE_ID = "feedfacecafe0001"  # under which the archive gets its files
START_MS = 1_700_000_000_000
WAL_FILE_BYTES = 4096  # small, so that a handful of writes rotates the log
RECORD = dict[str, Any]


class ManualClock:
    """The wall clock: moves when told to, also backwards."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> None:
        self.now_ms += ms


@dataclass(slots=True)
class Answer:
    """What the caller was told. `text` is the whole document, extents put in and the brace closed."""

    status: int
    text: bytes
    timings: Mapping[str, float]
    used_extents: bool

    @property
    def json(self) -> Any:
        return json.loads(self.text) if self.text else None

    @property
    def ok(self) -> bool:
        return self.status < 400

    @property
    def error(self) -> str | None:
        """The error code, None for a success."""
        return self.json["error"]["code"] if self.status >= 400 else None


@dataclass(slots=True)
class Call:
    """A request under way."""

    op: int
    topic: str
    body: bytes
    answer: Answer | None = None


class _Sink:
    """Stands for one link. Extents are read at once: later the file may be gone."""

    full = False

    def __init__(self, read_extent: Callable[[int, int, int], bytes]) -> None:
        self._read_extent = read_extent
        self.calls: dict[int, Call] = {}

    def answer(
        self,
        id: int,
        status: int,
        body: bytes,
        timings: Mapping[str, float] | None = None,
        extents: Extents | None = None,
        tail: bytes | None = None,
    ) -> None:
        call = self.calls.pop(id, None)
        assert call is not None, f"request {id} was answered twice"
        parts = [body, *(self._read_extent(*extent) for extent in extents or ()), tail or b""]
        text = b"".join(parts)
        if status < 400 and call.op not in (Op.LIST, Op.PING):
            text += b"}"
        call.answer = Answer(status, text, timings or {}, bool(extents))


class ShardDriver:
    def __init__(
        self,
        disk: FakeDisk | None = None,
        *,
        clock: ManualClock | None = None,
        wal_file_bytes: int = WAL_FILE_BYTES,
        open: bool = True,
        number: int = 0,
        **overrides: object,
    ) -> None:
        self._number = number
        self.disk = FakeDisk() if disk is None else disk
        self.clock = ManualClock() if clock is None else clock
        self.settings = replace(
            Settings(),
            **{
                "data_dir": DATA_DIR,
                "cold_dir": COLD_DIR,
                "hot_retain_segments": 1,
                "min_free_bytes": 0,
                **overrides,
            },
        )
        self.wal_file_bytes = wal_file_bytes
        self.before_sync: Callable[[], None] = lambda: (
            None
        )  # called when all that a sync will cover is written
        self.after_sync: Callable[[], None] = lambda: None  # called when it has reached the disk
        self._last_id = 0
        self._sync_job: SyncJob | None = None
        self._sync_ran = False
        self.shard: Shard
        self._sink: _Sink
        if open:
            self.reopen()

    # --- lifecycle --------------------------------------------------------------------------------------

    def reopen(self) -> None:
        """Recover from the files; whatever was in flight is forgotten, as with a process that died."""
        self._sink = _Sink(self._read_extent)
        self._sync_job = None
        self.shard = Shard.open(
            self.disk,
            self.settings,
            self._number,
            wall_ms=self.clock,
            clock=lambda: 0.0,
            wal_file_bytes=self.wal_file_bytes,
            store_id=STORE_ID,
        )

    def kill(self) -> None:
        """SIGKILL and a restart: the page cache survives."""
        self.disk.kill_process()
        self.reopen()

    def lose_power(self, seed: int = 0, keep: Keep = "random") -> None:
        self.disk.lose_power(seed, keep)
        self.reopen()

    def close(self) -> None:
        """A clean shutdown; `reopen` starts again."""
        self.settle()
        self.shard.close()

    @property
    def engine(self) -> Any:
        return self.shard.engine

    # --- turns ------------------------------------------------------------------------------------------

    def submit(
        self, op: int, topic: str = "", body: object = None, options: Mapping[str, object] | None = None
    ) -> Call:
        """Hand in a request; nothing is written yet. `body`: bytes as they are, anything else as JSON."""
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        self._last_id += 1
        call = Call(op, topic, content)
        self._sink.calls[self._last_id] = call
        self.engine.submit(Request(self._sink, self._last_id, op, topic, content, options))
        return call

    def commit(self) -> None:
        self.engine.commit()

    def sync(self) -> None:
        """Commit, and make everything written so far durable."""
        self.finish_sync()
        self.begin_sync()
        self.finish_sync()

    def begin_sync(self, *, run: bool = False) -> None:
        """Commit and start a sync; `run`: it has reached the disk already, but nobody has heard of it."""
        self.finish_sync()
        self.commit()
        self.before_sync()
        self._sync_job = self.engine.begin_sync()
        self._sync_ran = run
        if run:
            self._run_sync()

    def _run_sync(self) -> None:
        assert self._sync_job is not None
        self._sync_job.run()
        self._sync_ran = True
        self.after_sync()

    def finish_sync(self) -> None:
        """Finish the sync that is under way, if any."""
        if self._sync_job is None:
            return
        if not self._sync_ran:
            self._run_sync()
        job, self._sync_job = self._sync_job, None
        self.engine.finish_sync(job)
        self.commit()  # as the worker ends every turn

    def settle(self) -> None:
        """Until nothing is in flight."""
        self.finish_sync()
        self.commit()
        if not self.engine.commits.idle:
            self.sync()

    def call(
        self, op: int, topic: str = "", body: object = None, options: Mapping[str, object] | None = None
    ) -> Answer:
        """Submit and commit, and sync only if the answer waits for it."""
        call = self.submit(op, topic, body, options)
        self.commit()
        if call.answer is None:
            self.sync()
        assert call.answer is not None, f"no answer to {call}"
        return call.answer

    def tick(self) -> None:
        """What a worker does now and then."""
        self.engine.tick()
        self.shard.maintenance.tick(self.engine.now_ms())

    # --- requests ---------------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        records: Sequence[RECORD],
        *,
        options: Mapping[str, object] | None = None,
        **fields: object,
    ) -> Answer:
        return self.call(Op.APPEND, topic, {"records": list(records), **fields}, options)

    def start_append(
        self,
        topic: str,
        records: Sequence[RECORD],
        *,
        options: Mapping[str, object] | None = None,
        **fields: object,
    ) -> Call:
        return self.submit(Op.APPEND, topic, {"records": list(records), **fields}, options)

    def read(self, topic: str, from_seq: int = 0, *, inline: bool = False, **fields: object) -> Any:
        """The answer as JSON; 404 and the like are its `error`."""
        return self.read_answer(topic, from_seq, inline=inline, **fields).json

    def read_answer(self, topic: str, from_seq: int = 0, *, inline: bool = False, **fields: object) -> Answer:
        options = {"inline": True} if inline else None
        return self.call(Op.READ, topic, {"from_seq": from_seq, **fields}, options)

    def read_all(self, topic: str, from_seq: int = 0, **fields: object) -> list[RECORD]:
        """All records behind `from_seq`, over as many reads as it takes."""
        found: list[RECORD] = []
        while True:
            answer = self.read(topic, from_seq, **fields)
            found += answer["records"]
            if answer["caught_up"]:
                return found
            assert answer["next_from_seq"] > from_seq, f"no progress: {answer}"
            from_seq = answer["next_from_seq"]

    def state(self, topic: str, *, touch: bool = True) -> Answer:
        return self.call(Op.STATE, topic, None, None if touch else {"touch": False})

    def put(self, topic: str, **config: object) -> Answer:
        return self.call(Op.PUT_TOPIC, topic, config)

    def delete_topic(self, topic: str, *, if_empty: bool = False) -> Answer:
        return self.call(Op.DELETE_TOPIC, topic, None, {"if_empty": if_empty})

    def delete_records(self, topic: str, **fields: object) -> Answer:
        return self.call(Op.DELETE_RECORDS, topic, fields)

    def list(self, prefix: str = "", after: str = "", limit: int = 1000) -> tuple[list[Any], bool]:
        """The items as JSON, and whether more follow."""
        answer = self.call(Op.LIST, "", None, {"prefix": prefix, "after": after, "limit": limit})
        items, more = decode_list_body(answer.text)
        return [json.loads(item) for _, item in items], more

    # --- background work --------------------------------------------------------------------------------

    def begin_seal(self, topics: Iterable[str] | None = None) -> Job | None:
        """Plan the sealing of these topics (None: of all)."""
        maintenance, visible = self.shard.maintenance, self.engine.state.catalog.visible
        for name in sorted(visible) if topics is None else topics:
            if name in visible:
                maintenance.due[visible[name]] = None
        return maintenance.next_job() if maintenance.due and not maintenance.stepping else None

    def begin_snapshot(self) -> None:
        """Open a snapshot; `step_snapshot` writes its slices, with anything in between."""
        self.shard.maintenance._begin_snapshot()

    def step_snapshot(self, topics: int = 1) -> bool:
        """Write the next topics of the snapshot; False when there is none left."""
        writer = self.shard.maintenance._writer
        return writer is not None and writer.step(topics)

    def end_snapshot(self) -> Job | None:
        """The job that makes the snapshot durable; whatever it waits for is done."""
        maintenance = self.shard.maintenance
        while maintenance._writer is not None and self.engine.commits.read_only is None:
            waits = not maintenance.stepping
            job = maintenance.next_job()
            if job is not None:
                return job
            if waits:
                self.sync()
        return None

    def begin_relocation(self) -> Job | None:
        maintenance = self.shard.maintenance
        if maintenance.stepping or maintenance.due:
            return None
        return maintenance.next_job()

    def finish_job(self, job: Job | None) -> bool:
        """Run a job and report its outcome, as the worker does; False if it failed or there was none."""
        if job is None:
            return False
        try:
            job.run()
        except (OSError, DataDamage) as err:
            self.shard.maintenance.failed(job, err)
            return False
        self.shard.maintenance.finish(job)
        return True

    def seal(self, topics: Iterable[str] | None = None) -> bool:
        """Seal these topics (None: all) now."""
        return self.finish_job(self.begin_seal(topics))

    def snapshot(self) -> bool:
        """Take a whole snapshot now; trims the log of what no kept snapshot needs."""
        self.begin_snapshot()
        return self.finish_job(self.end_snapshot())

    def relocate(self) -> int:
        """Move every segment beyond the hot bound to the cold tier; returns how many moved."""
        moved = 0
        while self.finish_job(self.begin_relocation()):
            moved += 1
        self.sync()
        self.shard.maintenance.next_job()  # removes the hot copies
        return moved

    # --- looking behind ---------------------------------------------------------------------------------

    def _read_extent(self, file_no: int, offset: int, length: int) -> bytes:
        content = self.disk.read_file(f"{DATA_DIR}/shard-0000/wal/{wal_file_name(file_no)}")
        found = content[offset : offset + length]
        assert len(found) == length, f"extent [{file_no}, {offset}, {length}] lies outside its file"
        return found


SMALL_LIMITS = {
    "SENDFILE_MIN_BYTES": 150,
    "EXTENTS_MAX_PER_ANSWER": 4,
    "READ_SCAN_MAX_RECORDS": 6,
    "SEQ_RESERVE_MIN": 6,
    "BLOCK_TARGET_BYTES": 250,
    "WAL_MAX_FILES_BEFORE_SEAL": 3,
    "_CUT_AT": 4,
    "_MIN_SLACK": 4,
}


@contextmanager
def small_limits() -> Iterator[None]:
    """Limits so low that a handful of records meets them: extents, blocks, scans, reservations, log files."""
    with ExitStack() as stack:
        for name, value in SMALL_LIMITS.items():
            users = [each for each in list(sys.modules.values()) if _is_engine(each) and hasattr(each, name)]
            assert users, f"nobody uses {name} any more"
            for module in users:
                stack.enter_context(patch.object(module, name, value))
        yield


def _is_engine(module: object) -> bool:
    return getattr(module, "__name__", "").startswith("shard_worker.")
