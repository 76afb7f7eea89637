"""The bytes stand where docs/disk-format.md says, checked without the codecs' own tables."""

from __future__ import annotations

from struct import unpack_from

import zstandard
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from shared.file_header import FileHeader
from shared.frame import Kind, build_frame
from shared.segment_terms import encode_terms, term_hash
from shared.segment_writer import SegmentTopic
from shared.wal_format import FLAG_EXTRA, AppendExtra, build_append_body, encode_extra, encode_wal_header
from tests.support.format_samples import Row, make_batch, make_segment

ROWS = [Row(node=b"n", tag=b"red", meta=b"{}"), Row(key=b"k", payload=b"null")]


def test_file_header() -> None:
    header = encode_wal_header(FileHeader(3, 2, 77))
    assert unpack_from("<8sIIQQ", header) == (b"TOPICWAL", 1, 3, 2, 77)
    assert header[32:56] == bytes(24)
    assert unpack_from("<Q", header, 56) == (xxh3_64_intdigest(header[:56]),)


def test_append_frame() -> None:
    batch = make_batch(10, 1000, ROWS)
    extra = encode_extra(AppendExtra(idem="once"))
    body = build_append_body(10, 2, batch.json, 500, batch.columns, extra)
    frame = build_frame(Kind.APPEND, batch.column_flags | FLAG_EXTRA, 2 << 32 | 64, 9, 1000, body)
    assert unpack_from("<4sIBBHI", frame) == (b"TFR1", len(frame), 1, 1, 0b1111111, 0)
    assert unpack_from("<QQQ", frame, 16) == (2 << 32 | 64, 9, 1000)
    assert unpack_from("<QIIII", frame, 40) == (
        10,
        2,
        len(batch.json),
        500,
        len(batch.columns) + len(extra),
    )
    assert frame[64:].startswith(b'{"$seq":10,"$ts":1000,"$node":"n","data":1,"meta":{}},{"$seq":11,')
    assert frame[64 + len(batch.json) : -8] == batch.columns + extra
    assert unpack_from("<I", extra, len(extra) - 4) == (len(extra) - 4,)
    assert unpack_from("<Q", frame, len(frame) - 8) == (xxh3_64_intdigest(frame[:-8]),)


def test_columns() -> None:
    batch = make_batch(10, 1000, ROWS)
    first = len(ROWS[0].json(10, 1000))
    assert unpack_from("<IIBBII", batch.columns) == (first, len(batch.json), 1 | 2 | 8, 4 | 16, 10, 0)
    assert unpack_from("<II1s", batch.columns, 18) == (1, 1, b"n")
    assert unpack_from("<II3s", batch.columns, 27) == (3, 3, b"red")
    assert unpack_from("<II1s", batch.columns, 38) == (0, 1, b"k")
    assert len(batch.columns) == 47


def test_segment() -> None:
    batches = [make_batch(10, 1000, ROWS), make_batch(20, 1001, [Row()])]
    content, builder = make_segment([(SegmentTopic(9, "a", 1), batches)])
    assert unpack_from("<8sIIQQ", content) == (b"TOPICSEG", 1, 3, 7, 1_700_000_000_000)
    length = unpack_from("<I", content, 68)[0]
    block = content[64 : 64 + length]
    assert unpack_from("<4sIQQQQQI", block) == (b"TBK1", length, 9, 10, 20, 1000, 1001, 3)
    flags, codec, columns_stored, columns_raw, json_stored, json_raw = unpack_from("<HHIIII", block, 52)
    assert flags == 0b11111111
    columns, json = block[80 : 80 + columns_stored], block[80 + columns_stored : -8]
    assert len(json) == json_stored
    checksum = xxh3_64_intdigest(block[:72] + columns)
    assert unpack_from("<Q", block, 72) == (checksum,)
    assert unpack_from("<Q", block, length - 8) == (xxh3_64_intdigest(json, seed=checksum),)
    if codec == 1:
        columns, json = (zstandard.ZstdDecompressor().decompress(part) for part in (columns, json))
    assert (len(columns), len(json)) == (columns_raw, json_raw)
    assert unpack_from("<QQQQQQ", columns) == (10, 11, 20, 1000, 1000, 1001)
    assert json == b"".join(batch.json for batch in batches)

    trailer = content[-64:]
    magic, terms_at, terms_len, index_at, index_len, blocks, terms_sum, index_sum, zero, own = unpack_from(
        "<8sQIQIIQQIQ", trailer
    )
    assert (magic, blocks, zero) == (b"TOPICEND", 1, 0)
    assert (terms_at, index_at, index_at + index_len) == (
        64 + length,
        terms_at + terms_len,
        len(content) - 64,
    )
    terms = content[terms_at:index_at]
    values = (("node", b"n"), ("tag", b"red"), ("key", b"k"))
    assert terms == encode_terms((term_hash(9, field, value), 0) for field, value in values)
    assert terms_sum == xxh3_64_intdigest(terms)
    assert index_sum == xxh3_64_intdigest(content[index_at:-64])
    assert own == xxh3_64_intdigest(trailer[:56])
    assert builder.digest == xxh3_64_hexdigest(content[:64] + block[72:80] + block[-8:] + trailer)


def test_terms() -> None:
    red = xxh3_64_intdigest((9).to_bytes(8, "little") + b"\2" + b"red")
    assert term_hash(9, "tag", b"red") == red
    assert unpack_from("<IIQQII", encode_terms([(red, 4), (5, 1)])) == (2, 0, *sorted((5, red)), 1, 4)
