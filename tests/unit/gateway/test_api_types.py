"""Request bodies and topic configuration."""

from __future__ import annotations

import msgspec
import pytest

from shared import api_types
from shared.api_types import (
    DEFAULT_CONFIG,
    TopicConfig,
    TopicConfigIn,
    config_from_dict,
    config_to_dict,
    decode_config,
    decode_delete,
    decode_diff,
    decode_write,
    meta_bytes,
    resolve_config,
)
from shared.errors import InvalidRequest, TopicExistsIncompatible


def resolve(base: TopicConfig | None, body: bytes) -> TopicConfig:
    return resolve_config(base, decode_config(body), topic="t")


def test_the_empty_config_is_the_default_one() -> None:
    assert resolve(None, b"{}") is DEFAULT_CONFIG
    assert resolve(None, b"") is DEFAULT_CONFIG


def test_the_patch_and_the_config_have_the_same_fields() -> None:
    assert TopicConfigIn.__struct_fields__ == TopicConfig.__struct_fields__


@pytest.mark.parametrize(
    ("body", "durability"),
    [
        (b"{}", "disk"),
        (b'{"durable":true}', "fsync"),
        (b'{"durable":false}', "disk"),
        (b'{"durable":true,"durability":"memory"}', "memory"),
        (b'{"durability":"ephemeral"}', "ephemeral"),
    ],
)
def test_an_explicit_durability_wins_over_the_shorthand(body: bytes, durability: str) -> None:
    config = resolve(None, body)
    assert (config.durability, config.durable) == (durability, durability == "fsync")


@pytest.mark.parametrize(
    ("body", "field", "value"),
    [
        (b'{"priority":99999}', "priority", 1000),
        (b'{"priority":-99999}', "priority", -1000),
        (b'{"lease_ms":1}', "lease_ms", 100),
        (b'{"lease_ms":999999999999}', "lease_ms", 86_400_000),
        (b'{"claim_jitter_ms":-5}', "claim_jitter_ms", 0),
        (b'{"claim_jitter_ms":99999}', "claim_jitter_ms", 5000),
    ],
)
def test_some_fields_are_clamped(body: bytes, field: str, value: int) -> None:
    assert getattr(resolve(None, body), field) == value


def test_a_patch_changes_only_what_it_names() -> None:
    base = resolve(None, b'{"type":"queue","ttl_ms":5,"priority":3,"dead_letter":"d"}')
    after = resolve(base, b'{"ttl_ms":6,"priority":null}')
    assert after == msgspec.structs.replace(base, ttl_ms=6, priority=None)
    assert resolve(after, b'{"dead_letter":null}').dead_letter is None
    assert resolve(base, b'{"ttl_ms":5,"type":"queue"}') is base


def test_the_type_never_changes() -> None:
    with pytest.raises(TopicExistsIncompatible):
        resolve(DEFAULT_CONFIG, b'{"type":"queue"}')


@pytest.mark.parametrize(
    "body",
    [
        b'{"nope":1}', b'{"type":"x"}', b'{"ttl_ms":-1}', b'{"ttl_ms":"1"}', b'{"ttl_ms":1.5}', b'{"ttl_ms":null}',
        b'{"ttl_ms":9999999999999999999}', b'{"cap_records":true}', b'{"discard":"new"}', b'{"durable":1}',
        b'{"durability":"disc"}', b'{"priority":"high"}', b'{"cleanup":"delete,compact"}', b'{"dead_letter":"a/b"}',
        b'{"dead_letter":"t"}', b'{"dead_letter":""}', b"[]", b"null", b"{", b"{} x", b'{"type":"\xff"}',
    ],
)  # fmt: skip
def test_wrong_configs_are_400(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        resolve(None, body)


def test_a_config_survives_the_disk() -> None:
    config = resolve(None, b'{"durable":true,"priority":7,"dead_letter":"d","cleanup":"compact"}')
    stored = config_to_dict(config)
    assert config_from_dict(stored) == config
    assert config_from_dict({**stored, "of_a_later_version": 1}) == config
    del stored["cleanup"]
    assert config_from_dict(stored).cleanup == "delete"


def test_data_and_meta_are_kept_byte_for_byte() -> None:
    write = decode_write(b'{"records":[{"data": {"a" : 1.0} ,"meta":{ "x":1}},{"data":null,"meta":null}]}')
    assert [bytes(record.data) for record in write.records] == [b'{"a" : 1.0}', b"null"]
    assert [meta_bytes(record) for record in write.records] == [b'{ "x":1}', None]
    with pytest.raises(InvalidRequest):
        meta_bytes(decode_write(b'{"records":[{"data":1,"meta":[]}]}').records[0])


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{}", b'{"records":{}}', b'{"records":[1]}', b'{"records":[{}]}', b'{"records":[{"data":1,"tag":2}]}',
        b'{"records":[{"data":"\xff"}]}', b'{"records":[{"data":"\xed\xa0\x80"}]}', b'{"records":[{"data":01}]}',
        b'{"records":[{"data":NaN}]}', b'{"records":[{"data":1}]', b'{"records":[],"config":{"nope":1}}',
        b'{"records":[{"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}", b'{"records":[{"data":"\x00"}]}',
    ],
)  # fmt: skip
def test_h01_wrong_writes_are_400(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_write(body)


def test_unknown_fields_outside_the_config_are_ignored() -> None:
    assert decode_write(b'{"records":[{"data":1,"new":2}],"new":3}').records
    assert decode_diff(b'{"new":1}') == decode_diff(b"")


@pytest.mark.parametrize(
    "body",
    [
        b'{"from_seq":-1}',
        b'{"from_seq":18446744073709551616}',
        b'{"limit":"5"}',
        b'{"node":5}',
        b'{"match":{}}',
    ],
)
def test_wrong_reads_are_400(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_diff(body)


def test_seqs_are_unsigned_64_bit_numbers() -> None:
    assert decode_diff(b'{"from_seq":18446744073709551615}').from_seq == 2**64 - 1
    assert decode_delete(b'{"before_seq":18446744073709551615}').before_seq == 2**64 - 1
    with pytest.raises(InvalidRequest):
        decode_delete(b'{"before_seq":18446744073709551616}')


def test_every_type_has_a_schema() -> None:
    types = [
        value
        for value in vars(api_types).values()
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value is not msgspec.Struct
    ]
    _, components = msgspec.json.schema_components(types)
    assert {"TopicConfig", "WriteRequest", "ReadResult", "ErrorBody", "Ready"} <= set(components)
