"""The live records of one topic, cut into blocks of a segment: for sealing, and for moving topics to another shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shard_worker.core.piece import Piece
from shard_worker.core.seq_set import SeqSet
from shared.block_cutting import join_blocks
from shared.limits import BLOCK_TARGET_BYTES
from shared.record_assembler import AssembledRecords


def cut_blocks(pieces: Iterable[Piece], live_from: int, deleted: SeqSet | None) -> Iterator[AssembledRecords]:
    """`pieces` ascending by seq. Records below `live_from` or in `deleted` are left out."""
    kept = ((piece, _live_runs(piece, live_from, deleted)) for piece in pieces)
    return join_blocks(kept, BLOCK_TARGET_BYTES)


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
