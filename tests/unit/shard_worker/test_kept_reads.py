"""An answer that is given again must be the one that would be worked out anew, whatever has happened since."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest

from shard_worker.core import kept_reads
from shard_worker.core.kept_reads import KeptReads
from shared.limits import KEPT_READS_MAX_QUESTION_BYTES
from tests.support.shard_driver import Answer, ShardDriver

LONG = {"data": "x" * 20_000}  # long enough for extents


def filled(**config: object) -> ShardDriver:
    driver = ShardDriver(wal_file_bytes=1 << 20)
    driver.put("t", **config)
    for _ in range(4):
        driver.append("t", [LONG])
    return driver


def kept(driver: ShardDriver) -> KeptReads:
    found = driver.engine._kept_reads
    assert isinstance(found, KeptReads)
    return found


def asked_again(driver: ShardDriver) -> Answer:
    """The same question twice; the second answer comes from memory, and must be the first."""
    first, second = driver.read_answer("t"), driver.read_answer("t")
    assert first.text == second.text and first.timings == second.timings
    return second


def test_the_same_question_is_answered_from_memory() -> None:
    driver = filled()
    first = driver.read_answer("t")
    reads = driver.engine.counters.reads
    driver.clock.advance(1000)
    with patch("shard_worker.engine.read", side_effect=AssertionError("worked out anew")):
        again = driver.read_answer("t")
    assert again.used_extents and again.text == first.text
    assert driver.engine.counters.reads == reads + 1, "it counts like any other"
    assert driver.engine.state.catalog.visible["t"].last_read_ts == driver.clock.now_ms


def append_one(driver: ShardDriver) -> None:
    driver.append("t", [LONG])


def delete_in_front(driver: ShardDriver) -> None:
    driver.delete_records("t", before_seq=2)


def delete_one_in_the_middle(driver: ShardDriver) -> None:
    driver.append("t", [{"data": 1, "tag": "odd"}])
    asked_again(driver)
    driver.delete_records("t", match=["tag", "Eq", "odd"])


def cap(driver: ShardDriver) -> None:
    driver.put("t", cap_records=2)


def seal(driver: ShardDriver) -> None:
    assert driver.seal()


def make_anew(driver: ShardDriver) -> None:
    driver.delete_topic("t")
    for number in range(4):
        driver.append("t", [{"data": f"{number}" * 20_000}])


def give_it_a_ttl(driver: ShardDriver) -> None:
    driver.put("t", ttl_ms=1000)
    driver.clock.advance(2000)


@pytest.mark.parametrize(
    "change",
    [append_one, delete_in_front, delete_one_in_the_middle, cap, seal, make_anew, give_it_a_ttl],
)
def test_whatever_changes_the_topic_changes_the_answer(change: Callable[[ShardDriver], None]) -> None:
    driver = filled()
    before = asked_again(driver)
    assert before.used_extents
    change(driver)
    now = driver.read_answer("t")
    inline = driver.read_answer("t", inline=True)  # never kept
    assert now.json == inline.json
    if change is not seal:
        assert now.json != before.json


def test_a_topic_that_is_gone_is_not_found() -> None:
    driver = filled()
    asked_again(driver)
    driver.delete_topic("t")
    assert driver.read_answer("t").error == "topic_not_found"


def test_a_write_of_the_same_turn_is_shown() -> None:
    driver = filled()
    asked_again(driver)
    driver.start_append("t", [LONG])
    assert driver.read_answer("t").json["head_seq"] == 5


def test_where_time_alone_changes_the_answer_nothing_is_kept() -> None:
    driver = filled(ttl_ms=10_000)
    assert asked_again(driver).used_extents
    assert len(kept(driver)) == 0


def test_small_answers_and_long_questions_are_not_kept() -> None:
    driver = filled()
    driver.append("small", [{"data": 1}])
    driver.read_answer("small")
    driver.read_answer("t", node=["n" * KEPT_READS_MAX_QUESTION_BYTES])
    assert len(kept(driver)) == 0


def test_only_so_many_are_kept() -> None:
    driver = filled()
    with patch.object(kept_reads, "KEPT_READS_MAX", 3):
        for limit in range(1, 11):
            driver.read_answer("t", limit=limit)
            assert 0 < len(kept(driver)) <= 3
