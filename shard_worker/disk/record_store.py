"""Where records are read from: batches in log files, blocks in segment files, hot or cold.

Every byte that leaves here was written or verified since this process started: replay verifies the log's tail,
older frames are verified when they are first touched, blocks and indexes whenever they are loaded.
"""

from __future__ import annotations

import errno
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from struct import Struct
from typing import TypeVar

from librt.strings import BytesWriter

from shard_worker.core.hot_index import HotIndex
from shard_worker.core.piece import Piece
from shard_worker.core.seq_set import SeqSet
from shard_worker.core.shard_state import TIER_COLD, SegmentEntry, ShardState
from shard_worker.disk.byte_cache import ByteCache
from shard_worker.disk.moved_ends import move_ends
from shard_worker.disk.wal import Wal
from shared.columns import COLUMN_ENDS, Columns
from shared.errors import ColdUnreachable, CorruptFrame, CorruptSegment, OutOfDescriptors
from shared.format_errors import BadBytes, FormatError
from shared.frame import FRAME_MAX_BYTES, Frame, decode_frame
from shared.int_arrays import is_ascending, is_strictly_ascending, load_u32, load_u64
from shared.io.durable_fs import File, FileSystem
from shared.io.object_store import StoreUnreachable
from shared.limits import BLOCK_MAX_RECORDS, BLOCK_TARGET_BYTES, SEGMENT_MAX_OPEN_FILES
from shared.packing import put_u32
from shared.segment_index import BlockEntry, SegmentIndex
from shared.segment_reader import (
    read_block,
    read_block_columns,
    read_header,
    read_index,
    read_terms,
    read_trailer,
)
from shared.segment_terms import Terms, Trailer
from shared.store_layout import segment_file_name as segment_file_name
from shared.store_layout import segment_number as segment_number
from shared.wal_format import FLAG_EXTRA, JSON_OFFSET

_T = TypeVar("_T")

_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)
_FLAGS_AT = 10
_COLUMNS_LENGTH_AT = 60
_u16 = Struct("<H").unpack_from
_u32 = Struct("<I").unpack_from
_LENGTH_AT = 4
_SIZE_UNKNOWN = 0
_GAP_BYTES = 1024  # reading over a smaller gap is cheaper than another call
_SPAN_BYTES = 1 << 20
_PLAIN = (0, COLUMN_ENDS)  # columns of a batch whose records have nothing but data
_SPARSE = 4  # bytes read per byte wanted, up to which a single read beats looking for gaps


def _plain_until(hot: HotIndex, place: int) -> int:
    """Up to which batch those from `place` on go into one piece, of a block at most; `place` if it is not plain."""
    if hot.flags[place] not in _PLAIN:
        return place
    most = min(len(hot.first), place + BLOCK_MAX_RECORDS)
    if hot.last_of(most - 1) - hot.first[place] < BLOCK_MAX_RECORDS:
        # As many seqs as batches: they have one record each, and follow each other.
        singles = hot.last_of(most - 1) - hot.first[place] + 1 == most - place
        plain = singles and not any(hot.flags[place:most])
        if plain and sum(hot.size[place:most]) <= BLOCK_TARGET_BYTES:
            return most
    until, seq, size = place, hot.first[place], 0
    stop = seq + BLOCK_MAX_RECORDS
    while until < most and hot.flags[until] in _PLAIN and hot.first[until] == seq:
        size += hot.size[until]
        seq += hot.count[until]
        if until > place and (size > BLOCK_TARGET_BYTES or seq > stop):
            break
        until += 1
    return until


class RecordStore:
    def __init__(
        self,
        fs: FileSystem,
        wal: Wal,
        state: ShardState,
        *,
        shard: int,
        hot_directory: str,
        cold_directory: str | None,
        cache_bytes: int,
    ) -> None:
        self._fs = fs
        self._shard = shard
        self._wal = wal
        self._state = state
        self._hot_directory = hot_directory
        self._cold_directory = cold_directory
        self._files: dict[int, File] = {}
        self.cache = ByteCache(cache_bytes)
        self.verified_from = 0  # log positions from here on were verified by replay or written by us
        self._verified = SeqSet()  # older ones that were verified since

    # --- log --------------------------------------------------------------------------------------------

    def hot_piece(
        self, topic_id: int, first: int, count: int, ts: int, lsn: int, size: int, flags: int
    ) -> Piece:
        self.verify_hot(lsn)
        return Piece(
            first=first,
            last=first + count - 1,
            count=count,
            ts=ts,
            load_columns=lambda: (self._hot_columns(count, lsn, size, flags), None, None),
            load_json=lambda: memoryview(self._read_log(lsn, size)),
        )

    def hot_pieces(self, topic_id: int, hot: HotIndex) -> Iterator[Piece]:
        """The batches one after the other; plain ones in a row come as one piece, read in one go.

        For sealing: a read, an object and a look at the columns for every batch would cost more than all the rest.
        """
        place, end = hot.start, len(hot.first)
        while place < end:
            until = _plain_until(hot, place)
            if until > place:
                yield self._merged(hot, place, until)
            else:
                until = place + 1
                yield self.hot_piece(topic_id, *hot.entry(place))
            place = until

    def _merged(self, hot: HotIndex, place: int, until: int) -> Piece:
        """The plain batches [place, until), whose seqs follow each other."""
        lsns, sizes, counts = hot.lsn[place:until], hot.size[place:until], hot.count[place:until]
        count, stamps = sum(counts), hot.ts[place:until]
        times = None
        try:
            if count == until - place:
                json = b"".join(self.hot_json(lsns, sizes))
                ends = array("I", accumulate(sizes))
                if not is_strictly_ascending(ends):
                    raise BadBytes("record ends do not divide the JSON part")
            else:
                json, ends = self._joined(lsns, sizes, counts)
            columns = Columns.of_ends(ends, len(json))
        except BadBytes as err:
            raise self._damaged(lsns[0], str(err)) from err
        if stamps[0] != stamps[-1]:
            times = stamps
            if count > until - place:
                pairs = zip(stamps, counts, strict=True)
                times = load_u64(b"".join([ts.to_bytes(8, "little") * n for ts, n in pairs]))
        return Piece(
            first=hot.first[place],
            last=hot.last_of(until - 1),
            count=count,
            ts=stamps[-1],
            load_columns=lambda: (columns, None, times),
            load_json=lambda: memoryview(json),
            times_ascend=is_ascending(stamps),
        )

    def _joined(
        self, lsns: Sequence[int], sizes: Sequence[int], counts: Sequence[int]
    ) -> tuple[bytes, array[int]]:
        """The JSON of several batches, and where its records end; copied once, from where it was read."""
        # The ends of several records stand right behind their JSON; that of a single one is not written.
        lengths = [size + 4 * n if n > 1 else size for size, n in zip(sizes, counts, strict=True)]
        texts: list[memoryview] = []
        ends = BytesWriter()
        before = 0
        for span, place, until in self._spans(lsns, lengths):
            view, start = memoryview(span), lsns[place]
            for batch in range(place, until):
                at, size, count = lsns[batch] - start, sizes[batch], counts[batch]
                behind = at + size
                texts.append(view[at:behind])
                if count == 1:
                    put_u32(ends, before + size)
                elif not move_ends(ends, span, behind, count, size, before):
                    raise BadBytes("record ends do not divide the JSON part")
                before += size
        return b"".join(texts), load_u32(ends.getvalue())

    def hot_json(self, lsns: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """Batches that stand close together in the log are read with one call and cut apart in memory."""
        if len(lsns) == 1:
            self.verify_hot(lsns[0])
            return [self._read_log(lsns[0], sizes[0])]
        found: list[bytes] = []
        for span, place, until in self._spans(lsns, sizes):
            start = lsns[place]
            found += [
                span[lsn - start : lsn - start + size]
                for lsn, size in zip(lsns[place:until], sizes[place:until], strict=True)
            ]
        return found

    def _spans(self, lsns: Sequence[int], sizes: Sequence[int]) -> Iterator[tuple[bytes, int, int]]:
        """The batches, verified, in few reads: what was read, and which of them, [place, until), it holds."""
        if lsns[0] < self.verified_from:
            for lsn in lsns:
                self.verify_hot(lsn)
        place, count = 0, len(lsns)
        while place < count:
            until = self._span_end(lsns, sizes, place)
            start = lsns[place]
            yield self._read_log(start, lsns[until - 1] + sizes[until - 1] - start), place, until
            place = until

    def hot_part(self, lsn: int, size: int, count: int, start: int, stop: int) -> bytes:
        self.verify_hot(lsn)
        begin, end = 0, size
        # The ends of the records are the first column, right behind their JSON.
        if start:
            begin = self._u32_at(lsn + size + 4 * (start - 1))
        if stop < count - 1:
            end = self._u32_at(lsn + size + 4 * stop)
        if not begin < end <= size:
            raise self._damaged(lsn, "record ends do not divide the JSON part")
        return self._read_log(lsn + begin, end - begin)

    def _u32_at(self, lsn: int) -> int:
        found = self._read_log(lsn, 4)
        if len(found) < 4:
            raise self._damaged(lsn, "a frame is cut off")
        return int(_u32(found, 0)[0])

    def _span_end(self, lsns: Sequence[int], sizes: Sequence[int], place: int) -> int:
        """Up to which batch one read is worth it, from the one at `place`."""
        start, count = lsns[place], len(lsns)
        whole = lsns[-1] + sizes[-1] - start
        if whole <= _SPAN_BYTES and whole <= _SPARSE * sum(sizes[place:]):
            return count
        end, until = start + sizes[place], place + 1
        while until < count and lsns[until] - end < _GAP_BYTES and lsns[until] - start < _SPAN_BYTES:
            end = lsns[until] + sizes[until]
            until += 1
        return until

    def verify_hot(self, lsn: int) -> None:
        """Make sure that the frame whose JSON part is at `lsn` is intact."""
        if lsn >= self.verified_from or lsn in self._verified:
            return
        at = lsn - JSON_OFFSET
        header = self._read_log(at, JSON_OFFSET)
        length = _u32(header, _LENGTH_AT)[0] if len(header) == JSON_OFFSET else 0
        found = None
        if JSON_OFFSET <= length <= FRAME_MAX_BYTES:
            found = decode_frame(memoryview(self._read_log(at, length)), 0, at)
        if not isinstance(found, Frame):
            raise self._damaged(at, getattr(found, "reason", "a frame is missing"))
        self._verified.add(lsn)

    def _read_log(self, lsn: int, length: int) -> bytes:
        try:
            return self._wal.read(lsn, length)
        except OSError as err:
            raise self._damaged(lsn, f"cannot be read: {err}") from err

    def _damaged(self, lsn: int, reason: str) -> CorruptFrame:
        return CorruptFrame(path=self._wal.path_of(lsn), offset=lsn & 0xFFFFFFFF, reason=reason)

    def _hot_columns(self, count: int, lsn: int, size: int, flags: int) -> Columns:
        if not flags:
            return Columns(0, count, size, memoryview(b""))
        if flags == COLUMN_ENDS:
            return Columns(flags, count, size, memoryview(self._read_log(lsn + size, 4 * count)))
        header = self._read_log(lsn - JSON_OFFSET, JSON_OFFSET)
        length = _u32(header, _COLUMNS_LENGTH_AT)[0]
        columns = self._read_log(lsn + size, length)
        if _u16(header, _FLAGS_AT)[0] & FLAG_EXTRA:
            extra = _u32(columns, length - 4)[0]
            columns = columns[: length - 4 - extra]
        return Columns(flags, count, size, memoryview(columns))

    # --- segments ---------------------------------------------------------------------------------------

    def run_added(self, segment: int) -> None:
        if segment not in self._state.segments:
            # The frame that told of it is damaged. Its file is still there, and known by its number.
            self._state.segments[segment] = SegmentEntry(segment, _SIZE_UNKNOWN, "0" * 16)
        self._state.segments[segment].runs += 1

    def run_dropped(self, segment: int) -> None:
        self._state.segments[segment].runs -= 1

    def segment_path(self, number: int) -> str:
        entry = self._state.segments.get(number)
        if entry is not None and entry.tier == TIER_COLD and self._cold_directory is not None:
            return f"{self._cold_directory}/data/{segment_file_name(number)}"
        return f"{self._hot_directory}/{segment_file_name(number)}"

    def sealed_pieces(self, segment: int, topic_id: int, first: int, last: int) -> Iterator[Piece]:
        index = self._index(segment)
        if index.topic(topic_id) is None:
            raise CorruptSegment(path=self.segment_path(segment), reason=f"holds nothing of topic {topic_id}")
        ordinal = index.block_for(topic_id, first)
        if ordinal is None:
            return
        for at in range(ordinal, index.blocks_of(topic_id).stop):
            entry = index.block(at)
            if entry.first > last:
                return
            yield self._block_piece(segment, at, entry)

    def sealed_matches(
        self, segment: int, topic_id: int, field: str, value: bytes, prefix: bool
    ) -> Iterator[Piece]:
        index = self._index(segment)
        if prefix:
            ordinals = index.glob_blocks(topic_id, field, value)
        else:
            ordinals = self._terms(segment).find_blocks(topic_id, field, value)
        for ordinal in ordinals:
            entry = index.block(ordinal)
            if entry.topic_id == topic_id:  # a hash may collide
                yield self._block_piece(segment, ordinal, entry)

    def _block_piece(self, segment: int, ordinal: int, entry: BlockEntry) -> Piece:
        def columns() -> tuple[Columns, Sequence[int] | None, array[int] | None]:
            def load() -> tuple[tuple[Columns, Sequence[int], array[int] | None], int]:
                block = self._guard(segment, lambda file: read_block_columns(file.pread, entry), entry.offset)
                times = block.times if not isinstance(block.times, int) else None
                return (block.columns, block.seqs, times), 256 + 16 * entry.count + len(block.columns._buffer)

            return self.cache.get((segment, ordinal, "columns"), load)

        def json() -> memoryview:
            def load() -> tuple[memoryview, int]:
                block = self._guard(segment, lambda file: read_block(file.pread, entry), entry.offset)
                return block.json, 256 + len(block.json)

            return self.cache.get((segment, ordinal, "json"), load)

        return Piece(
            first=entry.first,
            last=entry.last,
            count=entry.count,
            ts=entry.max_ts,
            load_columns=columns,
            load_json=json,
            size=entry.json_bytes,
        )

    def _trailer(self, segment: int) -> Trailer:
        def read(file: File) -> Trailer:
            self._check_identity(segment, file)
            return read_trailer(file.pread, file.size())

        def load() -> tuple[Trailer, int]:
            return self._guard(segment, read), 256

        return self.cache.get((segment, 0, "trailer"), load)

    def _check_identity(self, segment: int, file: File) -> None:
        """An intact file of another number, shard or size must not be served in the place of the right one."""
        header = read_header(file.pread)
        if (header.number, header.shard) != (segment, self._shard):
            raise BadBytes(f"this is segment {header.number} of shard {header.shard}")
        expected = self._state.segments[segment].size
        if expected != _SIZE_UNKNOWN and file.size() != expected:
            raise BadBytes(f"{file.size()} bytes instead of {expected}", file.size())

    def _index(self, segment: int) -> SegmentIndex:
        def load() -> tuple[SegmentIndex, int]:
            trailer = self._trailer(segment)
            index = self._guard(segment, lambda file: read_index(file.pread, trailer))
            return index, 1024 + 100 * index.block_count + 160 * index.topic_count

        return self.cache.get((segment, 0, "index"), load)

    def _terms(self, segment: int) -> Terms:
        def load() -> tuple[Terms, int]:
            trailer = self._trailer(segment)
            terms = self._guard(segment, lambda file: read_terms(file.pread, trailer))
            return terms, 256 + 12 * terms.count

        return self.cache.get((segment, 0, "terms"), load)

    def _guard(self, segment: int, use: Callable[[File], _T], block_at: int | None = None) -> _T:
        """Run `use(file)`; whatever is wrong with the file becomes an error that names it.

        `block_at`: where the block starts that is looked at; its codec counts from there.
        """
        path = self.segment_path(segment)
        try:
            return use(self._file(segment))
        except FormatError as err:
            offset = getattr(err, "offset", None) if block_at is None else block_at
            raise CorruptSegment(path=path, offset=offset, reason=str(err)) from err
        except StoreUnreachable as err:
            raise ColdUnreachable(path=path, reason=str(err)) from err
        except OSError as err:
            if err.errno in _OUT_OF_FILES:
                # Our own shortage, not the file's fault.
                raise OutOfDescriptors(path=path) from err
            raise CorruptSegment(path=path, offset=None, reason=f"cannot be read: {err}") from err

    def _file(self, segment: int) -> File:
        """Open files are kept, the most recently used last, and only so many."""
        file = self._files.pop(segment, None)
        if file is None:
            while len(self._files) >= SEGMENT_MAX_OPEN_FILES:
                self._files.pop(next(iter(self._files))).close()
            file = self._open(segment)
        self._files[segment] = file
        return file

    def _open(self, segment: int) -> File:
        path = self.segment_path(segment)
        try:
            return self._fs.open(path)
        except FileNotFoundError:
            # Replay may stand in front of the frame that says that the segment has moved.
            cold = f"{self._cold_directory}/data/{segment_file_name(segment)}"
            if self._cold_directory is None or path == cold:
                raise
            return self._fs.open(cold)

    def forget_segment(self, number: int) -> None:
        """The file is gone, or has moved: open it anew when it is next needed."""
        file = self._files.pop(number, None)
        if file is not None:
            file.close()
        self.cache.drop(lambda key: isinstance(key, tuple) and key[0] == number)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files = {}
