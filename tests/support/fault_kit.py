"""What the tests of the fault catalogue share: looking at files, damaging them, crashing at every step.

Damage is always shown first: each function that breaks something asserts that the format's own decoder refuses it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shard_worker.disk.record_store import segment_file_name
from shard_worker.disk.snapshots import snapshot_file_name, snapshot_number
from shard_worker.disk.wal import wal_file_name, wal_file_number
from shared.file_header import FILE_HEADER_BYTES
from shared.format_errors import FormatError
from shared.frame import Frame, Kind, build_frame, decode_frame
from shared.frame_scan import Stop, scan_frames
from shared.limits import SNAPSHOT_EVERY_WAL_BYTES
from shared.segment_index import BlockEntry, SegmentIndex
from shared.segment_reader import read_index, read_trailer
from shared.segment_scan import verify_segment
from shared.segment_terms import Trailer
from shared.snapshot_format import read_snapshot
from shared.wal_format import AppendView, decode_append, lsn_of
from tests.support.fake_disk import FakeDisk, Keep, PowerCut
from tests.support.shard_driver import COLD_DIR, DATA_DIR, ShardDriver

SHARD_DIR = f"{DATA_DIR}/shard-0000"
WAL_DIR = f"{SHARD_DIR}/wal"
SEGMENTS_DIR = f"{SHARD_DIR}/segments"
SNAPSHOTS_DIR = f"{SHARD_DIR}/snapshots"
QUARANTINE_DIR = f"{SHARD_DIR}/quarantine"
COLD_SHARD_DIR = f"{COLD_DIR}/shard-0000"
ROOMY = 1 << 16
"""Bytes of a log file that no test here fills by accident."""

KEEPS: tuple[tuple[Keep, int], ...] = (
    ("none", 0),
    ("all", 0),
    ("random", 1),
    ("random", 2),
    ("random", 3),
    ("random", 4),
)
"""What a power cut may leave of the unsynced bytes: nothing, everything, and four samples between."""


# --- paths ------------------------------------------------------------------------------------------------


def wal_path(number: int) -> str:
    return f"{WAL_DIR}/{wal_file_name(number)}"


def segment_path(number: int) -> str:
    return f"{SEGMENTS_DIR}/{segment_file_name(number)}"


def cold_path(number: int) -> str:
    return f"{COLD_SHARD_DIR}/data/{segment_file_name(number)}"


def snapshot_path(number: int) -> str:
    return f"{SNAPSHOTS_DIR}/{snapshot_file_name(number)}"


def wal_numbers(disk: FakeDisk) -> list[int]:
    return sorted(filter(None, map(wal_file_number, disk.list_dir(WAL_DIR))))


def snapshot_numbers(disk: FakeDisk) -> list[int]:
    return sorted(filter(None, map(snapshot_number, disk.list_dir(SNAPSHOTS_DIR))))


def quarantined(disk: FakeDisk) -> dict[str, bytes]:
    return {name: disk.read_file(f"{QUARANTINE_DIR}/{name}") for name in disk.list_dir(QUARANTINE_DIR)}


# --- the log ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Placed:
    """A frame and where it stands."""

    file_no: int
    offset: int
    end: int
    kind: int
    topic_id: int
    raw: bytes

    @property
    def path(self) -> str:
        return wal_path(self.file_no)

    @property
    def append(self) -> AppendView:
        frame = decode_frame(memoryview(self.raw), 0, lsn_of(self.file_no, self.offset))
        assert isinstance(frame, Frame)
        return decode_append(frame)


def frames_in(disk: FakeDisk, number: int) -> list[Placed]:
    """The readable frames of one log file, from its start."""
    content = disk.read_file(wal_path(number))
    found = []
    at = FILE_HEADER_BYTES
    for step in scan_frames(_pread(content), at, len(content), lsn_of(number, 0)):
        if isinstance(step, Stop):
            break
        found.append(Placed(number, at, step.end, step.kind, step.topic_id, content[at : step.end]))
        at = step.end
    return found


def all_frames(disk: FakeDisk) -> list[Placed]:
    return [frame for number in wal_numbers(disk) for frame in frames_in(disk, number)]


def appends(disk: FakeDisk) -> list[Placed]:
    return [frame for frame in all_frames(disk) if frame.kind == Kind.APPEND]


def is_intact(disk: FakeDisk, frame: Placed) -> bool:
    content = disk.read_file(frame.path)
    found = decode_frame(memoryview(content), frame.offset, lsn_of(frame.file_no, frame.offset))
    return isinstance(found, Frame)


def damage_frame(disk: FakeDisk, frame: Placed, at: int, content: bytes) -> None:
    """Overwrite a part of the frame, counted from its start, and see that it does not decode any more."""
    assert is_intact(disk, frame)
    disk.overwrite(frame.path, frame.offset + at, content)
    assert not is_intact(disk, frame), f"{content!r} at byte {at} changed nothing"


def flip_in_frame(disk: FakeDisk, frame: Placed, at: int, bit: int = 0) -> None:
    assert is_intact(disk, frame)
    disk.flip_bit(frame.path, frame.offset + at, bit)
    assert not is_intact(disk, frame)


def tear_frame(disk: FakeDisk, frame: Placed, kept_bytes: int) -> None:
    """Only the first bytes of the frame reached the disk; preallocated zeros stand behind them."""
    assert is_intact(disk, frame)
    size = len(disk.read_file(frame.path))
    disk.overwrite(frame.path, frame.offset + kept_bytes, bytes(size - frame.offset - kept_bytes))
    assert not is_intact(disk, frame)


def frame_of_version(frame: Placed, version: int) -> bytes:
    """The same frame as a writer of another version would have made it: only the version differs, checksum right."""
    from struct import pack

    from xxhash import xxh3_64_intdigest

    raw = bytearray(frame.raw)
    raw[9] = version
    raw[-8:] = pack("<Q", xxh3_64_intdigest(bytes(raw[:-8])))
    return bytes(raw)


def frame_of_kind(frame: Placed, kind: int) -> bytes:
    """A frame of `kind` in the place of `frame`."""
    return build_frame(kind, 0, lsn_of(frame.file_no, frame.offset), 0, 1, b"")


# --- segments ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SegmentParts:
    """Where everything in a segment file is."""

    size: int
    trailer: Trailer
    index: SegmentIndex

    @property
    def blocks(self) -> list[BlockEntry]:
        return [self.index.block(ordinal) for ordinal in range(self.index.block_count)]

    def blocks_of(self, topic_id: int) -> list[BlockEntry]:
        return [self.index.block(ordinal) for ordinal in self.index.blocks_of(topic_id)]


def segment_parts(disk: FakeDisk, path: str) -> SegmentParts:
    content = disk.read_file(path)
    trailer = read_trailer(_pread(content), len(content))
    return SegmentParts(len(content), trailer, read_index(_pread(content), trailer))


def segment_is_intact(disk: FakeDisk, path: str, digest: str | None = None) -> bool:
    content = disk.read_file(path)
    return verify_segment(_pread(content), len(content), digest).ok


def flip_in_segment(disk: FakeDisk, path: str, at: int, bit: int = 0) -> None:
    assert segment_is_intact(disk, path)
    disk.flip_bit(path, at, bit)
    assert not segment_is_intact(disk, path), f"a flipped bit at {at} went unnoticed"


# --- snapshots --------------------------------------------------------------------------------------------


def snapshot_is_intact(disk: FakeDisk, number: int) -> bool:
    content = disk.read_file(snapshot_path(number))
    try:
        return bool(list(read_snapshot(_pread(content), len(content))))
    except FormatError:
        return False


def make_snapshot_due(driver: ShardDriver) -> None:
    """So that the next free `next_job` begins one."""
    driver.shard.maintenance._bytes_at_snapshot -= SNAPSHOT_EVERY_WAL_BYTES


def _pread(content: bytes) -> Callable[[int, int], bytes]:
    return lambda length, offset: content[offset : offset + length]


# --- what a shard holds -----------------------------------------------------------------------------------


def topics_of(driver: ShardDriver) -> dict[str, Any]:
    return dict(driver.engine.state.catalog.visible)


def picture(driver: ShardDriver) -> dict[str, Any]:
    """Everything a client could see, and the floors behind it. Equal pictures mean equal shards."""
    shown = {}
    for name, topic in sorted(topics_of(driver).items()):
        records = driver.read_all(name, max(topic.earliest - 1, 0), include_tags=True, include_keys=True)
        shown[name] = {
            "epoch": topic.epoch,
            "head": topic.head,
            "earliest": topic.earliest,
            "floor": topic.floor,
            "reason": topic.reason,
            "count": topic.count,
            "bytes": topic.bytes,
            "holes": list(topic.holes),
            "config": topic.config,
            "records": records,
        }
        assert topic.count == len(records), f"{name}: count says {topic.count}, reading gives {len(records)}"
        assert topic.floor <= topic.live_from
    return shown


def data_of(driver: ShardDriver, topic: str) -> list[Any]:
    return [record["data"] for record in driver.read_all(topic)] if topic in topics_of(driver) else []


def expect_prefix(driver: ShardDriver, topic: str, acked: Sequence[Any], maybe: Sequence[Any] = ()) -> None:
    """All that was acked is there, once, in its place; of what was not, a prefix in order; nothing else."""
    records = driver.read_all(topic) if topic in topics_of(driver) else []
    wanted = [*acked, *maybe]
    assert [record["data"] for record in records] == wanted[: len(records)]
    assert len(records) >= len(acked), f"{len(acked)} were acked, {len(records)} are left"
    assert [record["$seq"] for record in records] == list(range(1, len(records) + 1))


def expect_stable(driver: ShardDriver) -> dict[str, Any]:
    """Recovering twice gives the same state as recovering once."""
    before = picture(driver)
    damage = [str(found) for found in driver.shard.report.damage]
    driver.kill()
    assert picture(driver) == before
    assert [str(found) for found in driver.shard.report.damage] == damage
    return before


def expect_healthy(driver: ShardDriver) -> dict[str, Any]:
    """No damage, writes work, and a second recovery changes nothing."""
    assert driver.shard.report.damage == []
    answer = driver.append("probe", [{"data": "alive"}], config={"durable": True})
    assert answer.ok, answer.text
    return expect_stable(driver)


def expect_read_only_for_damage(driver: ShardDriver) -> None:
    """Damage is known, so writes wait for the operator, whatever they are."""
    assert driver.shard.report.damage
    for answer in (
        driver.append("new", [{"data": 1}]),
        driver.put("new"),
        driver.delete_topic(next(iter(topics_of(driver)))),
    ):
        assert (answer.status, answer.error) == (503, "shard_unavailable")
        assert "damaged" in json.loads(answer.text)["error"]["message"]


def reopened(driver: ShardDriver) -> ShardDriver:
    """Another driver on the same disk and settings, not opened yet."""
    twin = ShardDriver(driver.disk, clock=driver.clock, wal_file_bytes=driver.wal_file_bytes, open=False)
    twin.settings = driver.settings
    return twin


# --- crashing at every step -------------------------------------------------------------------------------


@dataclass(slots=True)
class Crashed:
    """A disk at the moment of the power cut, and what was acked before it."""

    step: int
    driver: ShardDriver

    def outcomes(self, *, kill_too: bool = True) -> Iterator[ShardDriver]:
        """The shard as it comes up again, for everything the disk may have kept."""
        for keep, seed in KEEPS:
            twin = reopened(self.driver)
            twin.disk = self.driver.disk.clone().lose_power(seed + 1000 * self.step, keep)
            twin.reopen()
            yield twin
        if kill_too:
            twin = reopened(self.driver)
            twin.disk = self.driver.disk.clone().kill_process()
            twin.reopen()
            yield twin


def crash_points(
    prepare: Callable[[], ShardDriver], act: Callable[[ShardDriver], object], *, half: bool = True
) -> Iterator[Crashed]:
    """`act` again and again on a fresh shard, its n-th change of the disk being the last; the full run ends it."""
    step = 0
    while True:
        step += 1
        driver = prepare()
        driver.disk.crash_after(step, half=half, seed=step)
        try:
            act(driver)
        except PowerCut:
            yield Crashed(step, driver)
            continue
        assert step > 1, "nothing was written at all"
        return
