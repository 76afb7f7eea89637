"""Jobs as a claim shows them: the stored record, with delivery count, lease and deadline put in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from shard_worker.core.hot_index import IN_MEMORY
from shard_worker.core.piece import Piece, PieceSource
from shard_worker.core.topic import Topic
from shared.columns import Columns
from shared.control_frames import LeaseRow
from shared.errors import DataDamage

Placed = tuple[int, Piece, int]  # seq, piece, place in it


def records_of(topic: Topic, seqs: Iterable[int], source: PieceSource) -> list[Placed]:
    """The live records, ascending; a piece is loaded once however many are in it. Nothing is missing, or it raises."""
    found: list[Placed] = []
    wanted = sorted(seqs)
    hot = topic.hot
    singles = _plain_singles(topic, wanted, source)
    piece: Piece | None = None
    for seq in wanted:
        if piece is None or not piece.first <= seq <= piece.last:
            index = hot.index_of(seq)
            if seq in singles:
                piece = singles[seq]
            elif index < len(hot.first) and hot.first[index] <= seq:
                piece = topic.hot_piece(index, source)
            else:
                piece = next(iter(topic.pieces(seq, source)))
        found.append((seq, piece, piece.index_of(seq)))
    return found


def readable_records(
    topic: Topic, seqs: Sequence[int], source: PieceSource
) -> tuple[list[Placed], dict[int, DataDamage]]:
    """The records that can be read, ascending, and what is wrong with the others."""
    try:
        return [_loaded(placed) for placed in records_of(topic, seqs, source)], {}
    except DataDamage:
        pass  # one by one, then: the neighbours of a damaged one are handed out all the same
    found: list[Placed] = []
    damaged: dict[int, DataDamage] = {}
    for seq in sorted(seqs):
        try:
            found += map(_loaded, records_of(topic, [seq], source))
        except DataDamage as err:
            damaged[seq] = err
    return found, damaged


def _loaded(placed: Placed) -> Placed:
    _ = placed[1].columns, placed[1].json
    return placed


def _plain_singles(topic: Topic, wanted: Sequence[int], source: PieceSource) -> dict[int, Piece]:
    """Jobs that were written one by one, with nothing but data: all of them in one go, not a read for each."""
    hot = topic.hot
    entries = []
    for seq in wanted:
        index = hot.index_of(seq)
        if index < len(hot.first) and hot.count[index] == 1 and hot.first[index] == seq:
            entry = hot.entry(index)
            if not entry.flags and entry.lsn != IN_MEMORY:
                entries.append(entry)
    if len(entries) < 2:
        return {}
    texts = source.hot_json([entry.lsn for entry in entries], [entry.size for entry in entries])
    return {
        entry.first: _single(entry.first, entry.ts, text) for entry, text in zip(entries, texts, strict=True)
    }


def _single(seq: int, ts: int, text: bytes) -> Piece:
    return Piece(
        first=seq,
        last=seq,
        count=1,
        ts=ts,
        load_columns=lambda: (Columns(0, 1, len(text), memoryview(b"")), None, None),
        load_json=lambda: memoryview(text),
    )


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
        inner = without_origin(meta)[1:-1].strip() if meta else b""
        meta = b"{" + (inner + b"," if inner else b"") + origin + b"}"
    if meta:
        fields.append(b'"meta":' + meta)
    return b"{" + b",".join(fields) + b"}"


_ORIGIN = ("$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_src_seq")
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


def without_origin(meta: bytes) -> bytes:
    """A meta object without what an earlier move put into it; the rest stays byte for byte."""
    if b"$dead_letter_" not in meta:
        return meta
    kept = {name: value for name, value in _members.decode(meta).items() if name not in _ORIGIN}
    return msgspec.json.encode(kept)
