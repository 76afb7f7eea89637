"""Topics over HTTP on both lanes: create, change, show, list, delete."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from shared.routing import shard_for
from tests.support.api_client import ApiClient, fresh
from tests.support.live_server import LiveServer

DEFAULTS: dict[str, Any] = {
    "type": "log",
    "ttl_ms": 0,
    "cap_records": 0,
    "cap_bytes": 0,
    "discard": "old",
    "durability": "disk",
    "durable": False,
    "priority": None,
    "auto_priority": True,
    "auto_create": True,
    "idempotency_window_ms": 120_000,
    "dedupe_node": True,
    "lease_ms": 30_000,
    "claim_jitter_ms": 0,
    "max_deliveries": 0,
    "dead_letter": None,
    "leases_durable": False,
    "cleanup": "delete",
    "min_compaction_lag_ms": 0,
    "delete_retention_ms": 86_400_000,
}

# --- PUT ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [b"{}", None])
def test_a_topic_is_created_with_all_defaults(client: ApiClient, raw: bytes | None) -> None:
    topic = fresh()
    answer = client.ok("PUT", f"/v0/topics/{topic}", raw=raw, status=201)
    assert answer.keys() == {"topic", "created", "config", "performance"}
    assert (answer["topic"], answer["created"], answer["config"]) == (topic, True, DEFAULTS)


def test_put_is_an_upsert_and_leaves_unnamed_fields_alone(client: ApiClient) -> None:
    topic = fresh()
    client.put(topic, ttl_ms=5000, cap_records=10)
    same = client.ok("PUT", f"/v0/topics/{topic}", {"ttl_ms": 5000})
    assert same["created"] is False
    changed = client.ok("PUT", f"/v0/topics/{topic}", {"cap_records": 20, "priority": 7})
    assert changed["config"] == DEFAULTS | {"ttl_ms": 5000, "cap_records": 20, "priority": 7}
    assert client.state(topic)["config"] == changed["config"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("type", "queue"),
        ("ttl_ms", 1),
        ("cap_records", 3),
        ("cap_bytes", 4096),
        ("discard", "reject"),
        ("durability", "ephemeral"),
        ("durability", "memory"),
        ("priority", -5),
        ("auto_priority", False),
        ("auto_create", False),
        ("idempotency_window_ms", 0),
        ("dedupe_node", False),
        ("lease_ms", 200),
        ("claim_jitter_ms", 10),
        ("max_deliveries", 4),
        ("dead_letter", "dead"),
        ("leases_durable", True),
        ("cleanup", "compact"),
        ("cleanup", "compact,delete"),
        ("min_compaction_lag_ms", 9),
        ("delete_retention_ms", 9),
    ],
)
def test_every_config_field_is_kept_as_given(client: ApiClient, field: str, value: object) -> None:
    topic = fresh()
    assert client.put(topic, **{field: value})["config"] == DEFAULTS | {field: value}
    assert client.state(topic)["config"] == DEFAULTS | {field: value}


@pytest.mark.parametrize(
    ("field", "given", "kept"),
    [
        ("priority", 5000, 1000),
        ("priority", -5000, -1000),
        ("lease_ms", 1, 100),
        ("lease_ms", 10**12, 86_400_000),
        ("claim_jitter_ms", -1, 0),
        ("claim_jitter_ms", 6000, 5000),
    ],
)
def test_clamped_fields_are_clamped_and_not_refused(
    client: ApiClient, field: str, given: int, kept: int
) -> None:
    assert client.put(fresh(), **{field: given})["config"][field] == kept


@pytest.mark.parametrize(
    ("config", "durability"),
    [
        ({"durable": True}, "fsync"),
        ({"durable": False}, "disk"),
        ({"durable": True, "durability": "memory"}, "memory"),
        ({"durable": False, "durability": "fsync"}, "fsync"),
    ],
)
def test_durable_is_a_shorthand_and_an_explicit_durability_wins(
    client: ApiClient, config: dict[str, object], durability: str
) -> None:
    kept = client.put(fresh(), **config)["config"]
    assert (kept["durability"], kept["durable"]) == (durability, durability == "fsync")


def test_the_durability_changes_in_place(client: ApiClient) -> None:
    topic = fresh()
    client.append(topic, "before")
    for durability in ("fsync", "memory", "ephemeral", "disk"):
        client.put(topic, durability=durability)
        client.append(topic, durability)
    assert client.values(topic) == ["before", "fsync", "memory", "ephemeral", "disk"]


def test_the_type_never_changes(client: ApiClient) -> None:
    topic = fresh()
    client.put(topic, type="queue")
    error = client.fails(409, "topic_exists_incompatible", "PUT", f"/v0/topics/{topic}", {"type": "log"})
    assert error["detail"]["topic"] == topic
    assert client.ok("PUT", f"/v0/topics/{topic}", {"type": "queue", "ttl_ms": 4})["config"]["ttl_ms"] == 4


@pytest.mark.parametrize(
    "config",
    [
        {"unknown": 1},
        {"ttl": 1},
        {"type": "stream"},
        {"ttl_ms": -1},
        {"ttl_ms": 1.5},
        {"ttl_ms": "1"},
        {"ttl_ms": None},
        {"ttl_ms": 2**64},
        {"cap_records": True},
        {"discard": "new"},
        {"durability": "tape"},
        {"durable": 1},
        {"priority": "high"},
        {"dead_letter": "no/name"},
        {"cleanup": "delete,compact"},
    ],
)
def test_unknown_config_fields_and_wrong_values_are_refused_and_create_nothing(
    client: ApiClient, config: dict[str, object]
) -> None:
    topic = fresh()
    client.fails(400, "invalid_request", "PUT", f"/v0/topics/{topic}", config)
    client.fails(404, "topic_not_found", "GET", f"/v0/topics/{topic}")


def test_a_topic_is_not_its_own_dead_letter(client: ApiClient) -> None:
    topic = fresh()
    client.fails(400, "invalid_request", "PUT", f"/v0/topics/{topic}", {"dead_letter": topic})


@pytest.mark.parametrize("raw", [b"[]", b"null", b"3", b"{", b"{}x", b'{"ttl_ms":1,}'])
def test_a_config_that_is_not_a_json_object_is_refused(client: ApiClient, raw: bytes) -> None:
    client.fails(400, "invalid_request", "PUT", f"/v0/topics/{fresh()}", raw=raw)


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "0", "A.b_c:d-e", "x" * 255, "CASE", "case"])
def test_valid_names_are_taken_byte_for_byte(client: ApiClient, name: str) -> None:
    name = name if len(name) == 255 else fresh(name)
    assert client.put(name)["topic"] == name
    assert client.state(name)["topic"] == name


def test_a_name_is_percent_decoded_once(client: ApiClient) -> None:
    name = fresh("pct:a.b")
    encoded = name.replace(":", "%3A").replace(".", "%2e").replace("p", "%70")
    assert client.ok("PUT", f"/v0/topics/{encoded}", status=201)["topic"] == name
    assert client.state(name)["topic"] == name
    # Twice-encoded is a name with a percent sign in it, which no name has.
    client.fails(400, "invalid_request", "GET", f"/v0/topics/{name.replace(':', '%253A')}")


@pytest.mark.parametrize(
    "name",
    [
        "-a",
        ".a",
        "_a",
        "x" * 256,
        "a%20b",
        "a%2Fb",
        "%2e%2e%2fa",
        "a%00b",
        "a%0A",
        "%C3%A4",
        "a%FFb",
        "a%",
        "a%zz",
        "a>b",
        "a*",
    ],
)
@pytest.mark.parametrize(("method", "suffix"), [("PUT", ""), ("GET", ""), ("POST", "/diff"), ("DELETE", "")])
def test_invalid_names_are_refused(client: ApiClient, method: str, suffix: str, name: str) -> None:
    client.fails(400, "invalid_request", method, f"/v0/topics/{name}{suffix}")


# --- GET ----------------------------------------------------------------------------------------


def test_the_state_of_an_empty_topic(client: ApiClient) -> None:
    topic = fresh()
    client.put(topic)
    state = client.state(topic)
    assert state.keys() == {
        "topic",
        "type",
        "head_seq",
        "earliest_seq",
        "next_seq",
        "count",
        "bytes",
        "config",
        "effective_priority",
        "last_write_ts",
        "last_read_ts",
        "epoch",
        "shard",
        "performance",
    }
    assert (state["head_seq"], state["earliest_seq"], state["next_seq"]) == (0, 1, 1)
    assert (state["count"], state["bytes"], state["last_write_ts"]) == (0, 0, None)
    assert state["shard"] == shard_for(topic, 3)


def test_the_state_follows_writes_and_deletes(client: ApiClient) -> None:
    topic = fresh()
    before_ms = time.time_ns() // 1_000_000
    client.append(topic, 1, 2, 3)
    state = client.state(topic)
    assert (state["head_seq"], state["earliest_seq"], state["next_seq"], state["count"]) == (3, 1, 4, 3)
    assert before_ms <= state["last_write_ts"] <= time.time_ns() // 1_000_000
    assert state["bytes"] > 0
    client.delete_records(topic, before_seq=3)
    after = client.state(topic)
    assert (after["head_seq"], after["earliest_seq"], after["count"]) == (3, 3, 1)
    assert 0 < after["bytes"] < state["bytes"]


def test_asking_for_the_state_counts_as_a_read_unless_told_otherwise(client: ApiClient) -> None:
    topic = fresh()
    client.put(topic, priority=10)
    untouched = client.ok("GET", f"/v0/topics/{topic}?touch=false")
    assert (untouched["last_read_ts"], untouched["effective_priority"]) == (None, 10)
    assert client.ok("GET", f"/v0/topics/{topic}?touch=false")["last_read_ts"] is None
    assert client.ok("GET", f"/v0/topics/{topic}?touch=true")["last_read_ts"] is not None
    assert client.state(topic)["effective_priority"] > 10
    client.put(topic, auto_priority=False)
    assert client.state(topic)["effective_priority"] == 10
    client.fails(400, "invalid_request", "GET", f"/v0/topics/{topic}?touch=maybe")


def test_a_read_counts_as_a_read(client: ApiClient) -> None:
    topic = fresh()
    client.append(topic, 1)
    client.diff(topic)
    assert client.ok("GET", f"/v0/topics/{topic}?touch=false")["last_read_ts"] is not None


def test_a_queue_is_a_topic_and_tells_its_type(client: ApiClient) -> None:
    topic = fresh()
    client.put(topic, type="queue")
    client.append(topic, 1)
    assert client.state(topic)["type"] == "queue"
    assert client.values(topic) == [1]


@pytest.mark.parametrize(
    ("method", "suffix", "body"),
    [
        ("GET", "", None),
        ("GET", "/records", None),
        ("POST", "/diff", {}),
        ("POST", "/delete", {"before_seq": 1}),
        ("POST", "", {"records": [{"data": 1}], "create": False}),
    ],
)
def test_an_absent_topic_is_404_with_its_name(
    client: ApiClient, method: str, suffix: str, body: object
) -> None:
    topic = fresh()
    error = client.fails(404, "topic_not_found", method, f"/v0/topics/{topic}{suffix}", body)
    assert error["detail"] == {"topic": topic}


# --- the list -----------------------------------------------------------------------------------


def names_of(page: dict[str, Any]) -> list[str]:
    return [entry["topic"] for entry in page["topics"]]


def test_the_list_is_in_name_order_across_shards_and_narrowed_by_prefix(client: ApiClient) -> None:
    base = fresh("list")
    names = [f"{base}:{letter}{n}" for n in range(12) for letter in "bAc"]
    assert {shard_for(name, 3) for name in names} == {0, 1, 2}
    for name in names:
        client.put(name)
    page = client.ok("GET", f"/v0/topics?prefix={base}:")
    assert names_of(page) == sorted(names)
    assert "next_cursor" not in page
    assert names_of(client.ok("GET", f"/v0/topics?prefix={base}:b")) == sorted(
        name for name in names if ":b" in name
    )
    assert names_of(client.ok("GET", f"/v0/topics?prefix={base}:none")) == []


def test_pages_of_any_size_join_to_the_whole_list(client: ApiClient) -> None:
    base = fresh("pages")
    names = sorted(f"{base}:{n}" for n in range(17))
    for name in names:
        client.put(name)
    for page_size in (1, 2, 5, 16, 17, 18, 1000):
        found: list[str] = []
        query = f"prefix={base}:&page_size={page_size}"
        while True:
            page = client.ok("GET", f"/v0/topics?{query}")
            assert len(page["topics"]) <= page_size
            found += names_of(page)
            if "next_cursor" not in page:
                break
            query = f"prefix={base}:&page_size={page_size}&cursor={page['next_cursor']}"
        assert found == names


def test_a_cursor_stays_good_while_topics_come_and_go(client: ApiClient) -> None:
    base = fresh("moving")
    names = [f"{base}:{letter}" for letter in "bdfh"]
    for name in names:
        client.put(name)
    first = client.ok("GET", f"/v0/topics?prefix={base}:&page_size=2")
    assert names_of(first) == names[:2]
    client.ok("DELETE", f"/v0/topics/{names[1]}")  # the one the cursor stands at
    client.put(f"{base}:a")  # in front of it
    client.put(f"{base}:e")  # behind it
    rest = client.ok("GET", f"/v0/topics?prefix={base}:&page_size=9&cursor={first['next_cursor']}")
    assert names_of(rest) == [f"{base}:e", f"{base}:f", f"{base}:h"]


def test_a_list_entry_tells_the_outline_of_its_topic(client: ApiClient) -> None:
    topic = fresh("outline")
    client.put(topic, durable=True, priority=3, auto_priority=False)
    client.append(topic, 1, 2)
    (entry,) = client.ok("GET", f"/v0/topics?prefix={topic}")["topics"]
    assert entry.pop("bytes") == client.state(topic)["bytes"]
    assert entry == {
        "topic": topic,
        "type": "log",
        "head_seq": 2,
        "earliest_seq": 1,
        "count": 2,
        "durable": True,
        "effective_priority": 3,
    }


def test_the_default_page_has_100_entries_and_a_larger_size_is_clamped(client: ApiClient) -> None:
    base = fresh("hundred")
    for n in range(101):
        client.put(f"{base}:{n:03}")
    page = client.ok("GET", f"/v0/topics?prefix={base}:")
    assert len(page["topics"]) == 100 and page["next_cursor"]
    assert len(client.ok("GET", f"/v0/topics?prefix={base}:&page_size=100000")["topics"]) == 101


@pytest.mark.parametrize(
    "query",
    [
        "page_size=0",
        "page_size=-1",
        "page_size=x",
        "page_size=",
        "cursor=!!!",
        "cursor=AAAA",
        "cursor=" + "A" * 500,
        "cursor=%ff",
        "prefix=%zz",
    ],
)
def test_a_bad_page_size_or_a_corrupt_cursor_is_refused(client: ApiClient, query: str) -> None:
    client.fails(400, "invalid_request", "GET", f"/v0/topics?{query}")


def test_a_cursor_with_one_changed_character_is_corrupt(client: ApiClient) -> None:
    base = fresh("cursor")
    for n in range(2):
        client.put(f"{base}:{n}")
    cursor = client.ok("GET", f"/v0/topics?prefix={base}&page_size=1")["next_cursor"]
    for place in range(len(cursor) - 1):
        changed = cursor[:place] + ("A" if cursor[place] != "A" else "B") + cursor[place + 1 :]
        client.fails(400, "invalid_request", "GET", f"/v0/topics?cursor={changed}")


# --- DELETE -------------------------------------------------------------------------------------


def test_deleting_twice_is_fine(client: ApiClient) -> None:
    topic = fresh()
    client.append(topic, 1)
    answer = client.ok("DELETE", f"/v0/topics/{topic}")
    assert answer.keys() == {"topic", "deleted", "routers_removed", "performance"}
    assert (answer["topic"], answer["deleted"], answer["routers_removed"]) == (topic, True, [])
    assert client.ok("DELETE", f"/v0/topics/{topic}")["deleted"] is False
    client.fails(404, "topic_not_found", "GET", f"/v0/topics/{topic}")
    assert names_of(client.ok("GET", f"/v0/topics?prefix={topic}")) == []


def test_if_empty_protects_records(client: ApiClient) -> None:
    topic = fresh()
    client.append(topic, 1)
    client.fails(409, "topic_not_empty", "DELETE", f"/v0/topics/{topic}?if_empty=true")
    assert client.values(topic) == [1]
    client.delete_records(topic, before_seq=2)
    assert client.ok("DELETE", f"/v0/topics/{topic}?if_empty=true")["deleted"] is True
    assert client.ok("DELETE", f"/v0/topics/{topic}?if_empty=true")["deleted"] is False
    client.fails(400, "invalid_request", "DELETE", f"/v0/topics/{topic}?if_empty=perhaps")


def test_if_empty_counts_what_has_expired_as_gone(client: ApiClient) -> None:
    topic = fresh()
    client.put(topic, ttl_ms=1)
    client.append(topic, 1)
    deadline = time.monotonic() + 5
    while client.send("DELETE", f"/v0/topics/{topic}?if_empty=true").status_code == 409:
        assert time.monotonic() < deadline


def test_a_recreated_topic_starts_a_new_epoch_at_seq_1_and_readers_are_told(client: ApiClient) -> None:
    topic = fresh()
    client.append(topic, "a", "b", "c")
    first = client.state(topic)
    client.ok("DELETE", f"/v0/topics/{topic}")
    assert client.append(topic, "new")["first_seq"] == 1
    second = client.state(topic)
    assert second["epoch"] > first["epoch"]
    answer = client.diff(topic, from_seq=3)
    assert answer["tombstone"] == {
        "gap_from": 1,
        "gap_to": 1,
        "reason": "recreated",
        "missed_estimate": 1,
        "earliest_seq": 1,
        "head_seq": 1,
    }
    assert [record["data"] for record in answer["records"]] == ["new"]
    assert client.diff(topic, from_seq=answer["next_from_seq"])["tombstone"] is None


def test_a_recreated_topic_has_default_config_and_forgets_idempotency_keys(client: ApiClient) -> None:
    topic = fresh()
    client.put(topic, cap_records=1)
    client.append(topic, "old", idempotency_key="k")
    client.ok("DELETE", f"/v0/topics/{topic}")
    assert client.append(topic, "new", idempotency_key="k")["deduped"] is False
    assert client.state(topic)["config"] == DEFAULTS
    assert client.values(topic) == ["new"]


def test_an_unchanged_config_is_answered_while_a_sync_runs(server: LiveServer) -> None:
    name = fresh("t")
    with server.client() as writer, server.client() as other, ThreadPoolExecutor(1) as pool:
        other.put(name, durability="fsync")
        for number in range(200):
            written = pool.submit(writer.write, name, {"data": number})
            other.put(name, durability="fsync")
            written.result()
