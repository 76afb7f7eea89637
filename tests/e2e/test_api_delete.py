"""Deleting records over HTTP on both lanes: permanent, silent, bounded by the head at the call."""

from __future__ import annotations

import pytest

from tests.support.api_client import ApiClient, fresh
from tests.support.live_server import LiveServer


def seqs(client: ApiClient, topic: str) -> list[int]:
    return [record["$seq"] for record in client.diff(topic)["records"]]


def test_before_seq_is_exclusive_and_silent(client: ApiClient) -> None:
    topic = fresh()
    client.append(topic, *range(1, 6))
    answer = client.delete_records(topic, before_seq=3)
    del answer["performance"]
    size = answer.pop("bytes")
    assert answer == {"topic": topic, "deleted": 2, "earliest_seq": 3, "head_seq": 5, "count": 3}
    assert size == client.state(topic)["bytes"]
    page = client.diff(topic)
    assert [record["$seq"] for record in page["records"]] == [3, 4, 5]
    assert page["tombstone"] is None, "what somebody asked for is never reported as a loss"
    assert client.delete_records(topic, before_seq=3)["deleted"] == 0


def test_before_seq_beyond_the_head_spares_later_records(client: ApiClient) -> None:
    topic = fresh()
    client.append(topic, 1, 2)
    assert client.delete_records(topic, before_seq=10**15)["deleted"] == 2
    state = client.state(topic)
    assert (state["head_seq"], state["earliest_seq"], state["count"], state["bytes"]) == (2, 3, 0, 0)
    assert client.append(topic, 3)["first_seq"] == 3
    assert seqs(client, topic) == [3]
    assert client.diff(topic)["tombstone"] is None


RECORDS = [
    {"data": 1, "tag": "a"},
    {"data": 2, "tag": "ab", "key": "k1"},
    {"data": 3, "tag": "b", "node": "n1"},
    {"data": 4, "tag": "a", "key": "k2"},
    {"data": 5, "node": "n2"},
    {"data": 6, "key": "k1", "node": "n1"},
]


@pytest.mark.parametrize(
    ("request_body", "left"),
    [
        ({"match": "a"}, [2, 3, 5, 6]),
        ({"match": ["tag", "Eq", "a"]}, [2, 3, 5, 6]),
        ({"match": ["tag", "Glob", "a*"]}, [3, 5, 6]),
        ({"match": ["tag", "Glob", "*"]}, [5, 6]),
        ({"match": ["key", "Eq", "k1"]}, [1, 3, 4, 5]),
        ({"match": ["key", "Glob", "k*"]}, [1, 3, 5]),
        ({"match": ["node", "Eq", "n1"]}, [1, 2, 4, 5]),
        ({"match": ["node", "Glob", "n*"]}, [1, 2, 4]),
        ({"match": "none"}, [1, 2, 3, 4, 5, 6]),
        ({"match": ["tag", "Glob", "a*"], "before_seq": 3}, [3, 4, 5, 6]),
        ({"match": "a", "before_seq": 1}, [1, 2, 3, 4, 5, 6]),
        ({"before_seq": 0}, [1, 2, 3, 4, 5, 6]),
    ],
)
@pytest.mark.parametrize("batches", [1, 6])
def test_what_matches_is_gone_for_every_reader(
    client: ApiClient, request_body: dict[str, object], left: list[int], batches: int
) -> None:
    topic = fresh()
    if batches == 1:
        client.write(topic, *RECORDS)
    else:
        for record in RECORDS:
            client.write(topic, record)
    answer = client.delete_records(topic, **request_body)
    assert (answer["deleted"], answer["count"]) == (6 - len(left), len(left))
    assert answer["earliest_seq"] == left[0]
    assert seqs(client, topic) == left
    page = client.diff(topic)
    assert (page["next_from_seq"], page["caught_up"], page["tombstone"]) == (6, True, None)
    assert client.delete_records(topic, **request_body)["deleted"] == 0
    # Later records that match as well are untouched.
    client.write(topic, {"data": 7, "tag": "a", "key": "k1", "node": "n1"})
    assert seqs(client, topic) == [*left, 7]


def test_deleting_in_between_leaves_a_silent_gap(client: ApiClient) -> None:
    topic = fresh()
    client.write(topic, *({"data": n, "tag": "odd" if n % 2 else "even"} for n in range(1, 101)))
    assert client.delete_records(topic, match="odd")["deleted"] == 50
    page = client.diff(topic, from_seq=2, limit=3)
    assert [record["$seq"] for record in page["records"]] == [4, 6, 8]
    assert page["tombstone"] is None
    assert client.diff(topic, from_seq=98)["next_from_seq"] == 100


def test_a_cap_behind_a_delete_tells_only_what_was_lost(client: ApiClient) -> None:
    topic = fresh()
    client.append(topic, *range(1, 11))
    client.delete_records(topic, before_seq=4)
    assert client.diff(topic)["tombstone"] is None
    client.put(topic, cap_records=2)
    page = client.diff(topic)
    assert [record["$seq"] for record in page["records"]] == [9, 10]
    assert page["tombstone"]["reason"] == "cap"
    assert page["tombstone"]["gap_to"] == 8


@pytest.mark.parametrize(
    "request_body",
    [
        {},
        {"before_seq": None},
        {"before_seq": -1},
        {"before_seq": "5"},
        {"before_seq": 2**64},
        {"match": ["tag", "Glob", "a"]},
        {"match": ["tag", "Glob", "*a"]},
        {"match": ["data", "Eq", "a"]},
        {"match": ["tag", "Ne", "a"]},
        {"match": ["tag", "Eq"]},
        {"match": 5},
        [],
    ],
)
def test_a_malformed_delete_is_refused_and_removes_nothing(client: ApiClient, request_body: object) -> None:
    topic = fresh()
    client.append(topic, 1, 2)
    client.fails(400, "invalid_request", "POST", f"/v0/topics/{topic}/delete", request_body)
    client.fails(400, "invalid_request", "POST", f"/v0/topics/{topic}/delete")
    assert client.state(topic)["count"] == 2


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_delete_waits_for_the_sync_only_where_the_class_asks(client: ApiClient, durability: str) -> None:
    topic = fresh()
    client.put(topic, durability=durability)
    client.write(topic, {"data": 1, "tag": "x"}, {"data": 2})
    answer = client.delete_records(topic, match="x")
    assert (answer["performance"].get("fsync_ms", 0) > 0) is (durability == "fsync")
    assert client.values(topic) == [2]


def test_deletes_survive_a_restart_of_their_worker(server: LiveServer, plain_client: ApiClient) -> None:
    """The other shards go on meanwhile; here only the outcome counts."""
    topic = fresh()
    client = plain_client
    client.put(topic, durable=True)
    client.write(topic, *RECORDS)
    client.delete_records(topic, match=["tag", "Glob", "a*"])
    client.delete_records(topic, before_seq=4)
    shard = client.state(topic)["shard"]
    before = sum(1 for e in server.log if (e["event"], e.get("child")) == ("child.ready", f"shard-{shard}"))
    server.kill_child(f"shard-{shard}")
    server.wait_child_ready(f"shard-{shard}", count=before + 1)
    server.wait_serving()
    assert seqs(client, topic) == [5, 6]
    assert client.diff(topic)["tombstone"] is None
