"""Records, batches and damage for the tests of the file formats."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from shared.columns import DATA_NULL, HAS_KEY, HAS_META, HAS_NODE, HAS_TAG, Columns, encode_columns
from shared.record_assembler import AssembledRecords, RecordAssembler
from shared.segment_writer import SegmentBuilder, SegmentTopic

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
SEQS = st.integers(1, 2**53)
TIMES = st.integers(0, 2**45)


@dataclass(frozen=True)
class Row:
    node: bytes | None = None
    tag: bytes | None = None
    key: bytes | None = None
    meta: bytes = b""
    payload: bytes = b"1"

    @property
    def flags(self) -> int:
        flags = HAS_NODE if self.node is not None else 0
        flags |= HAS_TAG if self.tag is not None else 0
        flags |= HAS_KEY if self.key is not None else 0
        flags |= HAS_META if self.meta else 0
        return flags | (DATA_NULL if self.payload == b"null" else 0)

    @property
    def meta_part(self) -> bytes:
        return b',"meta":' + self.meta if self.meta else b""

    def json(self, seq: int, ts: int) -> bytes:
        node = b"" if self.node is None else b',"$node":"%s"' % self.node
        return b'{"$seq":%d,"$ts":%d%s,"data":%s%s},' % (seq, ts, node, self.payload, self.meta_part)


@dataclass(frozen=True)
class Batch:
    """What one append call writes."""

    first_seq: int
    ts: int
    rows: tuple[Row, ...]
    json: bytes
    column_flags: int
    columns: bytes

    def decoded(self) -> Columns:
        return Columns(self.column_flags, len(self.rows), len(self.json), memoryview(self.columns))


def make_batch(first_seq: int, ts: int, rows: Sequence[Row]) -> Batch:
    records = [row.json(first_seq + place, ts) for place, row in enumerate(rows)]
    ends = array("I")
    total = 0
    for record in records:
        total += len(record)
        ends.append(total)
    column_flags, columns = encode_columns(
        count=len(rows),
        ends=ends,
        flags=bytes(row.flags for row in rows),
        meta=array("I", [len(row.meta_part) for row in rows]),
        nodes=[row.node for row in rows],
        tags=[row.tag for row in rows],
        keys=[row.key for row in rows],
    )
    return Batch(first_seq, ts, tuple(rows), b"".join(records), column_flags, columns)


def assemble(batches: Sequence[Batch]) -> AssembledRecords:
    assembler = RecordAssembler()
    for batch in batches:
        columns = batch.decoded()
        assembler.add(memoryview(batch.json), columns, 0, columns.count, batch.first_seq, batch.ts)
    return assembler.finish()


def make_segment(blocks: Sequence[tuple[SegmentTopic, Sequence[Batch]]]) -> tuple[bytes, SegmentBuilder]:
    builder = SegmentBuilder(3, 7, 1_700_000_000_000)
    parts = [builder.header]
    parts += [builder.add_block(topic, assemble(batches)) for topic, batches in blocks]
    parts.append(builder.finish(deleted=5))
    return b"".join(parts), builder


LABELS = st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"alpha", b"node-1", "ü".encode()]))
METAS = st.sampled_from([b"", b"{}", b'{"k":"v"}'])
PAYLOADS = st.one_of(
    st.just(b"null"),
    st.integers(-(10**9), 10**9).map(lambda number: b"%d" % number),
    st.text(max_size=40).map(lambda text: json.dumps(text).encode()),
)
ROWS = st.builds(Row, node=LABELS, tag=LABELS, key=LABELS, meta=METAS, payload=PAYLOADS)
PLAIN_ROWS = st.builds(Row, payload=PAYLOADS)
ROW_LISTS = st.one_of(st.lists(ROWS, min_size=1, max_size=12), st.lists(PLAIN_ROWS, min_size=1, max_size=12))


@st.composite
def batch_lists(draw: st.DrawFn, max_batches: int = 4, first_seq: int = 1) -> list[Batch]:
    """Batches of one topic, ascending, with gaps here and there."""
    batches = []
    seq = first_seq + draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, max_batches))):
        rows = draw(ROW_LISTS)
        batches.append(make_batch(seq, draw(st.integers(1000, 1003)), rows))
        seq += len(rows) + draw(st.sampled_from([0, 0, 1, 1000]))
    return batches


def pread_of(content: bytes) -> Callable[[int, int], bytes]:
    def pread(length: int, offset: int) -> bytes:
        assert length >= 0 and offset >= 0
        return content[offset : offset + length]

    return pread


def flip(content: bytes, bit: int) -> bytes:
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def every_flip(content: bytes) -> Iterator[bytes]:
    for bit in range(len(content) * 8):
        yield flip(content, bit)
