"""Plain batches of the log are read together when they are sealed, and come out as they went in."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from shard_worker.core.piece import Piece
from shard_worker.disk import record_store
from shard_worker.disk.wal import Wal
from shared.errors import CorruptFrame
from tests.support.shard_driver import ShardDriver


def pieces_of(driver: ShardDriver, topic: str) -> list[Piece]:
    found = driver.engine.state.catalog.visible[topic]
    return list(driver.shard.store.hot_pieces(found.id, found.hot))


def one_by_one(driver: ShardDriver, topic: str) -> list[Piece]:
    found = driver.engine.state.catalog.visible[topic]
    return [found.hot_piece(at, driver.shard.store) for at in range(found.hot.start, len(found.hot.first))]


def records_of(pieces: list[Piece]) -> list[tuple[int, int, bytes, Any]]:
    """Seq, time, JSON and labels of every record."""
    found = []
    for piece in pieces:
        ends, times = piece.columns.ends, piece.times
        for at in range(piece.count):
            start = ends[at - 1] if at else 0
            ts = times if isinstance(times, int) else times[at]
            labels = (piece.columns.tag(at), piece.columns.node(at), piece.columns.key(at))
            found.append((piece.seq_at(at), ts, bytes(piece.json[start : ends[at]]), labels))
    return found


@contextmanager
def counted_reads() -> Iterator[list[int]]:
    reads: list[int] = []
    read = Wal.read

    def counting(wal: Wal, lsn: int, length: int) -> bytes:
        reads.append(length)
        return read(wal, lsn, length)

    with patch.object(Wal, "read", counting):
        yield reads


def test_plain_batches_that_stand_together_take_one_read() -> None:
    driver = ShardDriver(cold_dir=None, wal_file_bytes=1 << 20)
    for number in range(30):
        driver.append("t", [{"data": [number, at]} for at in range(20)])
        driver.clock.advance(1)
    with counted_reads() as reads:
        (piece,) = pieces_of(driver, "t")
    assert len(reads) == 1
    assert (piece.first, piece.last, piece.count) == (1, 600, 600)
    assert piece.times_ascend
    assert records_of([piece]) == records_of(one_by_one(driver, "t"))


@pytest.mark.parametrize("seed", range(12))
def test_batches_of_any_kind_come_out_as_they_are(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_store, "BLOCK_TARGET_BYTES", 6_000)
    monkeypatch.setattr(record_store, "_SPAN_BYTES", 8_000)
    rng = random.Random(seed)
    driver = ShardDriver(cold_dir=None, wal_file_bytes=16_384)
    for number in range(150):
        labels: dict[str, Any] = (
            {"tag": "t" * rng.randint(1, 4), "key": str(number)} if rng.random() < 0.1 else {}
        )
        records = [
            {"data": "x" * rng.choice((0, 3, 200, 900)), **labels}
            for _ in range(rng.choice((1, 1, 1, 2, 30)))
        ]
        key = {"idempotency_key": str(number)} if rng.random() < 0.2 else {}
        driver.append("t" if rng.random() < 0.7 else "other", records, **key)
        driver.clock.advance(rng.choice((0, 0, 5)))
    driver.engine.commits.commit(driver.clock())
    merged, single = pieces_of(driver, "t"), one_by_one(driver, "t")
    assert len(merged) < len(single)
    assert records_of(merged) == records_of(single)
    before = driver.read_all("t")
    assert driver.seal(["t"])
    assert driver.read_all("t") == before


def test_a_hole_between_two_batches_ends_a_piece() -> None:
    driver = ShardDriver(cold_dir=None)
    driver.append("t", [{"data": 1}] * 3)
    driver.lose_power(keep="all")
    driver.append("t", [{"data": 2}] * 3)
    topic = driver.engine.state.catalog.visible["t"]
    assert topic.holes, "this test needs seqs that were left out"
    assert [piece.count for piece in pieces_of(driver, "t")] == [3, 3]


@pytest.mark.parametrize("place", [0, 2], ids=["an end that does not rise", "a last end that is not the end"])
def test_record_ends_that_contradict_the_batch_are_damage_and_are_never_sealed(place: int) -> None:
    driver = ShardDriver(cold_dir=None)
    for _ in range(10):
        driver.append("t", [{"data": 1}] * 3)
    hot = driver.engine.state.catalog.visible["t"].hot
    read = Wal.read
    wrong_at = hot.lsn[4] + hot.size[4] + 4 * place

    def misread(wal: Wal, lsn: int, length: int) -> bytes:
        found = bytearray(read(wal, lsn, length))
        if lsn <= wrong_at < lsn + length:
            found[wrong_at - lsn] ^= 0x80
        return bytes(found)

    with patch.object(Wal, "read", misread):
        with pytest.raises(CorruptFrame):
            pieces_of(driver, "t")
        assert not driver.seal(["t"])
    assert len(driver.read_all("t")) == 30


@pytest.mark.parametrize("batches", [1, 5])
def test_a_log_file_that_ends_too_early_is_damage_and_is_never_sealed(batches: int) -> None:
    driver = ShardDriver(cold_dir=None)
    for _ in range(batches):
        driver.append("t", [{"data": 1}] * 3)
    hot = driver.engine.state.catalog.visible["t"].hot
    cut_at = hot.lsn[-1] + hot.size[-1] + 5
    read = Wal.read

    def cut(wal: Wal, lsn: int, length: int) -> bytes:
        return read(wal, lsn, max(0, min(length, cut_at - lsn)))

    with patch.object(Wal, "read", cut):
        with pytest.raises(CorruptFrame):
            pieces_of(driver, "t")
        assert not driver.seal(["t"])
    assert len(driver.read_all("t")) == 3 * batches
