from __future__ import annotations

import json

import pytest

from shared.errors import (
    BadSetting,
    BatchTooLarge,
    Bug,
    CallerError,
    CorruptFrame,
    CorruptManifest,
    CorruptSegment,
    CorruptSnapshot,
    DataDamage,
    DiskFault,
    Forbidden,
    FormatTooNew,
    Internal,
    InvalidRequest,
    MethodNotAllowed,
    NotAcceptable,
    NotAQueue,
    NotFound,
    NotReady,
    PayloadTooLarge,
    ReadOnlyShard,
    RecordTooLarge,
    Retry,
    RouterCycle,
    RouterNotFound,
    ShardUnavailable,
    ShuttingDown,
    Throttled,
    TopicExistsIncompatible,
    TopicFull,
    TopicNotEmpty,
    TopicNotFound,
    TopicsError,
    TornTail,
    Unauthorized,
    Unavailable,
    UnsupportedMediaType,
)

CONTRACT: list[tuple[int, str, TopicsError]] = [
    (400, "invalid_request", InvalidRequest("no")),
    (400, "batch_too_large", BatchTooLarge(what="records", count=10001, max=10000)),
    (400, "record_too_large", RecordTooLarge("no")),
    (401, "unauthorized", Unauthorized()),
    (403, "forbidden", Forbidden("no")),
    (404, "topic_not_found", TopicNotFound(topic="t")),
    (404, "router_not_found", RouterNotFound(router="r")),
    (404, "not_found", NotFound()),
    (405, "method_not_allowed", MethodNotAllowed(allow=["GET", "PUT"])),
    (406, "not_acceptable", NotAcceptable()),
    (409, "router_cycle", RouterCycle(cycle=["a", "b", "a"])),
    (409, "topic_exists_incompatible", TopicExistsIncompatible("no")),
    (409, "topic_not_empty", TopicNotEmpty(topic="t", count=3)),
    (409, "not_a_queue", NotAQueue(topic="t")),
    (413, "payload_too_large", PayloadTooLarge(max_bytes=5)),
    (415, "unsupported_media_type", UnsupportedMediaType()),
    (422, "topic_full", TopicFull(topic="t")),
    (429, "throttled", Throttled(retry_after_ms=50)),
    (429, "throttled", Throttled(limit="max_topics", max=10)),
    (500, "internal", Internal("KeyError in /srv/x.py")),
    (503, "not_ready", NotReady(replay_progress=0.5)),
    (503, "shutting_down", ShuttingDown()),
    (503, "shard_unavailable", ShardUnavailable(shard=1, reason="restarting")),
    (503, "shard_unavailable", ReadOnlyShard(shard=1, free_bytes=5, min_free_bytes=64)),
    (503, "shard_unavailable", DiskFault(path="/srv/wal", operation="fdatasync", reason="EIO")),
]
DAMAGE = [TornTail, CorruptFrame, CorruptSegment, CorruptSnapshot, CorruptManifest]


def body(error: TopicsError) -> dict[str, object]:
    decoded = json.loads(error.to_json_body())
    assert list(decoded) == ["error"]
    inner = decoded["error"]
    assert isinstance(inner, dict)
    assert list(inner) in (["code", "message"], ["code", "message", "detail"])
    return inner


@pytest.mark.parametrize(("status", "code", "error"), CONTRACT)
def test_every_contract_code_has_its_status_and_body(status: int, code: str, error: TopicsError) -> None:
    assert body(error)["code"] == code
    assert error.to_wire() == (status, error.to_json_body(), error.retry_after_ms)


@pytest.mark.parametrize(("status", "error"), [(status, error) for status, _, error in CONTRACT])
def test_retry_after_goes_with_429_and_503_only(status: int, error: TopicsError) -> None:
    assert (error.retry_after_ms is not None) == (status in (429, 503))


def concrete(family: type[TopicsError]) -> list[type[TopicsError]]:
    below = [leaf for child in family.__subclasses__() for leaf in concrete(child)]
    return below or [family]


def test_every_concrete_error_is_complete_and_in_one_of_four_families() -> None:
    assert set(TopicsError.__subclasses__()) == {CallerError, Unavailable, DataDamage, Bug}
    for kind in concrete(TopicsError):
        assert kind.code.replace("_", "").isalpha()
        assert 400 <= kind.status_hint <= 599
        assert isinstance(kind.retry, Retry)


def test_body_is_exact_bytes() -> None:
    assert TopicNotFound(topic="t").to_json_body() == (
        b'{"error":{"code":"topic_not_found","message":"topic t does not exist","detail":{"topic":"t"}}}'
    )
    assert InvalidRequest("no").to_json_body() == b'{"error":{"code":"invalid_request","message":"no"}}'


def test_a_message_with_lone_surrogates_still_has_a_json_body() -> None:
    assert body(InvalidRequest("bad \ud800 name"))["message"] == "bad \ud800 name"


def test_throttled_tells_pressure_from_a_cap() -> None:
    assert body(Throttled(retry_after_ms=50))["detail"] == {"retry_after_ms": 50}
    assert body(Throttled(limit="max_topics", max=10))["detail"] == {"limit": "max_topics", "max": 10}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_tells_operators_where_and_clients_only_what(kind: type[DataDamage]) -> None:
    error = kind(path="/srv/d/7.wal", offset=4096, reason="checksum", topic="t", first_seq=3, last_seq=9)
    assert str(error) == f"{kind.code}: /srv/d/7.wal at byte 4096: checksum (topic t, seqs 3..9)"
    assert error.detail == {
        "path": "/srv/d/7.wal", "offset": 4096, "topic": "t", "first_seq": 3, "last_seq": 9,
    }  # fmt: skip
    public = body(error)
    assert public["code"] == "internal"
    assert public["detail"] == {"reason": kind.code}
    assert b"/srv" not in error.to_json_body()


def test_torn_and_corrupt_are_different_types() -> None:
    assert not issubclass(TornTail, CorruptFrame)
    assert not issubclass(CorruptFrame, TornTail)


def test_a_newer_format_names_the_version_that_is_needed() -> None:
    error = FormatTooNew(path="/srv/x.seg", needed_version=7, supported_version=3)
    assert error.needed_version == 7
    assert "version 7" in str(error)


@pytest.mark.parametrize(
    "error",
    [
        Internal("KeyError in /srv/app.py line 3"),
        DiskFault(path="/srv/wal/1", operation="fdatasync", reason="EIO"),
    ],
)
def test_internals_stay_in_the_log(error: TopicsError) -> None:
    assert "/srv" in str(error)
    assert b"/srv" not in error.to_json_body()


def test_a_read_only_shard_says_why_and_what_to_do() -> None:
    message = body(ReadOnlyShard(shard=2, free_bytes=None, min_free_bytes=64))["message"]
    assert isinstance(message, str)
    assert "disk is full" in message
    assert "free some space" in message


def test_bad_setting_names_key_and_source() -> None:
    error = BadSetting(key="TOPICS_PORT", source="environment", message="must be a number")
    assert str(error) == "TOPICS_PORT (environment): must be a number"
