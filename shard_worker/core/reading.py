"""One read of a topic: where it starts, what the reader must be told, which bytes it gets.

A plain read (default projection, nothing filtered or deleted in range, all of it in the log) is answered with
extents of log files and never touches a record. Everything else goes through bytes. Both give the same document.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise, repeat
from typing import NamedTuple

import msgspec

from shard_worker.core.hot_index import IN_MEMORY
from shard_worker.core.piece import Piece, PieceSource
from shard_worker.core.topic import REASON_MIXED, REASON_RECREATED, Run, Topic
from shared.api_types import DiffRequest
from shared.columns import FIELD_COLUMN
from shared.errors import InvalidRequest
from shared.limits import (
    EXTENTS_MAX_PER_ANSWER,
    READ_DEFAULT_BYTES,
    READ_DEFAULT_LIMIT,
    READ_MAX_BYTES,
    READ_SCAN_MAX_RECORDS,
    SENDFILE_MIN_BYTES,
)
from shared.match import Match, parse_match
from shared.settings import Settings
from shared.wal_format import LSN_OFFSET_BITS, LSN_OFFSET_MASK


class Tombstone(NamedTuple):
    gap_from: int
    gap_to: int
    reason: str

    def to_json(self, topic: Topic, earliest: int) -> bytes:
        return (
            b'{"gap_from":%d,"gap_to":%d,"reason":"%b","missed_estimate":%d,"earliest_seq":%d,"head_seq":%d}'
            % (
                self.gap_from,
                self.gap_to,
                self.reason.encode(),
                self.gap_to - self.gap_from + 1,
                earliest,
                topic.head,
            )
        )


class View(NamedTuple):
    """What a reader asked for, with defaults and limits applied."""

    limit: int
    max_bytes: int
    nodes: frozenset[bytes]
    match: Match | None
    include_tags: bool
    include_keys: bool
    include_meta: bool
    include_data: bool = True

    @property
    def as_written(self) -> bool:
        """Are records shown as they stand in the log?"""
        return self.include_meta and self.include_data and not (self.include_tags or self.include_keys)

    @property
    def plain(self) -> bool:
        return self.as_written and not (self.nodes or self.match)


PLAIN_VIEW = View(READ_DEFAULT_LIMIT, READ_DEFAULT_BYTES, frozenset(), None, False, False, True)


def view_of(request: DiffRequest, settings: Settings) -> View:
    limit = min(request.limit or READ_DEFAULT_LIMIT, settings.max_limit)
    max_bytes = READ_DEFAULT_BYTES if request.max_bytes is None else min(request.max_bytes, READ_MAX_BYTES)
    nodes = [request.node] if isinstance(request.node, str) else request.node or []
    try:
        excluded = frozenset(node.encode() for node in nodes)
    except UnicodeEncodeError as err:
        raise InvalidRequest("node has a lone surrogate") from err
    return View(
        limit,
        max_bytes,
        excluded,
        parse_match(request.match) if request.match is not None else None,
        request.include_tags,
        request.include_keys,
        request.include_meta,
    )


class ReadResult:
    """Records as `chunks` of bytes (each ends with a comma) or as `extents` (file, offset, length)."""

    __slots__ = ("chunks", "delivered", "earliest", "extents", "next_from", "scanned", "tombstone")

    def __init__(self, next_from: int, tombstone: Tombstone | None, earliest: int) -> None:
        self.next_from = next_from
        self.tombstone = tombstone
        self.earliest = earliest
        self.chunks: list[bytes | memoryview] = []
        self.extents: list[tuple[int, int, int]] = []
        self.scanned = 0
        self.delivered = 0

    def head_json(self, topic: Topic) -> bytes:
        return b'{"topic":"%b","records":[' % topic.name.encode()

    def tail_json(self, topic: Topic) -> bytes:
        """What follows the records, without the closing brace."""
        lag = topic.head - self.next_from
        tombstone = self.tombstone.to_json(topic, self.earliest) if self.tombstone else b"null"
        return (
            b'],"next_from_seq":%d,"head_seq":%d,"earliest_seq":%d,"caught_up":%b,"tombstone":%b,"lag":%d'
            % (self.next_from, topic.head, self.earliest, b"false" if lag else b"true", tombstone, lag)
        )

    def records_json(self) -> bytes:
        return b"".join(self.chunks)[:-1]


def read(
    topic: Topic,
    from_seq: int,
    view: View,
    floor: int,
    source: PieceSource,
    *,
    extents: bool,
    upto: int | None = None,
) -> ReadResult:
    """`floor` is the topic's own, or higher where records have expired that nobody has swept yet.

    Nothing behind `upto` is looked at: readers of synced records only give the last one that is.
    """
    earliest = _earliest(topic, floor)
    start, stop, tombstone = _bounds(topic, from_seq, floor, earliest)
    if upto is not None and upto < stop:
        # A reader that stands behind `upto` gets nothing; one that knows an older topic starts all over.
        stop = upto if from_seq > topic.head else max(upto, from_seq)
    result = ReadResult(stop, tombstone, earliest)
    if start > stop:
        return result
    if view.plain and (topic.deleted is None or not topic.deleted.count(start, stop)):
        _read_plain(topic, start, stop, view, source, result, extents)
    else:
        _read_filtered(topic, start, stop, view, source, result)
    return result


def span(topic: Topic, from_seq: int, floor: int) -> tuple[int, int, Tombstone | None]:
    """The seqs start…stop that a reader at `from_seq` looks at next, and what it must be told of first."""
    return _bounds(topic, from_seq, floor, _earliest(topic, floor))


def _earliest(topic: Topic, floor: int) -> int:
    earliest = max(topic.earliest, min(floor, topic.head + 1))
    return _first_live(topic, earliest) if topic.count and earliest > topic.live_from else earliest


def _first_live(topic: Topic, seq: int) -> int:
    while seq <= topic.head and not topic.live_between(seq, seq):
        hole = next((hole for hole in topic.holes if hole.first <= seq <= hole.last), None)
        if hole is not None:
            seq = hole.last + 1
        else:
            assert topic.deleted is not None
            seq = topic.deleted.first_absent(seq)
    return seq


def _bounds(topic: Topic, from_seq: int, floor: int, earliest: int) -> tuple[int, int, Tombstone | None]:
    """The seqs start…stop to look at, and what was lost in front of them."""
    tombstone = None
    if from_seq > topic.head:
        # The reader knows seqs that this topic never had: it was deleted and made anew.
        tombstone = Tombstone(1, topic.head, REASON_RECREATED)
        start = earliest
    elif from_seq + 1 < floor:
        reason = topic.reason or "ttl"
        if floor > topic.floor:
            reason = "ttl" if topic.reason in (None, "ttl") else REASON_MIXED
        tombstone = Tombstone(from_seq + 1, floor - 1, reason)
        start = max(earliest, from_seq + 1)
    else:
        start = max(earliest, from_seq + 1)
    stop = topic.head
    for hole in topic.holes:
        if hole.last <= from_seq or hole.last < floor:
            continue
        if tombstone is None and hole.first <= start:
            # Lost seqs lie between the cursor and the next record.
            tombstone = Tombstone(max(hole.first, from_seq + 1), hole.last, hole.reason)
            start = max(start, hole.last + 1)
        elif tombstone is None or hole.first > tombstone.gap_to:
            # One tombstone per answer: this read ends in front of the next hole.
            stop = min(stop, hole.first - 1)
            break
    return start, stop, tombstone


def _read_plain(
    topic: Topic,
    start: int,
    stop: int,
    view: View,
    source: PieceSource,
    result: ReadResult,
    extents_allowed: bool,
) -> None:
    stop = min(stop, start + view.limit - 1)
    result.next_from = stop
    budget = view.max_bytes
    newest = topic.newest_first
    if start == newest and newest + topic.newest_count - 1 <= stop and topic.newest_size <= budget:
        _take_newest(topic, source, result, extents_allowed)
        return
    runs = topic.runs
    for place in range(bisect_left(runs, start, key=_last_of), len(runs)):
        run = runs[place]
        if run.first > stop:
            break
        for piece in source.sealed_pieces(run.segment, topic.id, max(start, run.first), min(stop, run.last)):
            budget = _take(piece, start, stop, budget, result)
            if result.next_from != stop:
                return
    hot = topic.hot
    index = hot.index_of(start)
    if index < len(hot.first) and hot.first[index] <= stop:
        _read_hot(topic, index, start, stop, budget, source, result, extents_allowed)


def _take_newest(topic: Topic, source: PieceSource, result: ReadResult, extents_allowed: bool) -> None:
    """The newest batch, whole: what a reader that keeps up asks for. The topic itself knows where it is."""
    lsn, size = topic.newest_lsn, topic.newest_size
    result.delivered = result.scanned = topic.newest_count
    if extents_allowed and size >= SENDFILE_MIN_BYTES:
        source.verify_hot(lsn)
        # Without the comma behind the last record.
        result.extents.append((lsn >> LSN_OFFSET_BITS, lsn & LSN_OFFSET_MASK, size - 1))
    else:
        result.chunks = [*source.hot_json((lsn,), (size,))]


def _last_of(run: Run) -> int:
    return run.last


def _take(piece: Piece, start: int, stop: int, budget: int, result: ReadResult) -> int:
    """Deliver the records start…stop of a piece as far as they fit; returns what is left of the budget."""
    low, high = piece.index_of(start), piece.index_of(stop + 1)
    if low >= high:
        return budget
    fitting, budget = _fit(piece, low, high, budget, first=not result.delivered)
    if fitting > low:
        ends = piece.columns.ends
        result.chunks.append(piece.json[ends[low - 1] if low else 0 : ends[fitting - 1]])
        result.delivered += fitting - low
        result.scanned = result.delivered
    if fitting < high:
        result.next_from = piece.seq_at(fitting) - 1
    return budget


def _fit(piece: Piece, low: int, high: int, budget: int, *, first: bool) -> tuple[int, int]:
    """How far [low, high) fits into `budget` bytes; the very first record always does."""
    ends = piece.columns.ends
    base = ends[low - 1] if low else 0
    if ends[high - 1] - base <= budget:
        return high, budget - (ends[high - 1] - base)
    fits = low
    while fits < high and ends[fits] - base <= budget:
        fits += 1
    if first and fits == low:
        fits = low + 1
    return fits, 0


def _read_hot(
    topic: Topic,
    index: int,
    start: int,
    stop: int,
    budget: int,
    source: PieceSource,
    result: ReadResult,
    extents_allowed: bool,
) -> None:
    """The part of a plain read that is hot: whole batches without a look inside, cut ones at both ends."""
    hot = topic.hot
    end = hot.last_from(stop)
    stretches: list[tuple[int, int, int]] = []  # entry, begin and end of its bytes
    sizes = hot.size[index : end + 1]
    whole = hot.first[index] >= start and hot.first[end] + hot.count[end] - 1 <= stop and sum(sizes) <= budget
    if whole:
        stretches = [(index + place, 0, size) for place, size in enumerate(sizes)]
        result.delivered += sum(hot.count[index : end + 1])
    else:
        _cut_hot(topic, index, end, start, stop, budget, source, result, stretches)
    result.scanned = result.delivered
    lsns = hot.lsn[index : end + 1]
    in_log = IN_MEMORY not in lsns
    if in_log and extents_allowed and not result.chunks and _worth_extents(stretches):
        for at, begin, finish in stretches:
            lsn = lsns[at - index]
            source.verify_hot(lsn)
            result.extents.append((lsn >> LSN_OFFSET_BITS, (lsn & LSN_OFFSET_MASK) + begin, finish - begin))
        file_no, offset, length = result.extents[-1]
        result.extents[-1] = (file_no, offset, length - 1)  # without the comma behind the last record
    elif in_log and whole:
        result.chunks.extend(source.hot_json(lsns, sizes))
    else:
        for at, begin, finish in stretches:
            result.chunks.append(topic.hot_piece(at, source).json[begin:finish])


def _cut_hot(
    topic: Topic,
    index: int,
    end: int,
    start: int,
    stop: int,
    budget: int,
    source: PieceSource,
    result: ReadResult,
    stretches: list[tuple[int, int, int]],
) -> None:
    hot = topic.hot
    for at in range(index, end + 1):
        first, count, size = hot.first[at], hot.count[at], hot.size[at]
        low, high = max(0, start - first), min(count, stop - first + 1)
        if low == 0 and high == count and size <= budget:
            stretches.append((at, 0, size))
            budget -= size
            result.delivered += count
            continue
        piece = topic.hot_piece(at, source)
        fitting, budget = _fit(piece, low, high, budget, first=not result.delivered)
        if fitting > low:
            ends = piece.columns.ends
            stretches.append((at, ends[low - 1] if low else 0, ends[fitting - 1]))
            result.delivered += fitting - low
        if fitting < high:
            result.next_from = first + fitting - 1
            return


def _worth_extents(stretches: list[tuple[int, int, int]]) -> bool:
    """Few enough pieces, and enough bytes to pay for handing over files instead."""
    if not 0 < len(stretches) <= EXTENTS_MAX_PER_ANSWER:
        return False
    return sum(finish - begin for _, begin, finish in stretches) >= SENDFILE_MIN_BYTES


def _read_filtered(
    topic: Topic, start: int, stop: int, view: View, source: PieceSource, result: ReadResult
) -> None:
    budget = view.max_bytes
    result.next_from = stop
    for piece in topic.pieces(start, source):
        low, high = piece.index_of(start), piece.index_of(stop + 1)
        if low >= high:
            break
        for begin, end in _runs(wanted_in(topic, piece, low, high, view)):
            begin, end = low + begin, low + end
            most = min(end, begin + view.limit - result.delivered)
            fitting = begin
            if most > begin:
                fitting, budget = _fit(piece, begin, most, budget, first=not result.delivered)
            result.chunks.extend(_shown(piece, begin, fitting, view))
            result.delivered += fitting - begin
            if fitting < end:
                result.scanned += fitting - low
                result.next_from = piece.seq_at(fitting) - 1
                return
        result.scanned += high - low
        if result.scanned >= READ_SCAN_MAX_RECORDS and piece.seq_at(high - 1) < stop:
            # A filter that matches nothing must not hold up the shard: the reader goes on from here.
            result.next_from = piece.seq_at(high - 1)
            return


def wanted_in(topic: Topic, piece: Piece, low: int, high: int, view: View) -> Sequence[bool]:
    """Which of the piece's records [low, high) are live and not filtered out."""
    first, last = piece.seq_at(low), piece.seq_at(high - 1)
    if piece.dense and last <= topic.head and topic.live_between(first, last) == high - low:
        wanted = [True] * (high - low)
    else:
        wanted = [topic.is_live(piece.seq_at(index)) for index in range(low, high)]
    if view.nodes:
        for index, node in enumerate(piece.columns.values("node")[low:high]):
            if node is not None and node in view.nodes:
                wanted[index] = False
    if view.match is not None:
        value, prefix = view.match.value.encode(), view.match.op == "Glob"
        for index, held in enumerate(piece.columns.values(view.match.field)[low:high]):
            if held is None or not (held.startswith(value) if prefix else held == value):
                wanted[index] = False
    return wanted


def _runs(wanted: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Where neighbours are wanted: (begin, end), ascending."""
    flags, end = bytes(wanted), 0
    while (begin := flags.find(1, end)) >= 0:
        end = flags.find(0, begin)
        if end < 0:
            end = len(flags)
        yield begin, end


def _shown(piece: Piece, low: int, high: int, view: View) -> Sequence[bytes | memoryview]:
    """The records [low, high) as `view` wants them, each with its comma."""
    if low == high:
        return ()
    columns = piece.columns
    ends = columns.ends
    base = ends[low - 1] if low else 0
    if view.as_written:
        return (piece.json[base : ends[high - 1]],)
    text = bytes(piece.json[base : ends[high - 1]])
    begins = [0, *(end - base for end in ends[low:high])]
    records = [text[begin:end] for begin, end in pairwise(begins)]
    if not (view.include_meta and view.include_data):
        meta = columns.meta[low:high] if columns.meta is not None else repeat(0, high - low)
        records = [
            _shortened(record, meta_bytes, view) for record, meta_bytes in zip(records, meta, strict=True)
        ]
    for name, field, included in (("$key", "key", view.include_keys), ("$tag", "tag", view.include_tags)):
        if included and columns.column_flags & FIELD_COLUMN[field]:
            # The keys before the tags: both go to the same place, and the later one ends up in front.
            values = columns.values(field)[low:high]
            labels = {value: _label(name, value) for value in set(values) if value is not None}
            records = [
                record if value is None else _labelled(record, labels[value])
                for record, value in zip(records, values, strict=True)
            ]
    return records


def _shortened(record: bytes, meta_bytes: int, view: View) -> bytes:
    if not view.include_data:
        # In front of it stand numbers and the node, a string, in which this quote would be escaped.
        data_start = record.index(b',"data":')
        data_end = len(record) - 2 - meta_bytes
        record = record[:data_start] + record[data_end:]
    if not view.include_meta and meta_bytes:
        record = record[: -2 - meta_bytes] + b"},"
    return record


def _label(name: str, value: bytes) -> bytes:
    return b',"%b":%b' % (name.encode(), msgspec.json.encode(value.decode()))


def _labelled(record: bytes, label: bytes) -> bytes:
    # Behind the `$ts` number, which ends at the next comma.
    at = record.find(b",", record.index(b'"$ts":'), -1)
    if at < 0:  # nothing follows the stamp: the record is shown without its data
        at = len(record) - 2
    return record[:at] + label + record[at:]
