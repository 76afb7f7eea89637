"""Jobs as a claim shows them: the stored record, with delivery count, lease and deadline put in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from shard_worker.core.hot_index import IN_MEMORY
from shard_worker.core.lease_tokens import token_parts
from shard_worker.core.piece import Piece, PieceSource
from shard_worker.core.topic import Topic
from shared.columns import COLUMN_TAG, FIELD_COLUMN, Columns
from shared.control_frames import LeaseRow
from shared.errors import DataDamage

_BEFORE_TIME: Final = b',"$ts":'

Placed = tuple[int, Piece, int]  # seq, piece, place in it


def records_of(topic: Topic, seqs: Iterable[int], source: PieceSource) -> list[Placed]:
    """The live records, ascending; a piece is loaded once however many are in it. Nothing is missing, or it raises."""
    found: list[Placed] = []
    wanted = sorted(seqs)
    hot = topic.hot
    singles = _plain_singles(topic, wanted, source)
    piece: Piece | None = None
    for seq in wanted:
        if piece is None or seq > piece.last:
            piece = singles.get(seq)
            if piece is None:
                index = hot.index_of(seq)
                if index < len(hot.first) and hot.first[index] <= seq:
                    piece = topic.hot_piece(index, source)
                else:
                    piece = next(iter(topic.pieces(seq, source)))
            dense, first = piece.dense, piece.first
        found.append((seq, piece, seq - first if dense else piece.index_of(seq)))
    return found


def readable_records(
    topic: Topic, seqs: Sequence[int], source: PieceSource
) -> tuple[list[Placed], dict[int, DataDamage]]:
    """The records that can be read, ascending, and what is wrong with the others."""
    try:
        return _loaded(records_of(topic, seqs, source)), {}
    except DataDamage:
        pass  # one by one, then: the neighbours of a damaged one are handed out all the same
    found: list[Placed] = []
    damaged: dict[int, DataDamage] = {}
    for seq in sorted(seqs):
        try:
            found += _loaded(records_of(topic, [seq], source))
        except DataDamage as err:
            damaged[seq] = err
    return found, damaged


def _loaded(records: list[Placed]) -> list[Placed]:
    """All of them with their bytes, so that damage shows now."""
    seen: Piece | None = None
    for _, piece, _ in records:
        if piece is not seen:
            seen = piece
            _ = piece.columns, piece.json
    return records


def _plain_singles(topic: Topic, wanted: Sequence[int], source: PieceSource) -> dict[int, Piece]:
    """Jobs that were written one by one, with nothing but data: all of them in one go, not a read for each."""
    hot = topic.hot
    entries = []
    known = 0  # up to here nothing is a single one
    for seq in wanted:
        if seq <= known:
            continue
        index = hot.index_of(seq)
        if index == len(hot.first) or hot.first[index] > seq:
            continue
        if hot.count[index] > 1:
            known = hot.last_of(index)
        elif not hot.flags[index] and hot.lsn[index] != IN_MEMORY:
            entries.append(hot.entry(index))
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


def stored_stretch(
    topic: Topic, first: int, last: int, source: PieceSource, max_bytes: int
) -> tuple[bytes, int] | None:
    """Live records that were written at the same time, as they are stored one behind the other, each with its comma,
    and that time. None where more than that is needed to show them, or they are large: then go record by record."""
    hot = topic.hot
    index = hot.find(first)
    if index < 0:
        return None
    count = hot.count[index]
    start = first - hot.first[index]
    stop = start + last - first
    if stop >= count:
        return _stored_in_batches(topic, index, first, last, source, max_bytes)
    lsn, size = hot.lsn[index], hot.size[index]
    if lsn == IN_MEMORY or hot.flags[index] & COLUMN_TAG or size > max_bytes:
        return None
    return source.hot_part(lsn, size, count, start, stop), hot.ts[index]


def _stored_in_batches(
    topic: Topic, index: int, first: int, last: int, source: PieceSource, max_bytes: int
) -> tuple[bytes, int] | None:
    """The same for a stretch that begins in the hot batch `index` and does not end there."""
    hot = topic.hot
    ends = len(hot.first)
    ts = hot.ts[index]
    lsns: list[int] = []
    sizes: list[int] = []
    begin = index
    while True:
        if (
            index == ends
            or hot.lsn[index] == IN_MEMORY
            or hot.flags[index] & COLUMN_TAG
            or hot.ts[index] != ts
        ):
            return None
        lsns.append(hot.lsn[index])
        sizes.append(hot.size[index])
        if hot.last_of(index) >= last:
            break
        index += 1
    if sum(sizes) > max_bytes:
        return None
    if hot.first[begin] == first and hot.last_of(index) == last:
        return b"".join(source.hot_json(lsns, sizes)), ts
    texts: list[bytes] = []
    for at in range(begin, index + 1):
        low, high = hot.first[at], hot.last_of(at)
        start, stop = max(low, first) - low, min(high, last) - low
        texts.append(source.hot_part(hot.lsn[at], hot.size[at], hot.count[at], start, stop))
    return b"".join(texts), ts


def stretch_text(
    text: bytes, ts: int, count: int, deliveries: int, prefix: str, number: int, deadline_ms: int
) -> bytes | None:
    """`count` records that were stored at `ts`, as one claim shows them; `text` is what `stored_stretch` found.

    Every record begins with `$seq` and `$ts`, and their lease goes behind that. If the name of the latter is found as
    often as there are records, it is in none of their data, and the text can be cut there in one go (it cannot overlap
    itself). It is not looked for together with the time: the search steps over what has no character in common with
    what it looks for, and letters and digits have the same low bits.
    """
    parts = text.split(_BEFORE_TIME)
    if len(parts) != count + 1:
        return None
    time = b"%d," % ts
    skipped = len(time)
    after = b'","deadline":%d,' % deadline_ms
    head, tokens = token_parts(prefix, number, count)
    before = b'%b%b"deliveries":%d,"lease_id":"%b' % (_BEFORE_TIME, time, deliveries, head)
    pieces = [before] * (4 * count + 1)
    pieces[0] = parts[0]
    at = 0
    for place, token in enumerate(tokens, 1):
        pieces[at + 2] = token
        pieces[at + 3] = after
        at += 4
        part = parts[place]
        if not part.startswith(time):  # not what was stored: it is told record by record
            return None
        pieces[at] = part[skipped:]
    pieces[at] = pieces[at][:-1]  # the comma behind the last one
    return b"".join(pieces)


class JobTexts:
    """Jobs as one claim shows them. What they have in common is looked up once per piece."""

    def __init__(self) -> None:
        self._piece: Piece | None = None

    def of(self, grant: LeaseRow, piece: Piece, place: int) -> bytes:
        if piece is not self._piece:
            self._piece = piece
            self._json, self._ends = piece.json, piece.columns.ends
            self._tagged = bool(piece.columns.column_flags & FIELD_COLUMN["tag"])
        ends = self._ends
        text = bytes(self._json[ends[place - 1] if place else 0 : ends[place] - 1])
        # Behind `$seq` and `$ts`, which every record begins with: the second comma.
        at = text.index(b",", text.index(b",") + 1)
        return b'%b%b,"deliveries":%d,"lease_id":"%b","deadline":%d%b' % (
            text[:at],
            self._tag(place) if self._tagged else b"",
            grant.deliveries,
            grant.token.encode(),
            grant.deadline_ms,
            text[at:],
        )

    def _tag(self, place: int) -> bytes:
        assert self._piece is not None
        tag = self._piece.columns.tag(place)
        return b"" if tag is None else b',"$tag":' + msgspec.json.encode(tag.decode())


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
