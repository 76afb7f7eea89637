"""The drawings of an audit's report: inline SVG, sized by its box, a tooltip on everything that stands for a number."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from pyroaring import BitMap64

from shared.audit_findings import KINDS
from shared.audit_report import Report, SegmentRow, TopicRow

_WIDTH = 1000
_CELL = 16
_BUCKETS = 120
# What is wrong with records themselves; a finding about the history of a whole topic would paint over all of it.
_ON_STRIP = frozenset({"gap", "bad_block", "duplicate", "ts_order", "delete_not_honoured", "copy_differs"})


def svg(width: float, height: float, parts: Iterable[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}" '
        f'style="max-width:{width:g}px">{"".join(parts)}</svg>'
    )


def rect(x: float, y: float, width: float, height: float, kind: str, title: str, more: str = "") -> str:
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.5):.2f}" height="{height:.2f}" class="{kind}" {more}>'
        f"<title>{escape(title)}</title></rect>"
    )


def text(x: float, y: float, content: str, kind: str = "label", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(content)}</text>'


def findings_chart(counts: Sequence[tuple[str, int]]) -> str:
    """A bar per kind of finding, the longest first."""
    if not counts:
        return ""
    most = max(count for _, count in counts)
    row, left = 26, 170
    parts = []
    for place, (kind, count) in enumerate(counts):
        y = place * row
        severity, meaning = KINDS[kind]
        width = (_WIDTH - left - 60) * count / most
        parts.append(text(left - 10, y + 17, kind, anchor="end"))
        parts.append(
            rect(left, y + 5, max(width, 3), row - 10, severity, f"{kind}: {count}. {meaning}", 'rx="3"')
        )
        parts.append(text(left + max(width, 3) + 8, y + 17, f"{count:,}", "value"))
    return svg(_WIDTH, row * len(counts), parts, "findings by kind")


def segment_map(report: Report) -> str:
    """A cell per segment file, in the order of their making: where it is, and whether it is whole."""
    damaged = {
        (int(found["shard"]), int(found["segment"]))
        for found in report.findings
        if found["severity"] == "error" and "shard" in found and "segment" in found
    }
    rows = {(row.shard, row.number): row for row in report.segments}
    # Files that are missing or have no readable footer are no rows, and must be seen all the same.
    shards: dict[int, list[tuple[int, SegmentRow | None]]] = {}
    for key in sorted({*rows, *damaged}):
        shards.setdefault(key[0], []).append((key[1], rows.get(key)))
    per_line = (_WIDTH - 80) // _CELL
    parts: list[str] = []
    y = 0
    for shard, cells in shards.items():
        parts.append(text(0, y + 12, f"shard {shard}"))
        for place, (number, row) in enumerate(cells):
            x = 80 + place % per_line * _CELL
            top = y + place // per_line * _CELL
            kind = "lost" if row is None else row.tier
            if (shard, number) in damaged:
                kind = "lost" if row is None else "bad"
            told = f"segment {number} of shard {shard}: "
            told += (
                "missing or unreadable"
                if row is None
                else f"{row.tier}, {size_text(row.size)}, {row.records:,} records"
            )
            parts.append(rect(x, top, _CELL - 3, _CELL - 3, kind, told, 'rx="2"'))
        y += ((len(cells) - 1) // per_line + 1) * _CELL + 8
    return svg(_WIDTH, max(y, _CELL), parts, "segments by shard")


def timeline(segments: Sequence[SegmentRow]) -> str:
    """Bytes by the time of their records, hot over cold."""
    rows = [row for row in segments if row.max_ts]
    if not rows:
        return ""
    low, high = min(row.min_ts for row in rows), max(row.max_ts for row in rows)
    buckets = 48
    step = max((high - low) / buckets, 1.0)
    sums = {tier: [0.0] * buckets for tier in ("cold", "hot")}
    for row in rows:
        first, last = (min(int((ts - low) / step), buckets - 1) for ts in (row.min_ts, row.max_ts))
        for bucket in range(first, last + 1):
            sums[row.tier][bucket] += row.size / (last - first + 1)
    most = max(cold + hot for cold, hot in zip(sums["cold"], sums["hot"], strict=True))
    height, width = 110, _WIDTH / buckets
    parts = []
    for bucket in range(buckets):
        y = float(height)
        when = _day(low + bucket * step)
        for tier in ("cold", "hot"):
            share = sums[tier][bucket] / most * (height - 6)
            if share:
                y -= share
                told = f"around {when}: {size_text(int(sums[tier][bucket]))} {tier}"
                parts.append(rect(bucket * width + 1, y, width - 2, share, tier, told))
    parts.append(f'<line x1="0" x2="{_WIDTH}" y1="{height}" y2="{height}" class="axis"/>')
    parts.append(text(0, height + 16, _day(low)))
    parts.append(text(_WIDTH, height + 16, _day(high), anchor="end"))
    return svg(_WIDTH, height + 22, parts, "bytes by time")


def topic_strip(topic: TopicRow, findings: Sequence[dict[str, str | int]]) -> str:
    """A topic from seq 1 to its head: what is gone, what is there, what is missing."""
    width, height = _WIDTH, 18
    head = max(topic.head, 1)

    def x(seq: int) -> float:
        return (min(max(seq, 1), head + 1) - 1) / head * width

    def span(first: int, last: int, kind: str, told: str) -> str:
        return rect(x(first), 0, x(last + 1) - x(first), height, kind, told)

    parts = []
    if topic.first > 1:
        parts.append(
            span(1, topic.first - 1, "gone", f"seqs 1 to {topic.first - 1:,}: deleted, expired or evicted")
        )
    if topic.first <= topic.sealed_end:
        parts.append(
            span(
                topic.first, topic.sealed_end, "live", f"seqs {topic.first:,} to {topic.sealed_end:,}: sealed"
            )
        )
    if topic.sealed_end < topic.head:
        start = max(topic.sealed_end + 1, topic.first)
        parts.append(
            span(start, topic.head, "log", f"seqs {start:,} to {topic.head:,}: in the log, not audited here")
        )
    parts += _deleted_shares(topic, width, height)
    for found in findings:
        first = found.get("first_seq")
        if found["kind"] in _ON_STRIP and isinstance(first, int):
            last = int(found.get("last_seq", first))
            told = f"{found['kind']}: seqs {first:,} to {last:,}"
            wide = max(x(last + 1) - x(first), 4)
            parts.append(rect(min(x(first), width - wide), -3, wide, height + 6, "error", told))
    return svg(width, height, parts, f"topic {topic.name}").replace(
        "<svg ", '<svg class="strip" preserveAspectRatio="none" ', 1
    )


def _deleted_shares(topic: TopicRow, width: float, height: float) -> list[str]:
    if topic.deleted is None:
        return []
    deleted = BitMap64.deserialize(b64decode(topic.deleted))
    parts = []
    step = max(topic.head / _BUCKETS, 1)
    for bucket in range(_BUCKETS):
        first, last = int(bucket * step) + 1, int((bucket + 1) * step)
        if first > topic.head or last < first:
            continue
        count = deleted.range_cardinality(first, last + 1)
        if count:
            share = count / (last - first + 1)
            told = f"{count:,} of seqs {first:,} to {last:,}: deleted one by one"
            at = (first - 1) / topic.head * width
            parts.append(
                rect(
                    at,
                    0,
                    width * step / topic.head,
                    height,
                    "gone",
                    told,
                    f'fill-opacity="{0.25 + 0.75 * share:.2f}"',
                )
            )
    return parts


def size_text(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def _day(ts_ms: float) -> str:
    return datetime.fromtimestamp(ts_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
