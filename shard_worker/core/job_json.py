"""Jobs as a claim shows them: the stored record, with delivery count, lease and deadline put in."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shard_worker.core.piece import Piece, PieceSource
from shard_worker.core.topic import Topic
from shared.control_frames import LeaseRow


def records_of(topic: Topic, seqs: Iterable[int], source: PieceSource) -> list[tuple[int, Piece, int]]:
    """(seq, piece, place in it) of each live record, ascending; a piece is loaded once however many are in it."""
    found: list[tuple[int, Piece, int]] = []
    hot = topic.hot
    piece: Piece | None = None
    for seq in sorted(seqs):
        if piece is None or not piece.first <= seq <= piece.last:
            index = hot.index_of(seq)
            if index < len(hot.first) and hot.first[index] <= seq:
                piece = topic.hot_piece(index, source)
            else:
                piece = next(iter(topic.pieces(seq, source)))
        found.append((seq, piece, piece.index_of(seq)))
    return found


def record_text(piece: Piece, place: int) -> bytes:
    """The record as it is stored, without its comma."""
    ends = piece.columns.ends
    return bytes(piece.json[ends[place - 1] if place else 0 : ends[place] - 1])


def job_json(grant: LeaseRow, piece: Piece, place: int) -> bytes:
    text = record_text(piece, place)
    tag = piece.columns.tag(place)
    shown = b"" if tag is None else b',"$tag":' + msgspec.json.encode(tag.decode())
    # Behind the `$ts` number, which ends at the next comma.
    at = text.index(b",", text.index(b'"$ts":'))
    return b'%b%b,"deliveries":%d,"lease_id":"%b","deadline":%d%b' % (
        text[:at],
        shown,
        grant.deliveries,
        grant.token.encode(),
        grant.deadline_ms,
        text[at:],
    )


def moved_record(topic: Topic, piece: Piece, place: int, seq: int, deliveries: int | None) -> bytes:
    """The record as a writer would send it to another topic; with `deliveries`, marked as a dead letter."""
    columns = piece.columns
    text = record_text(piece, place)
    meta_bytes = columns.meta[place] if columns.meta is not None else 0
    data_at = text.index(b'"data":') + len(b'"data":')
    data = text[data_at : len(text) - 1 - meta_bytes]
    fields = [b'"data":' + data]
    for name, value in (
        ("node", columns.node(place)),
        ("tag", columns.tag(place)),
        ("key", columns.key(place)),
    ):
        if value is not None:
            fields.append(b'"%b":%b' % (name.encode(), msgspec.json.encode(value.decode())))
    meta = text[len(text) - meta_bytes + len(b'"meta":') : -1] if meta_bytes else b""
    if deliveries is not None:
        origin = b'"$dead_letter_from":%b,"$dead_letter_deliveries":%d,"$dead_letter_src_seq":%d' % (
            msgspec.json.encode(topic.name),
            deliveries,
            seq,
        )
        inner = meta[1:-1].strip()
        meta = b"{" + (inner + b"," if inner else b"") + origin + b"}"
    if meta:
        fields.append(b'"meta":' + meta)
    return b"{" + b",".join(fields) + b"}"
