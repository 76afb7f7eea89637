"""The live records of one topic, cut into blocks of a segment: for sealing, and for moving topics to another shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shard_worker.core.piece import Piece
from shard_worker.core.seq_set import SeqSet
from shared.columns import Columns
from shared.limits import BLOCK_TARGET_BYTES
from shared.record_assembler import AssembledRecords, RecordAssembler


def cut_blocks(pieces: Iterable[Piece], live_from: int, deleted: SeqSet | None) -> Iterator[AssembledRecords]:
    """`pieces` ascending by seq. Records below `live_from` or in `deleted` are left out."""
    assembler = RecordAssembler()
    for piece in pieces:
        for low, high in _live_runs(piece, live_from, deleted):
            while low < high:
                upto = _fitting(piece.columns, low, high, assembler)
                assembler.add_block(piece.json, piece.columns, low, upto, piece.seqs, piece.times)
                low = upto
                if not assembler.room or assembler.json_bytes >= BLOCK_TARGET_BYTES:
                    yield assembler.finish()
                    assembler = RecordAssembler()
    if assembler.count:
        yield assembler.finish()


def _live_runs(piece: Piece, live_from: int, deleted: SeqSet | None) -> Iterator[tuple[int, int]]:
    """The stretches [low, high) of the piece that are live."""
    low = piece.index_of(live_from)
    if deleted is not None and low < piece.count:
        for seq in deleted.within(piece.seq_at(low), piece.last):
            index = piece.index_of(seq)
            if index < piece.count and piece.seq_at(index) == seq:
                if index > low:
                    yield low, index
                low = index + 1
    if low < piece.count:
        yield low, piece.count


def _fitting(columns: Columns, low: int, high: int, assembler: RecordAssembler) -> int:
    """How many of [low, high) go into the current block: at least one, then up to its target size."""
    high = min(high, low + assembler.room)
    ends = columns.ends
    start = ends[low - 1] if low else 0
    if ends[high - 1] - start + assembler.json_bytes <= BLOCK_TARGET_BYTES:
        return high
    upto = low + 1
    while upto < high and ends[upto - 1] - start + assembler.json_bytes < BLOCK_TARGET_BYTES:
        upto += 1
    return upto
