from __future__ import annotations

import json
from typing import Any

import pytest

from shard_worker.core.reading import PLAIN_VIEW, ReadResult, View, read, view_of
from shard_worker.core.topic import Topic
from shared.api_types import DiffRequest, decode_diff
from shared.control_frames import Hole
from shared.errors import InvalidRequest
from shared.limits import EXTENTS_MAX_PER_ANSWER, READ_DEFAULT_BYTES, READ_DEFAULT_LIMIT, READ_MAX_BYTES
from shared.match import parse_match
from shared.settings import Settings
from tests.support.record_shelf import RecordShelf, make_topic

SETTINGS = Settings()


def view(**fields: Any) -> View:
    return view_of(decode_diff(json.dumps(fields).encode()), SETTINGS)


def document(topic: Topic, result: ReadResult, shelf: RecordShelf) -> Any:
    records = b"".join(shelf.extent(*extent) for extent in result.extents) or result.records_json()
    return json.loads(result.head_json(topic) + records + result.tail_json(topic) + b"}")


def look(topic: Topic, shelf: RecordShelf, from_seq: int = 0, floor: int | None = None, **fields: Any) -> Any:
    result = read(
        topic, from_seq, view(**fields), topic.floor if floor is None else floor, shelf, extents=False
    )
    return document(topic, result, shelf)


def seqs(answer: Any) -> list[int]:
    return [record["$seq"] for record in answer["records"]]


def filled(count: int = 10, **config: Any) -> tuple[Topic, RecordShelf]:
    """Records 1 … count, one per batch."""
    topic, shelf = make_topic(**config), RecordShelf()
    for number in range(1, count + 1):
        shelf.append(topic, [{"data": number}], ts=1000 + number)
    return topic, shelf


# --- what a reader asks for -------------------------------------------------------------------------------


def test_defaults_and_limits_of_a_view() -> None:
    assert view_of(DiffRequest(), SETTINGS) == PLAIN_VIEW
    assert PLAIN_VIEW.plain
    assert (PLAIN_VIEW.limit, PLAIN_VIEW.max_bytes) == (READ_DEFAULT_LIMIT, READ_DEFAULT_BYTES)
    assert view(limit=0).limit == READ_DEFAULT_LIMIT
    assert view(limit=10**9).limit == SETTINGS.max_limit
    assert view(max_bytes=10**12).max_bytes == READ_MAX_BYTES
    assert view(max_bytes=0).max_bytes == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"node": "a"},
        {"match": "x"},
        {"include_tags": True},
        {"include_keys": True},
        {"include_meta": False},
    ],
)
def test_anything_but_the_default_projection_is_not_plain(fields: dict[str, Any]) -> None:
    assert not view(**fields).plain


def test_nodes_may_be_one_or_many() -> None:
    assert view(node="a").nodes == {b"a"}
    assert view(node=["a", "ü"]).nodes == {b"a", "ü".encode()}
    assert view(node=[]).nodes == frozenset()
    with pytest.raises(InvalidRequest, match="surrogate"):
        view_of(DiffRequest(node="\ud800"), SETTINGS)


def test_a_bad_match_is_the_callers_error() -> None:
    with pytest.raises(InvalidRequest):
        view(match=["tag", "Glob", "no star"])


# --- plain reads ------------------------------------------------------------------------------------------


def test_an_empty_topic_reads_as_caught_up() -> None:
    topic, shelf = make_topic(), RecordShelf()
    assert look(topic, shelf) == {
        "topic": "t",
        "records": [],
        "next_from_seq": 0,
        "head_seq": 0,
        "earliest_seq": 1,
        "caught_up": True,
        "tombstone": None,
        "lag": 0,
    }


def test_from_seq_is_exclusive_and_the_cursor_is_the_last_seq_examined() -> None:
    topic, shelf = filled()
    answer = look(topic, shelf, 3, limit=4)
    assert seqs(answer) == [4, 5, 6, 7]
    assert (answer["next_from_seq"], answer["caught_up"], answer["lag"]) == (7, False, 3)
    rest = look(topic, shelf, 7, limit=4)
    assert (seqs(rest), rest["next_from_seq"], rest["caught_up"], rest["lag"]) == ([8, 9, 10], 10, True, 0)
    assert look(topic, shelf, 10)["records"] == []


def test_a_read_over_sealed_and_hot_records_is_one_stretch() -> None:
    topic, shelf = filled(4)
    shelf.seal(topic, 1)
    shelf.append(topic, [{"data": 5}, {"data": 6}])
    shelf.seal(topic, 2)
    shelf.append(topic, [{"data": 7}, {"data": 8}])
    assert seqs(look(topic, shelf)) == list(range(1, 9))
    assert seqs(look(topic, shelf, 2, limit=4)) == [3, 4, 5, 6]
    assert seqs(look(topic, shelf, 5, limit=2)) == [6, 7]
    assert seqs(look(topic, shelf, include_tags=True)) == list(range(1, 9))


@pytest.mark.parametrize("from_seq", range(10))
@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_a_limit_may_end_inside_a_batch(from_seq: int, limit: int) -> None:
    topic, shelf = make_topic(), RecordShelf()
    for size in (3, 1, 4, 2):
        shelf.append(topic, [{"data": "x"}] * size)
    answer = look(topic, shelf, from_seq, limit=limit)
    assert seqs(answer) == list(range(from_seq + 1, min(10, from_seq + limit) + 1))
    assert answer["next_from_seq"] == seqs(answer)[-1]
    assert look(topic, shelf, from_seq, limit=limit, include_tags=True)["records"] == answer["records"]


@pytest.mark.parametrize("batch", [1, 3, 10])
@pytest.mark.parametrize("plain", [True, False])
def test_max_bytes_bounds_an_answer_but_one_record_always_comes(batch: int, plain: bool) -> None:
    topic, shelf = make_topic(), RecordShelf()
    for _ in range(30 // batch):
        shelf.append(topic, [{"data": "y" * 100}] * batch)
    size = topic.bytes // topic.count
    more = {} if plain else {"include_tags": True}
    assert seqs(look(topic, shelf, max_bytes=0, **more)) == [1]
    assert seqs(look(topic, shelf, max_bytes=size // 2, **more)) == [1]
    some = look(topic, shelf, max_bytes=4 * size + 20, **more)
    assert seqs(some) == [1, 2, 3, 4]
    assert some["next_from_seq"] == 4
    found: list[int] = []
    cursor = 0
    while cursor < 30:
        answer = look(topic, shelf, cursor, max_bytes=5 * size + 20, **more)
        found += seqs(answer)
        cursor = answer["next_from_seq"]
    assert found == list(range(1, 31))


# --- extents ----------------------------------------------------------------------------------------------


def both(topic: Topic, shelf: RecordShelf, from_seq: int, **fields: Any) -> tuple[Any, Any, ReadResult]:
    wanted = view(**fields)
    fast = read(topic, from_seq, wanted, topic.floor, shelf, extents=True)
    slow = read(topic, from_seq, wanted, topic.floor, shelf, extents=False)
    return document(topic, fast, shelf), document(topic, slow, shelf), fast


@pytest.mark.parametrize("batch", [1, 7, 50])
@pytest.mark.parametrize("max_bytes", [None, 17_000, 20_001, 25_000])
@pytest.mark.parametrize("limit", [40, 49, 50, 256])
def test_extents_and_bytes_give_the_same_document(batch: int, max_bytes: int | None, limit: int) -> None:
    topic, shelf = make_topic(), RecordShelf()
    while topic.head < 60:
        shelf.append(topic, [{"data": "z" * (500 + topic.head)}] * batch)
    fields: dict[str, Any] = {"limit": limit}
    if max_bytes is not None:
        fields["max_bytes"] = max_bytes
    used = 0
    for from_seq in range(0, topic.head, 3):
        fast, slow, result = both(topic, shelf, from_seq, **fields)
        assert fast == slow
        used += bool(result.extents)
        if result.extents:
            assert result.chunks == []
            assert len(result.extents) <= EXTENTS_MAX_PER_ANSWER
            assert shelf.verified, "what is sent without a look was verified first"
    assert used


def test_a_small_answer_is_copied() -> None:
    topic, shelf = filled(3)
    _, _, result = both(topic, shelf, 0)
    assert not result.extents


def test_too_many_pieces_are_copied() -> None:
    topic, shelf = make_topic(), RecordShelf()
    for _ in range(EXTENTS_MAX_PER_ANSWER + 1):
        shelf.append(topic, [{"data": "z" * 1000}])
    fast, slow, result = both(topic, shelf, 0)
    assert not result.extents and fast == slow
    fast, slow, result = both(topic, shelf, 1)
    assert len(result.extents) == EXTENTS_MAX_PER_ANSWER and fast == slow


def test_a_delete_in_the_range_is_answered_with_bytes() -> None:
    topic, shelf = make_topic(), RecordShelf()
    shelf.append(topic, [{"data": "z" * 1000}] * 60)
    topic.apply_remove([30], shelf)
    _, slow, result = both(topic, shelf, 0)
    assert not result.extents
    assert 30 not in seqs(slow)
    fast, slow, result = both(topic, shelf, 30)
    assert result.extents and fast == slow, "behind it nothing is in the way"


# --- filters and projections ------------------------------------------------------------------------------


def labelled() -> tuple[Topic, RecordShelf]:
    topic, shelf = make_topic(), RecordShelf()
    shelf.append(
        topic,
        [
            {"data": 1, "tag": "a", "node": "n1", "key": "k", "meta": {"m": 1}},
            {"data": 2, "tag": "ab", "node": "n2"},
            {"data": None, "tag": 'q"\\ü'},
            {"data": {"$ts": 5, "meta": {}}, "meta": {"deep": [1, 2]}},
        ],
        ts=77,
    )
    shelf.append(topic, [{"data": 5}], ts=78)
    return topic, shelf


def test_every_projection() -> None:
    topic, shelf = labelled()
    plain = [
        {"$seq": 1, "$ts": 77, "$node": "n1", "data": 1, "meta": {"m": 1}},
        {"$seq": 2, "$ts": 77, "$node": "n2", "data": 2},
        {"$seq": 3, "$ts": 77, "data": None},
        {"$seq": 4, "$ts": 77, "data": {"$ts": 5, "meta": {}}, "meta": {"deep": [1, 2]}},
        {"$seq": 5, "$ts": 78, "data": 5},
    ]
    tags = {1: "a", 2: "ab", 3: 'q"\\ü'}
    assert look(topic, shelf)["records"] == plain
    for include_tags in (False, True):
        for include_keys in (False, True):
            for include_meta in (False, True):
                expected = []
                for record in plain:
                    shown = dict(record)
                    if include_tags and record["$seq"] in tags:
                        shown["$tag"] = tags[record["$seq"]]
                    if include_keys and record["$seq"] == 1:
                        shown["$key"] = "k"
                    if not include_meta:
                        shown.pop("meta", None)
                    expected.append(shown)
                answer = look(
                    topic,
                    shelf,
                    include_tags=include_tags,
                    include_keys=include_keys,
                    include_meta=include_meta,
                )
                assert answer["records"] == expected


def test_records_without_their_data() -> None:
    topic, shelf = labelled()
    for include_meta in (True, False):
        for include_tags in (True, False):
            wanted = view(include_meta=include_meta, include_tags=include_tags)._replace(include_data=False)
            answer = document(topic, read(topic, 0, wanted, 1, shelf, extents=False), shelf)
            assert all("data" not in record for record in answer["records"])
            assert ["meta" in record for record in answer["records"]] == [
                include_meta and seq in (1, 4) for seq in (1, 2, 3, 4, 5)
            ]
            assert ["$tag" in record for record in answer["records"]] == [
                include_tags and seq <= 3 for seq in (1, 2, 3, 4, 5)
            ]


def test_records_of_excluded_nodes_are_left_out_and_the_cursor_moves_over_them() -> None:
    topic, shelf = labelled()
    assert seqs(look(topic, shelf, node="n1")) == [2, 3, 4, 5]
    assert seqs(look(topic, shelf, node=["n1", "n2"])) == [3, 4, 5]
    only = look(topic, shelf, 0, node="n1", limit=1)
    assert (seqs(only), only["next_from_seq"]) == ([2], 2)
    shelf.append(topic, [{"data": 6, "node": "n1"}])
    last = look(topic, shelf, 5, node="n1")
    assert (last["records"], last["next_from_seq"], last["caught_up"]) == ([], 6, True)


@pytest.mark.parametrize(
    ("match", "found"),
    [
        ("a", [1]),
        (["tag", "Glob", "a*"], [1, 2]),
        (["tag", "Glob", "*"], [1, 2, 3]),
        (["node", "Eq", "n2"], [2]),
        (["key", "Glob", "*"], [1]),
        (["key", "Eq", "nothing"], []),
    ],
)
def test_a_match_is_applied_at_read_time(match: Any, found: list[int]) -> None:
    topic, shelf = labelled()
    answer = look(topic, shelf, match=match)
    assert seqs(answer) == found
    assert answer["next_from_seq"] == 5
    assert parse_match(match)


def test_a_filter_that_matches_nothing_stops_after_a_bounded_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shard_worker.core.reading.READ_SCAN_MAX_RECORDS", 20)
    topic, shelf = make_topic(), RecordShelf()
    for _ in range(10):
        shelf.append(topic, [{"data": 1, "tag": "x"}] * 8)
    answer = look(topic, shelf, match="nothing")
    assert answer["records"] == []
    assert answer["next_from_seq"] == 24, "at the end of the piece in which the bound was passed"
    assert answer["caught_up"] is False
    assert look(topic, shelf, 72, match="nothing")["caught_up"] is True


# --- what was lost ----------------------------------------------------------------------------------------


def test_deleted_records_are_skipped_silently() -> None:
    topic, shelf = filled()
    topic.apply_remove([2, 3, 7], shelf)
    answer = look(topic, shelf)
    assert seqs(answer) == [1, 4, 5, 6, 8, 9, 10]
    assert answer["tombstone"] is None
    topic.apply_delete(10, 5, None, shelf)
    answer = look(topic, shelf)
    assert (seqs(answer), answer["tombstone"], answer["earliest_seq"]) == ([5, 6, 8, 9, 10], None, 5)


@pytest.mark.parametrize("reason", ["cap", "ttl", "mixed"])
def test_a_reader_below_the_floor_gets_a_tombstone_of_exactly_what_was_lost(reason: str) -> None:
    topic, shelf = filled()
    topic.apply_floor(5, reason, shelf)
    answer = look(topic, shelf, 1)
    assert answer["tombstone"] == {
        "gap_from": 2,
        "gap_to": 4,
        "reason": reason,
        "missed_estimate": 3,
        "earliest_seq": 5,
        "head_seq": 10,
    }
    assert seqs(answer) == [5, 6, 7, 8, 9, 10]
    assert look(topic, shelf, 3)["tombstone"]["gap_from"] == 4
    assert look(topic, shelf, 4)["tombstone"] is None


def test_two_floors_a_purposeful_delete_above_an_eviction_is_not_reported() -> None:
    topic, shelf = filled()
    topic.apply_floor(4, "cap", shelf)
    topic.apply_delete(10, 8, None, shelf)
    answer = look(topic, shelf)
    assert (answer["tombstone"]["gap_from"], answer["tombstone"]["gap_to"]) == (1, 3)
    assert answer["earliest_seq"] == answer["tombstone"]["earliest_seq"] == 8
    assert seqs(answer) == [8, 9, 10]
    assert look(topic, shelf, 3)["tombstone"] is None
    assert seqs(look(topic, shelf, 3)) == [8, 9, 10]


def test_an_eviction_of_everything_is_told_and_the_reader_is_caught_up() -> None:
    topic, shelf = filled()
    topic.apply_floor(11, "ttl", shelf)
    answer = look(topic, shelf)
    assert (answer["records"], answer["next_from_seq"], answer["caught_up"]) == ([], 10, True)
    assert (answer["tombstone"]["gap_to"], answer["earliest_seq"]) == (10, 11)
    assert look(topic, shelf, 10)["tombstone"] is None


def test_a_reader_from_an_older_life_of_the_topic_starts_over() -> None:
    topic, shelf = filled(3)
    answer = look(topic, shelf, 50)
    assert answer["tombstone"]["reason"] == "recreated"
    assert (answer["tombstone"]["gap_from"], answer["tombstone"]["gap_to"]) == (1, 3)
    assert seqs(answer) == [1, 2, 3]


def test_records_that_have_expired_but_were_not_swept_are_not_delivered() -> None:
    topic, shelf = filled(10, ttl_ms=100)
    floor = topic.expired_floor(1000 + 6 + 100, shelf)
    assert floor == 6, "strictly older"
    answer = look(topic, shelf, 2, floor=floor)
    assert seqs(answer) == [6, 7, 8, 9, 10]
    assert (answer["tombstone"]["gap_from"], answer["tombstone"]["gap_to"]) == (3, 5)
    assert answer["tombstone"]["reason"] == "ttl"
    assert answer["earliest_seq"] == 6
    topic.apply_floor(3, "cap", shelf)
    assert look(topic, shelf, 0, floor=floor)["tombstone"]["reason"] == "mixed"


def with_hole(first: int, last: int, reason: str = "mixed", behind: int = 3) -> tuple[Topic, RecordShelf]:
    topic, shelf = filled(first - 1)
    topic.apply_hole(Hole(first, last, reason))
    for number in range(behind):
        shelf.append(topic, [{"data": last + 1 + number}], ts=5000)
    return topic, shelf


@pytest.mark.parametrize("reason", ["mixed", "source_trim"])
def test_a_read_ends_in_front_of_a_hole_and_the_next_one_is_told(reason: str) -> None:
    topic, shelf = with_hole(4, 6, reason)
    first = look(topic, shelf)
    assert (seqs(first), first["next_from_seq"], first["tombstone"]) == ([1, 2, 3], 3, None)
    second = look(topic, shelf, 3)
    assert seqs(second) == [7, 8, 9]
    tombstone = second["tombstone"]
    assert (tombstone["gap_from"], tombstone["gap_to"], tombstone["reason"]) == (4, 6, reason)
    inside = look(topic, shelf, 5)
    assert (inside["tombstone"]["gap_from"], inside["tombstone"]["gap_to"]) == (6, 6)
    assert look(topic, shelf, 6)["tombstone"] is None


def test_a_hole_at_the_end_is_told_before_anything_comes_behind_it() -> None:
    topic, shelf = with_hole(4, 6, behind=0)
    answer = look(topic, shelf, 3)
    assert (answer["records"], answer["next_from_seq"], answer["caught_up"]) == ([], 6, True)
    assert answer["tombstone"]["gap_to"] == 6


def test_several_holes_are_told_one_per_read() -> None:
    topic, shelf = with_hole(4, 6)
    topic.apply_hole(Hole(10, 12, "mixed"))
    shelf.append(topic, [{"data": 13}], ts=6000)
    told = []
    found: list[int] = []
    cursor = 0
    for _ in range(3):
        answer = look(topic, shelf, cursor)
        found += seqs(answer)
        cursor = answer["next_from_seq"]
        if answer["tombstone"]:
            told.append((answer["tombstone"]["gap_from"], answer["tombstone"]["gap_to"]))
    assert told == [(4, 6), (10, 12)]
    assert found == [1, 2, 3, 7, 8, 9, 13]
    assert cursor == 13


def test_a_hole_below_the_floor_is_part_of_what_the_floor_tells() -> None:
    topic, shelf = with_hole(4, 6)
    topic.apply_floor(8, "cap", shelf)
    answer = look(topic, shelf)
    assert (answer["tombstone"]["gap_from"], answer["tombstone"]["gap_to"]) == (1, 7)
    assert seqs(answer) == [8, 9]


def test_nothing_behind_upto_is_shown_and_the_cursor_waits_there() -> None:
    topic, shelf = filled()

    def upto(from_seq: int, last: int) -> ReadResult:
        return read(topic, from_seq, PLAIN_VIEW, topic.floor, shelf, extents=False, upto=last)

    assert (upto(0, 4).delivered, upto(0, 4).next_from) == (4, 4)
    assert (upto(4, 4).delivered, upto(4, 4).next_from) == (0, 4)
    assert (upto(7, 4).delivered, upto(7, 4).next_from) == (0, 7), "never back"
    assert upto(0, 99).delivered == 10
