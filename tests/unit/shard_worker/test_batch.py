from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_worker.core.batch import Batch, check_write, encode_batch
from shared.api_types import PlainWriteRequest, WriteRequest, decode_write
from shared.columns import DATA_NULL, HAS_KEY, HAS_META, HAS_NODE, HAS_TAG, Columns
from shared.errors import BatchTooLarge, InvalidRequest, RecordTooLarge
from shared.limits import IDEMPOTENCY_KEY_MAX_CHARS, META_MAX_KEYS
from shared.settings import Settings

SETTINGS = Settings()


def encode(body: bytes, first: int = 1, ts: int = 1_700_000_000_000, settings: Settings = SETTINGS) -> Batch:
    write = decode_write(body)
    check_write(write, settings)
    return encode_batch(write, len(body), first, ts, settings)


def columns_of(batch: Batch) -> Columns:
    columns = Columns(batch.column_flags, batch.count, len(batch.json), memoryview(batch.columns))
    columns.verify()
    return columns


def pieces(batch: Batch) -> list[bytes]:
    ends = columns_of(batch).ends
    return [batch.json[start:end] for start, end in zip([0, *ends], ends, strict=False)]


# --- the client's bytes -----------------------------------------------------------------------------------

ODD_VALUES = [
    b"1.0",
    b"1e400",
    b"-0",
    b"0.1000000000000000055511151231257827",
    b"123456789012345678901234567890",
    b'"\\u00e9\\/"',
    '"é"'.encode(),
    b'{"b":1,"a":2,"b":3}',
    b"[ 1 ,\t2 ]",
    b'{\n  "a" : null\n}',
    b"null",
    b"true",
    b'""',
    b"[]",
    b'"},{\\"$seq\\":1"',
]


@pytest.mark.parametrize("value", ODD_VALUES)
@pytest.mark.parametrize("more", [b"", b',"tag":"t"', b',"node":"n","meta":{"m":1}'])
def test_data_is_kept_byte_for_byte(value: bytes, more: bytes) -> None:
    batch = encode(b'{"records":[{"data":%b%b},{"data":%b}]}' % (value, more, value))
    first, second = pieces(batch)
    assert b'"data":' + value in first
    assert second == b'{"$seq":2,"$ts":1700000000000,"data":%b},' % value
    json.loads(b"[" + batch.json[:-1] + b"]")


@pytest.mark.parametrize("meta", [b"{}", b'{ "z":1.0,\n"a": "\\u0041" }', '{"ü":"é"}'.encode()])
def test_meta_is_kept_byte_for_byte(meta: bytes) -> None:
    batch = encode(b'{"records":[{"data":1,"meta":%b}]}' % meta)
    assert batch.json == b'{"$seq":1,"$ts":1700000000000,"data":1,"meta":%b},' % meta
    columns = columns_of(batch)
    assert columns.meta is not None and columns.meta[0] == len(b',"meta":' + meta)


def test_a_plain_record_has_no_columns_at_all() -> None:
    batch = encode(b'{"records":[{"data":{"a":1}}]}', first=42, ts=7)
    assert batch == Batch(1, b'{"$seq":42,"$ts":7,"data":{"a":1}},', 0, b"")


@pytest.mark.parametrize("first", [1, 8, 9, 95, 998, 999, 1000, 9_998, 99_999, 10**18 - 2])
@pytest.mark.parametrize("count", [2, 3, 12, 1001, 2003])
def test_plain_batches_number_their_records_over_every_change_of_digits(first: int, count: int) -> None:
    body = b'{"records":[%b]}' % b",".join(b'{"data":%d}' % number for number in range(count))
    assert isinstance(decode_write(body), PlainWriteRequest)
    batch = encode(body, first, 5)
    assert pieces(batch) == [
        b'{"$seq":%d,"$ts":5,"data":%d},' % (first + number, number) for number in range(count)
    ]


def test_the_order_of_fields_in_a_record() -> None:
    body = b'{"records":[{"meta":{"m":1},"key":"k","tag":"t","node":"n","data":1}]}'
    assert encode(body, 3, 9).json == b'{"$seq":3,"$ts":9,"$node":"n","data":1,"meta":{"m":1}},'


@given(
    st.lists(
        st.fixed_dictionaries(
            {"data": st.one_of(st.none(), st.integers(), st.text(max_size=5))},
            optional={
                "tag": st.text(max_size=5),
                "node": st.text(max_size=5),
                "key": st.text(max_size=5),
                "meta": st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
            },
        ),
        min_size=1,
        max_size=6,
    ),
    st.one_of(st.none(), st.text(max_size=4)),
)
def test_what_is_read_is_what_was_written(records: list[dict[str, Any]], node: str | None) -> None:
    body = json.dumps({"records": records, "node": node}).encode()
    batch = encode(body, 5, 6)
    columns = columns_of(batch)
    for place, (stored, record) in enumerate(
        zip(json.loads(b"[" + batch.json[:-1] + b"]"), records, strict=True)
    ):
        shown_node = record.get("node", node)
        expected = {"$seq": 5 + place, "$ts": 6, "data": record["data"]}
        if shown_node is not None:
            expected["$node"] = shown_node
        if "meta" in record:
            expected["meta"] = record["meta"]
        assert stored == expected
        for field, value in (("tag", record.get("tag")), ("key", record.get("key")), ("node", shown_node)):
            held = getattr(columns, field)(place)
            assert held == (None if value is None else value.encode())


def test_flags_say_what_a_record_has() -> None:
    body = json.dumps(
        {
            "records": [
                {"data": None, "key": "k"},
                {"data": None},
                {"data": 1, "tag": "", "node": "n"},
                {"data": 1, "meta": {}},
            ]
        }
    ).encode()
    assert list(columns_of(encode(body)).flags) == [HAS_KEY | DATA_NULL, 0, HAS_TAG | HAS_NODE, HAS_META]


def test_the_batch_node_is_the_default_of_its_records() -> None:
    batch = encode(b'{"node":"batch","records":[{"data":1},{"data":2,"node":"own"},{"data":3,"node":null}]}')
    columns = columns_of(batch)
    assert [columns.node(place) for place in range(3)] == [b"batch", b"own", b"batch"]
    assert b'"$node":"own"' in pieces(batch)[1]


def test_fields_spelled_with_escapes_are_seen() -> None:
    batch = encode(b'{"records":[{"data":1,"\\u0074ag":"t"},{"data":2}]}')
    assert columns_of(batch).tag(0) == b"t"


def test_null_labels_and_meta_are_absent() -> None:
    batch = encode(b'{"records":[{"data":1,"tag":null,"key":null,"node":null,"meta":null}]}')
    assert batch.json == b'{"$seq":1,"$ts":1700000000000,"data":1},'
    assert batch.column_flags == 0


def test_unknown_fields_of_a_record_are_ignored() -> None:
    assert encode(b'{"records":[{"data":1,"colour":"red"}],"more":2}').json.endswith(b'"data":1},')


# --- limits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"{",
        b'{"records":[{"data":1}',
        b'{"records":null}',
        b'{"records":[null]}',
        b'{"records":[{}]}',
        b'{"records":[{"tag":"no data"}]}',
        b'{"records":[{"data":1,"tag":5}]}',
        b'{"records":[{"data":1,"node":[]}]}',
        b'{"records":[{"data":1,"key":true}]}',
        b'{"records":[{"data":1}],"node":7}',
        b'{"records":[{"data":1}],"idempotency_key":7}',
        b'{"records":[{"data":1}],"create":"yes"}',
        b'{"records":[{"data":1}],"config":{"unknown":1}}',
        b'{"records":[{"data":"\xff"}]}',
        b'{"records":[{"data":nul}]}',
        b'{"records":[{"data":1}]} x',
    ],
)
def test_a_malformed_body_is_one_kind_of_error(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        encode(body)


@pytest.mark.parametrize("meta", [b"1", b"[]", b'"x"', b"true"])
def test_meta_must_be_an_object(meta: bytes) -> None:
    with pytest.raises(InvalidRequest, match="meta"):
        encode(b'{"records":[{"data":1,"meta":%b}]}' % meta)


def test_no_records_at_all() -> None:
    with pytest.raises(InvalidRequest, match="at least one"):
        encode(b'{"records":[]}')


def test_the_largest_batch_and_one_more() -> None:
    settings = replace(SETTINGS, max_batch_records=5)
    assert encode(json.dumps({"records": [{"data": 1}] * 5}).encode(), settings=settings).count == 5
    with pytest.raises(BatchTooLarge) as caught:
        encode(json.dumps({"records": [{"data": 1}] * 6}).encode(), settings=settings)
    assert caught.value.detail == {"max": 5}


def test_the_longest_idempotency_key_and_one_more() -> None:
    longest = "k" * IDEMPOTENCY_KEY_MAX_CHARS
    for rich in ({}, {"tag": "t"}):
        records = [{"data": 1, **rich}]
        encode(json.dumps({"records": records, "idempotency_key": longest}).encode())
        with pytest.raises(InvalidRequest, match="idempotency_key"):
            encode(json.dumps({"records": records, "idempotency_key": longest + "k"}).encode())


@pytest.mark.parametrize("rich", [b"", b',"tag":"t"'])
def test_the_largest_record_and_one_byte_more(rich: bytes) -> None:
    settings = replace(SETTINGS, max_record_bytes=2000)

    def body(size: int) -> bytes:
        return b'{"records":[{"data":1},{"data":"%b"%b}]}' % (b"x" * (size - 2), rich)

    assert encode(body(2000), settings=settings).count == 2
    with pytest.raises(RecordTooLarge) as caught:
        encode(body(2001), settings=settings)
    assert caught.value.detail == {"record": 1, "max_bytes": 2000}


def test_meta_counts_towards_the_size_of_a_record() -> None:
    settings = replace(SETTINGS, max_record_bytes=2000)
    meta = b'{"m":"%b"}' % (b"y" * 1000)
    rest = 2000 - len(meta)
    body = b'{"records":[{"data":"%b","meta":%b}]}'
    encode(body % (b"x" * (rest - 2), meta), settings=settings)
    with pytest.raises(RecordTooLarge):
        encode(body % (b"x" * (rest - 1), meta), settings=settings)


def test_a_large_body_of_small_records_is_fine() -> None:
    settings = replace(SETTINGS, max_record_bytes=1024)
    assert (
        encode(json.dumps({"records": [{"data": "x" * 500}] * 100}).encode(), settings=settings).count == 100
    )


def test_the_largest_meta_and_one_byte_more() -> None:
    settings = replace(SETTINGS, max_meta_bytes=50)
    meta = b'{"m":"%b"}'
    fits = meta % (b"x" * (50 - len(meta % b"")))
    assert len(fits) == 50
    encode(b'{"records":[{"data":1,"meta":%b}]}' % fits, settings=settings)
    with pytest.raises(InvalidRequest) as caught:
        encode(b'{"records":[{"data":1,"meta": %b}]}' % fits.replace(b"x", b"xx", 1), settings=settings)
    assert caught.value.detail == {"record": 0, "field": "meta", "max_bytes": 50}


def test_the_most_keys_of_meta_and_one_more() -> None:
    def body(keys: int) -> bytes:
        return json.dumps({"records": [{"data": 1, "meta": {f"k{at}": at for at in range(keys)}}]}).encode()

    encode(body(META_MAX_KEYS))
    with pytest.raises(InvalidRequest, match="keys"):
        encode(body(META_MAX_KEYS + 1))


@pytest.mark.parametrize("field", ["tag", "node", "key"])
def test_the_longest_label_in_bytes_and_one_more(field: str) -> None:
    settings = replace(SETTINGS, **{f"max_{field}_bytes": 10})
    encode(json.dumps({"records": [{"data": 1, field: "ü" * 5}]}).encode(), settings=settings)
    for value in ("x" * 11, "ü" * 5 + "x"):
        with pytest.raises(InvalidRequest) as caught:
            encode(
                json.dumps({"records": [{"data": 1}, {"data": 1, field: value}]}).encode(), settings=settings
            )
        assert caught.value.detail == {"record": 1, "field": field, "max_bytes": 10}


def test_a_batch_node_is_held_to_the_same_limit() -> None:
    settings = replace(SETTINGS, max_node_bytes=3)
    with pytest.raises(InvalidRequest, match="node"):
        encode(b'{"node":"long","records":[{"data":1}]}', settings=settings)


@pytest.mark.parametrize("field", ["tag", "node", "key"])
def test_a_lone_surrogate_in_a_label_is_refused(field: str) -> None:
    with pytest.raises(InvalidRequest):
        encode(b'{"records":[{"data":1,"%b":"\\ud800"}]}' % field.encode())


def test_plain_and_complete_requests_give_the_same_batch() -> None:
    body = b'{"records":[{"data":1},{"data":[2, 3]},{"data":"x"}],"create":true,"idempotency_key":"k"}'
    plain = decode_write(body)
    assert isinstance(plain, PlainWriteRequest)
    complete = decode_write(body[:-1] + b',"node":null}')
    assert isinstance(complete, WriteRequest)
    assert encode_batch(plain, len(body), 9, 5, SETTINGS) == encode_batch(complete, len(body), 9, 5, SETTINGS)
