"""A write request becomes the bytes that readers will get: JSON end to end, and the columns beside it.

The form is docs/disk-format.md §3.2: `{"$seq":N,"$ts":N,"$node":"…","data":…,"meta":…},`. `data` and `meta`
are the client's bytes. Batches whose records carry nothing but `data` are built by joining lists, with one short loop
over the records: they are the common case and the hot path.
"""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import Final

import msgspec
from librt.strings import BytesWriter

from shard_worker.core.seq_text import seq_runs
from shared.api_types import (
    CLAMPED,
    PlainRecordIn,
    PlainWriteRequest,
    RecordIn,
    WriteRequest,
    decode_rich_write,
    meta_bytes,
    plain_write_decoder,
)
from shared.columns import (
    COLUMN_ENDS,
    DATA_NULL,
    HAS_KEY,
    HAS_META,
    HAS_NODE,
    HAS_TAG,
    encode_columns,
)
from shared.errors import BatchTooLarge, InvalidRequest, RecordTooLarge
from shared.limits import (
    IDEMPOTENCY_KEY_MAX_CHARS,
    JOB_DELAY_MAX_MS,
    JOB_GROUP_MAX_BYTES,
    META_MAX_KEYS,
)
from shared.packing import put_u32
from shared.settings import Settings
from shared.wal_format import JobMark

_LEAST_URGENT, _MOST_URGENT = CLAMPED["priority"]

_meta_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


_decode_plain: Final = plain_write_decoder.decode
_Plain: Final = PlainWriteRequest


class Batch:
    """Not a dataclass: compiled ones are still made by an interpreted `__init__`."""

    __slots__ = ("column_flags", "columns", "count", "json")

    def __init__(self, count: int, json: bytes, column_flags: int, columns: bytes) -> None:
        self.count = count
        self.json = json
        self.column_flags = column_flags
        self.columns = columns

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Batch)
            and self.count == other.count
            and self.json == other.json
            and self.column_flags == other.column_flags
            and self.columns == other.columns
        )


class _Stamps:
    """The time of records as text. All writes of a turn have the same one: it is put into words once."""

    __slots__ = ("_text", "_ts")

    def __init__(self) -> None:
        self._ts = -1
        self._text = b""

    def of(self, ts: int) -> bytes:
        if ts != self._ts:
            self._ts, self._text = ts, b',"$ts":%d,"data":' % ts
        return self._text


_stamps: Final = _Stamps()


def read_write(body: bytes) -> WriteRequest | PlainWriteRequest:
    """`decode_write`, with the common case in here, where it is compiled."""
    if body.isascii():
        try:
            return _decode_plain(body)
        except (msgspec.DecodeError, RecursionError):
            pass  # a field that plain writes do not have, or an error: the complete type tells which
    return decode_rich_write(body)


def check_write(write: WriteRequest | PlainWriteRequest, settings: Settings) -> None:
    """What can be refused without touching single records."""
    count = len(write.records)
    if count == 0:
        raise InvalidRequest("records must hold at least one record")
    if count > settings.max_batch_records:
        raise BatchTooLarge(what="records", count=count, max=settings.max_batch_records)
    if write.idempotency_key is not None and len(write.idempotency_key) > IDEMPOTENCY_KEY_MAX_CHARS:
        raise InvalidRequest(f"idempotency_key is longer than {IDEMPOTENCY_KEY_MAX_CHARS} characters")


def encode_batch(
    write: WriteRequest | PlainWriteRequest,
    body_bytes: int,
    first_seq: int,
    ts: int,
    settings: Settings,
    *,
    trusted: bool = False,
) -> Batch:
    """`body_bytes`: the length of the whole request; a record cannot be larger than that.

    `trusted`: records that were within the limits where they come from, and may have grown by what we added.
    """
    if isinstance(write, _Plain):
        records = write.records
        if body_bytes > settings.max_record_bytes:
            for index, record in enumerate(records):
                _check_size(len(record.data), index, settings)
        return _encode_plain(records, first_seq, ts)
    return _encode_rich(write.records, write.node, first_seq, ts, settings, trusted)


def _check_size(size: int, index: int, settings: Settings) -> None:
    if size > settings.max_record_bytes:
        raise RecordTooLarge(
            f"record {index} has {size} bytes of data and meta, at most {settings.max_record_bytes} are allowed",
            detail={"record": index, "max_bytes": settings.max_record_bytes},
        )


def _encode_plain(records: list[PlainRecordIn], first_seq: int, ts: int) -> Batch:
    count = len(records)
    if count == 1:
        return Batch(1, b'{"$seq":%d%b%b},' % (first_seq, _stamps.of(ts), bytes(records[0].data)), 0, b"")
    stamp = _stamps.of(ts)
    parts: list[bytes | msgspec.Raw] = []
    ends = BytesWriter()
    place = end = 0
    for head, rest in seq_runs(first_seq, count):
        opening = b'},{"$seq":' + head
        around = len(opening) + len(stamp)
        run: list[bytes | msgspec.Raw] = [opening, b"", stamp, b""] * len(rest)
        run[1::4] = rest
        at = 3
        for digits in rest:
            data = records[place].data
            run[at] = data
            end += around + len(digits) + len(data)
            put_u32(ends, end)
            at += 4
            place += 1
        parts = parts + run if parts else run
    # Every record was counted with the two characters that end the one before it; it ends with as many of its own.
    parts[0] = parts[0][2:]
    parts.append(b"},")
    # The columns are what encode_columns makes of records that have nothing but an end.
    return Batch(count, b"".join(parts), COLUMN_ENDS, ends.getvalue())


def _encode_rich(
    records: list[RecordIn],
    batch_node: str | None,
    first_seq: int,
    ts: int,
    settings: Settings,
    trusted: bool,
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
        if trusted:
            meta = meta_bytes(record) or b""
        else:
            meta = _checked_meta(record, index, settings)
            _check_size(len(data) + len(meta), index, settings)
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
            | (DATA_NULL if record.key is not None and data == b"null" else 0)
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


def job_marks(write: WriteRequest | PlainWriteRequest, ts: int) -> tuple[JobMark, ...]:
    """What the writer asked for single jobs: a delay, a priority, a group."""
    if isinstance(write, PlainWriteRequest):
        return ()
    marks = []
    for place, record in enumerate(write.records):
        deliver_at = record.deliver_at or (ts + record.delay_ms if record.delay_ms else 0)
        if not deliver_at and not record.priority and record.group is None:
            continue
        if record.deliver_at is not None and record.delay_ms is not None:
            raise InvalidRequest(f"record {place}: give deliver_at or delay_ms, not both")
        if deliver_at > ts + JOB_DELAY_MAX_MS:
            raise InvalidRequest(f"record {place}: a job can be delayed by at most {JOB_DELAY_MAX_MS} ms")
        priority = max(_LEAST_URGENT, min(record.priority or 0, _MOST_URGENT))
        if record.group is not None:
            _label("group", record.group, place, JOB_GROUP_MAX_BYTES)
        marks.append(JobMark(place, deliver_at, priority, record.group))
    return tuple(marks)
