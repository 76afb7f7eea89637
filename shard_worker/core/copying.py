"""From records of one topic to copies for another: what a router takes, and what its destination makes of it.

Copies are spliced, not decoded: a record in the log is `{"$seq":N,"$ts":N` and a tail, and of the tail only what the
router changes is touched.
"""

from __future__ import annotations

from array import array
from itertools import accumulate

import msgspec

from shard_worker.core.batch import Batch
from shard_worker.core.piece import Piece, PieceSource
from shard_worker.core.reading import PLAIN_VIEW, Tombstone, span, wanted_in
from shard_worker.core.router import Router
from shard_worker.core.seq_text import seq_runs
from shard_worker.core.topic import Topic
from shared.columns import COLUMN_FLAGS, HAS_META, HAS_NODE, HAS_TAG
from shared.copies import Copies, pack_copies
from shared.int_arrays import dump
from shared.limits import (
    FORWARD_MAX_BYTES,
    FORWARD_MAX_RECORDS,
    FORWARD_SCAN_MAX_RECORDS,
    ROUTER_MAX_HOPS,
)
from shared.router_types import HOPS_KEY, MARK_KEY

_HEAD = len(b'{"$seq":') + len(b',"$ts":')  # and the digits of both numbers
_END = len(b"},")
_NODE = b',"$node":'
_META = b',"meta":'
_HOPS = b'"%b"' % HOPS_KEY.encode()
_MARK = b'"%b"' % MARK_KEY.encode()

_json = msgspec.json.encode
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Step(msgspec.Struct):
    """What a router does next: tell of a loss, or send copies; then it has dealt with everything up to `upto`."""

    upto: int
    lost: Tombstone | None = None
    copies: Copies | None = None


class Gathering:
    """Copies in the making."""

    def __init__(self, topic: Topic, router: Router) -> None:
        self._source = topic
        self._router = router
        self._rules = router.rules
        self.seqs = array("Q")
        self.tails: list[bytes] = []
        self.flags = bytearray()
        self.metas = array("I")
        self.nodes: list[bytes | None] = []
        self.tags: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.bytes = 0

    @property
    def full(self) -> bool:
        return len(self.tails) >= FORWARD_MAX_RECORDS or self.bytes >= FORWARD_MAX_BYTES

    def add(self, piece: Piece, place: int, seq: int, head: int, begin: int, end: int) -> None:
        """One record, at [begin, end) of the piece's JSON, of which `head` bytes are not copied."""
        columns, rules = piece.columns, self._rules
        tail = bytes(piece.json[begin + head : end])
        flags = columns.flags[place]
        meta_len = columns.meta[place] if columns.meta is not None else 0
        node = columns.node(place)
        if node is not None and not rules.preserve_node:
            tail = tail[len(_NODE) + len(_json(node.decode())) :]
            node, flags = None, flags & ~HAS_NODE
        tag = columns.tag(place) if rules.preserve_tag else None
        if not rules.preserve_tag:
            flags &= ~HAS_TAG
        if rules.marks_copies:
            meta = tail[-_END - meta_len + len(_META) : -_END] if meta_len else b""
            marked = self._marked(meta, seq)
            if marked is None:
                return  # it has been through as many routers as it may
            tail = tail[: len(tail) - _END - meta_len] + _META + marked + b"},"
            meta_len, flags = len(_META) + len(marked), flags | HAS_META
        self.seqs.append(seq)
        self.tails.append(tail)
        self.flags.append(flags)
        self.metas.append(meta_len)
        self.nodes.append(node)
        self.tags.append(tag)
        self.keys.append(columns.key(place))
        self.bytes += len(tail)

    def add_plain(self, seq: int, tail: bytes) -> None:
        """A record that has nothing but data, for a router that adds nothing."""
        self.seqs.append(seq)
        self.tails.append(tail)
        self.flags.append(0)
        self.metas.append(0)
        self.nodes.append(None)
        self.tags.append(None)
        self.keys.append(None)
        self.bytes += len(tail)

    def _marked(self, meta: bytes, seq: int) -> bytes | None:
        """The meta of the copy; None: it is not copied any further."""
        rules, added = self._rules, []
        if rules.allow_cycle:
            hops = _hops(meta)
            if hops >= ROUTER_MAX_HOPS:
                return None
            added.append(b"%b:%d" % (_HOPS, hops + 1))
        if rules.exactly_once:
            origin = {
                "router": self._router.name,
                "source": self._source.name,
                "epoch": self._source.epoch,
                "seq": seq,
            }
            added.append(_MARK + b":" + _json(origin))
        inner = _without_ours(meta)[1:-1].strip() if meta else b""
        if inner:
            added.append(inner)
        return b"{" + b",".join(added) + b"}"

    def pack(self) -> Copies | None:
        if not self.tails:
            return None
        flags = bytes(self.flags) if any(self.flags) else None
        return pack_copies(self.seqs, self.tails, flags, self.metas, self.nodes, self.tags, self.keys)


def gather(topic: Topic, router: Router, floor: int, source: PieceSource) -> Step:
    """The router's next step from where it stands; `floor` as in `reading.read`."""
    start, stop, lost = span(topic, router.cursor, floor)
    if lost is not None:
        return Step(max(lost.gap_to, router.cursor), lost=lost)
    gathering = Gathering(topic, router)
    view = PLAIN_VIEW._replace(match=router.rules.match)
    filtered = router.rules.match is not None
    scanned = 0
    upto = stop
    for piece in topic.pieces(start, source) if start <= stop else ():
        low, high = piece.index_of(start), piece.index_of(stop + 1)
        if low >= high:
            break
        whole = not filtered and (topic.deleted is None or not topic.deleted.count(piece.first, piece.last))
        wanted = None if whole else wanted_in(topic, piece, low, high, view)
        plain = not piece.columns.column_flags & COLUMN_FLAGS and not router.rules.marks_copies
        times, ends = piece.times, piece.columns.ends
        begin = ends[low - 1] if low else 0
        for place in range(low, high):
            seq, end = piece.seq_at(place), ends[place]
            if wanted is None or wanted[place - low]:
                if gathering.full:
                    return Step(seq - 1, copies=gathering.pack())
                head = _HEAD + len(str(seq)) + len(str(times if isinstance(times, int) else times[place]))
                if plain:
                    gathering.add_plain(seq, bytes(piece.json[begin + head : end]))
                else:
                    gathering.add(piece, place, seq, head, begin, end)
            begin = end
        scanned += high - low
        if scanned >= FORWARD_SCAN_MAX_RECORDS and piece.seq_at(high - 1) < stop:
            upto = piece.seq_at(high - 1)
            break
    return Step(max(upto, router.cursor), copies=gathering.pack())


def _hops(meta: bytes) -> int:
    if _HOPS not in meta:
        return 0
    value = bytes(_members.decode(meta).get(HOPS_KEY, msgspec.Raw(b"0")))
    # Whoever wrote something else there gets no extra rounds for it.
    return int(value) if value.isdigit() and len(value) < 10 else ROUTER_MAX_HOPS


def _without_ours(meta: bytes) -> bytes:
    """A meta object without what an earlier router put into it; the rest stays byte for byte."""
    if _HOPS not in meta and _MARK not in meta:
        return meta
    kept = {name: value for name, value in _members.decode(meta).items() if name not in (HOPS_KEY, MARK_KEY)}
    return _json(kept)


# --- at the destination -----------------------------------------------------------------------------------


def sizes_at(copies: Copies, first: int, ts: int) -> list[int]:
    """The bytes of each copy as a record from seq `first` on."""
    around = _HEAD + len(str(ts))
    ends = copies.decode_columns().ends
    sizes = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    return [size + around + len(str(first + place)) for place, size in enumerate(sizes)]


def as_batch(copies: Copies, first: int, ts: int) -> Batch:
    """The copies as records first, first + 1, … of the destination."""
    count = len(copies)
    if count == 1:
        json = b'{"$seq":%d,"$ts":%d%b' % (first, ts, copies.tails)
        return Batch(1, json, copies.column_flags, copies.columns)
    ends = copies.decode_columns().ends
    tails, stamp = copies.tails, b',"$ts":%d' % ts
    parts: list[bytes] = []
    begin = place = 0
    for leading, rest in seq_runs(first, count):
        lead = b'{"$seq":' + leading
        for last in rest:
            parts.append(lead + last + stamp + tails[begin : ends[place]])
            begin = ends[place]
            place += 1
    new_ends = array("I", accumulate(map(len, parts)))
    # The columns behind the ends say nothing about where records stand.
    columns = dump(new_ends) + copies.columns[4 * count :]
    return Batch(count, b"".join(parts), copies.column_flags, columns)
