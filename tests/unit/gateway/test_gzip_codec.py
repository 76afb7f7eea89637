"""Content-Encoding both ways."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest

from gateway.core.gzip_codec import MIN_COMPRESSED_BYTES, compress, decode_body, wants_gzip
from shared.errors import InvalidRequest, PayloadTooLarge, UnsupportedMediaType
from shared.wire import Answer
from tests.unit.gateway.api_harness import ApiHarness, ScriptedShards, error_code, header

BODY = b'{"records":[{"data":1}]}'


@pytest.mark.parametrize("encoding", [None, "", "identity", "Identity"])
def test_a_plain_body_stays_as_it_is(encoding: str | None) -> None:
    assert decode_body(BODY, encoding, 10) == BODY


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", " x-gzip "])
def test_gzip_is_taken_off(encoding: str) -> None:
    assert decode_body(gzip.compress(BODY), encoding, len(BODY)) == BODY


def test_several_members_are_one_body() -> None:
    assert decode_body(gzip.compress(b"ab") + gzip.compress(b"") + gzip.compress(b"cd"), "gzip", 4) == b"abcd"


@pytest.mark.parametrize("encoding", ["deflate", "br", "gzip, gzip", "zstd", "*"])
def test_other_encodings_are_415(encoding: str) -> None:
    with pytest.raises(UnsupportedMediaType):
        decode_body(BODY, encoding, 100)


GOOD = gzip.compress(BODY * 50, mtime=0)


@pytest.mark.parametrize(
    "body",
    [b"not gzip", GOOD[:-1], GOOD[:20], GOOD[:5], GOOD + b"junk", GOOD[:-8] + bytes(8), b"\x1f"],
)
def test_corrupt_gzip_is_400(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_body(body, "gzip", 10_000)


def test_the_limit_is_exact() -> None:
    assert len(decode_body(gzip.compress(b"x" * 1000), "gzip", 1000)) == 1000
    with pytest.raises(PayloadTooLarge):
        decode_body(gzip.compress(b"x" * 1001), "gzip", 1000)
    with pytest.raises(PayloadTooLarge):
        decode_body(gzip.compress(b"x" * 600) * 2, "gzip", 1000)


def test_h03_a_gzip_bomb_is_413_and_never_inflated() -> None:
    bomb = gzip.compress(bytes(50_000_000), 9)
    tracemalloc.start()
    try:
        with pytest.raises(PayloadTooLarge):
            decode_body(bomb, "gzip", 100_000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (None, False), ("", False), ("gzip", True), ("GZIP", True), ("x-gzip", True),
        ("deflate, gzip;q=0.5", True), ("gzip;q=0", False), ("gzip; q=0.0", False), ("gzip;q=bad", False),
        ("br, deflate", False), ("*", False), ("identity", False), ("notgzip", False), ("gzip;level=1", True),
    ],
)  # fmt: skip
def test_gzip_is_sent_only_to_those_who_ask(accept: str | None, wanted: bool) -> None:
    assert wants_gzip(accept) is wanted


def test_what_is_compressed_comes_back() -> None:
    assert gzip.decompress(compress(BODY * 100)) == BODY * 100


def test_the_api_takes_gzip_off_before_the_worker_sees_the_body() -> None:
    harness = ApiHarness()
    harness.call("POST", "/v0/topics/t", gzip.compress(BODY), {"content-encoding": "gzip"})
    assert harness.shards.asked[0].body == BODY
    for body, encoding, code in (
        (b"junk", "gzip", "invalid_request"),
        (BODY, "br", "unsupported_media_type"),
        (gzip.compress(bytes(3_000), mtime=0), "gzip", "payload_too_large"),
    ):
        small = ApiHarness(max_body_bytes="2000")
        response = small.call("POST", "/v0/topics/t", body, {"content-encoding": encoding})
        assert error_code(response) == code


def test_large_answers_are_compressed_when_asked_for_and_small_ones_never() -> None:
    big = b'{"topic":"t","records":[' + b"1," * MIN_COMPRESSED_BYTES + b"1]"
    harness = ApiHarness(ScriptedShards(lambda request: Answer(1, 200, big)))
    asking = {"accept-encoding": "gzip"}
    response = harness.call("GET", "/v0/topics/t", headers=asking)
    assert header(response, "Content-Encoding") == "gzip"
    assert gzip.decompress(response.body).startswith(big)
    assert header(harness.call("GET", "/v0/topics/t"), "Content-Encoding") is None
    assert header(ApiHarness().call("GET", "/v0/topics/t", headers=asking), "Content-Encoding") is None
