"""A write request becomes the bytes that readers will get: JSON end to end, and the columns beside it.

The form is docs/disk-format.md §3.2: `{"$seq":N,"$ts":N,"$node":"…","data":…,"meta":…},`. `data` and `meta`
are the client's bytes. Batches whose records carry nothing but `data` are built in C, without a Python step
per record: they are the common case and the hot path.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from shared.api_types import RecordIn, WriteRequest, meta_bytes
from shared.columns import DATA_NULL, HAS_KEY, HAS_META, HAS_NODE, HAS_TAG, encode_columns
from shared.errors import BatchTooLarge, InvalidRequest, RecordTooLarge
from shared.limits import IDEMPOTENCY_KEY_MAX_CHARS, META_MAX_KEYS
from shared.settings import Settings

# A body that contains none of these spells no optional field: a key could also be written with \u escapes.
_OPTIONAL_MARKS = (b'"tag"', b'"node"', b'"key"', b'"meta"', b"\\u", b"null")

_meta_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(slots=True)
class Batch:
    count: int
    json: bytes
    column_flags: int
    columns: bytes


def check_write(write: WriteRequest, settings: Settings) -> None:
    """What can be refused without touching single records."""
    count = len(write.records)
    if count == 0:
        raise InvalidRequest("records must hold at least one record")
    if count > settings.max_batch_records:
        raise BatchTooLarge(what="records", count=count, max=settings.max_batch_records)
    if write.idempotency_key is not None and len(write.idempotency_key) > IDEMPOTENCY_KEY_MAX_CHARS:
        raise InvalidRequest(f"idempotency_key is longer than {IDEMPOTENCY_KEY_MAX_CHARS} characters")


def encode_batch(write: WriteRequest, body: bytes, first_seq: int, ts: int, settings: Settings) -> Batch:
    """`body` is what `write` was decoded from: a look at it tells whether records need a closer look."""
    records = write.records
    plain = write.node is None and len(body) <= settings.max_record_bytes
    if plain:
        for mark in _OPTIONAL_MARKS:
            if mark in body:
                plain = False
                break
    if plain:
        return _encode_plain(records, first_seq, ts)
    return _encode_rich(records, write.node, first_seq, ts, settings)


def _encode_plain(records: list[RecordIn], first_seq: int, ts: int) -> Batch:
    count = len(records)
    if count == 1:
        return Batch(1, b'{"$seq":%d,"$ts":%d,"data":%b},' % (first_seq, ts, records[0].data), 0, b"")
    values: list[object] = [None] * (2 * count)
    values[0::2] = range(first_seq, first_seq + count)
    values[1::2] = datas = [record.data for record in records]
    # One format call for the whole batch: a call per record takes twice as long.
    json = (b'{"$seq":%%d,"$ts":%d,"data":%%b},' % ts) * count % tuple(values)
    around = len(b'{"$seq":,"$ts":%d,"data":},' % ts) + len(str(first_seq))
    if len(str(first_seq)) == len(str(first_seq + count - 1)):
        ends = array("I", accumulate(map(around.__add__, map(len, datas))))
    else:
        short = len(str(first_seq))
        sizes = (around - short + len(str(first_seq + i)) + len(data) for i, data in enumerate(datas))
        ends = array("I", accumulate(sizes))
    return Batch(count, json, *encode_columns(count=count, ends=ends))


def _encode_rich(
    records: list[RecordIn], batch_node: str | None, first_seq: int, ts: int, settings: Settings
) -> Batch:
    parts: list[bytes] = []
    flags = bytearray()
    metas = array("I")
    nodes: list[bytes | None] = []
    tags: list[bytes | None] = []
    keys: list[bytes | None] = []
    stamp = b',"$ts":%d' % ts
    for index, record in enumerate(records):
        data = bytes(record.data)
        meta = _checked_meta(record, index, settings)
        if len(data) + len(meta) > settings.max_record_bytes:
            raise RecordTooLarge(
                f"record {index} has {len(data) + len(meta)} bytes of data and meta, at most "
                f"{settings.max_record_bytes} are allowed",
                detail={"record": index, "max_bytes": settings.max_record_bytes},
            )
        node = record.node if record.node is not None else batch_node
        nodes.append(_label("node", node, index, settings.max_node_bytes))
        tags.append(_label("tag", record.tag, index, settings.max_tag_bytes))
        keys.append(_label("key", record.key, index, settings.max_key_bytes))
        shown_node = b',"$node":' + msgspec.json.encode(node) if node is not None else b""
        shown_meta = b',"meta":' + meta if meta else b""
        parts.append(
            b'{"$seq":%d%b%b,"data":%b%b},' % (first_seq + index, stamp, shown_node, data, shown_meta)
        )
        metas.append(len(shown_meta))
        flags.append(
            (HAS_NODE if node is not None else 0)
            | (HAS_TAG if record.tag is not None else 0)
            | (HAS_KEY if record.key is not None else 0)
            | (HAS_META if meta else 0)
            | (DATA_NULL if data == b"null" else 0)
        )
    ends = array("I", accumulate(map(len, parts)))
    column_flags, columns = encode_columns(
        count=len(records), ends=ends, flags=bytes(flags), meta=metas, nodes=nodes, tags=tags, keys=keys
    )
    return Batch(len(records), b"".join(parts), column_flags, columns)


def _label(name: str, value: str | None, index: int, max_bytes: int) -> bytes | None:
    if value is None:
        return None
    try:
        encoded = value.encode()
    except UnicodeEncodeError as err:
        raise InvalidRequest(f"record {index}: {name} has a lone surrogate") from err
    if len(encoded) > max_bytes:
        raise InvalidRequest(
            f"record {index}: {name} has {len(encoded)} bytes, at most {max_bytes} are allowed",
            detail={"record": index, "field": name, "max_bytes": max_bytes},
        )
    return encoded


def _checked_meta(record: RecordIn, index: int, settings: Settings) -> bytes:
    meta = meta_bytes(record)
    if meta is None:
        return b""
    if len(meta) > settings.max_meta_bytes:
        raise InvalidRequest(
            f"record {index}: meta has {len(meta)} bytes, at most {settings.max_meta_bytes} are allowed",
            detail={"record": index, "field": "meta", "max_bytes": settings.max_meta_bytes},
        )
    if len(_meta_decoder.decode(meta)) > META_MAX_KEYS:
        raise InvalidRequest(
            f"record {index}: meta has more than {META_MAX_KEYS} keys",
            detail={"record": index, "field": "meta"},
        )
    return meta
