"""`report.html`: the audit at a glance, in one file that needs nothing else. Everything in it stands in report.json."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from html import escape

from ops.coldstore.report_charts import findings_chart, segment_map, size_text, timeline, topic_strip
from ops.coldstore.report_style import STYLE
from shared.audit_findings import ERROR, KINDS
from shared.audit_report import Report, TopicRow

_FINDINGS_SHOWN = 300
_TOPICS_SHOWN = 25
_ROWS_SHOWN = 500


def render_html(report: Report) -> str:
    clean = report.verdict == "clean"
    when = _when(report.finished_ms)
    body = "".join(
        (
            _banner(report, clean, when),
            _tiles(report),
            _overview(report),
            _section("Segments", _LEGEND_SEGMENTS + segment_map(report)) if report.totals.files else "",
            _topics(report),
            _findings(report),
            _section("Data by time of its records", timeline(report.segments)),
            _details(report),
        )
    )
    title = f"{'Clean' if clean else 'Findings'} · topicsd audit · {when}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>\n"
    )


def _banner(report: Report, clean: bool, when: str) -> str:
    totals = report.totals
    if clean:
        mark, headline = "✓", "Everything that was sealed is there, whole and unchanged"
    else:
        things = "problem" if totals.errors == 1 else "problems"
        mark, headline = "!", f"{totals.errors:,} {things} found"
    seen = (
        f"Compared with the report of {escape(report.previous.name)}."
        if report.previous is not None
        else "The first report of its chain: there is no history to compare with yet."
    )
    cold = f" and <code>{escape(report.cold_dir)}</code>" if report.cold_dir else ""
    return (
        f'<header class="{"good" if clean else "poor"}"><div class="mark">{mark}</div><div><h1>{headline}</h1>'
        f"<p>Audit of <code>{escape(report.data_dir)}</code>{cold}, finished {when} after {_took(report)}. {seen}</p>"
        "</div></header>"
    )


def _tiles(report: Report) -> str:
    totals = report.totals
    seconds = max((report.finished_ms - report.started_ms) / 1000, 0.001)
    tiles = (
        (
            "Segment files",
            f"{totals.files:,}",
            f"{size_text(totals.bytes)} read, {size_text(totals.bytes / seconds)}/s",
        ),
        ("Blocks", f"{totals.blocks:,}", "each with both checksums"),
        ("Records", f"{totals.records:,}", "in intact blocks"),
        ("Topics", f"{totals.topics:,}", f"{totals.live:,} live sealed records"),
        ("Missing records", f"{totals.missing:,}", "without a recorded reason"),
        ("Notices", f"{totals.notices:,}", "worth knowing, no errors"),
    )
    cells = "".join(
        f'<div class="tile{" alarm" if name == "Missing records" and totals.missing else ""}">'
        f"<span>{name}</span><b>{value}</b><small>{note}</small></div>"
        for name, value, note in tiles
    )
    return f'<div class="tiles">{cells}</div>'


def _overview(report: Report) -> str:
    counts = Counter(str(found["kind"]) for found in report.findings)
    order = sorted(counts.items(), key=lambda each: (KINDS[each[0]][0] != ERROR, -each[1]))
    return _section("What was found", findings_chart(order))


def _findings(report: Report) -> str:
    if not report.findings:
        return ""
    rows = []
    for found in report.findings[:_FINDINGS_SHOWN]:
        kind = str(found["kind"])
        place = escape(str(found.get("path", "")))
        if "offset" in found:
            place += f" <em>byte {found['offset']:,}</em>"
        if not place and "shard" in found:
            place = f"shard {found['shard']}"
        rows.append(
            f'<tr class="{found["severity"]}"><td><span class="chip">{escape(kind)}</span>'
            f"<small>{escape(KINDS[kind][1])}</small></td>"
            f'<td>{escape(str(found["reason"]))}</td><td class="path">{place}</td>'
            f"<td>{escape(str(found.get('topic', '')))}</td><td class='seqs'>{_seqs(found)}</td></tr>"
        )
    more = len(report.findings) - _FINDINGS_SHOWN
    note = f"<p>… and {more:,} more in report.json.</p>" if more > 0 else ""
    table = (
        "<table><thead><tr><th>What</th><th>Details</th><th>Where</th><th>Topic</th><th>Seqs</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>{note}"
    )
    return _section("Every finding", table)


def _seqs(found: dict[str, str | int]) -> str:
    first, last = found.get("first_seq"), found.get("last_seq")
    if first is None:
        return ""
    return f"{first:,}" if last in (None, first) else f"{first:,} to {last:,}"


def _topics(report: Report) -> str:
    by_topic: dict[str, list[dict[str, str | int]]] = {}
    for found in report.findings:
        by_topic.setdefault(str(found.get("topic", "")), []).append(found)

    def rank(topic: TopicRow) -> tuple[bool, int, str]:
        errors = any(found["severity"] == ERROR for found in by_topic.get(topic.name, ()))
        return (not errors, -topic.live, topic.name)

    chosen = sorted(report.topics, key=rank)[:_TOPICS_SHOWN]
    rows = "".join(
        f'<div class="topic"><div><b>{escape(topic.name)}</b><small>{topic.live:,} live sealed'
        f"{f', <i>{topic.missing:,} missing</i>' if topic.missing else ''} · head {topic.head:,}</small></div>"
        f"{topic_strip(topic, by_topic.get(topic.name, []))}</div>"
        for topic in chosen
    )
    if not rows:
        return ""
    more = len(report.topics) - len(chosen)
    note = f"<p>… and {more:,} more topics in report.json, those with findings first.</p>" if more > 0 else ""
    return _section("Topics, from seq 1 to the head", _LEGEND_TOPICS + rows + note)


def _details(report: Report) -> str:
    stages = ", ".join(f"{escape(name)} {seconds:.1f} s" for name, seconds in report.stages.items())
    shards = "".join(
        f"<tr><td>{row.shard}</td><td>{row.snapshot if row.snapshot is not None else 'none'}</td>"
        f"<td>{row.generation or 'none'}</td><td><code>{row.manifest_checksum}</code></td></tr>"
        for row in report.shards
    )
    segments = "".join(
        f"<tr><td>{row.shard}</td><td>{row.number}</td><td>{row.tier}</td><td>{size_text(row.size)}</td>"
        f"<td>{row.records:,}</td><td>{len(row.topics):,}</td><td><code>{row.sha256}</code></td></tr>"
        for row in report.segments[:_ROWS_SHOWN]
    )
    more = len(report.segments) - _ROWS_SHOWN
    note = f"<p>… and {more:,} more in report.json.</p>" if more > 0 else ""
    previous = (
        f"{escape(report.previous.name)}, SHA-256 <code>{report.previous.sha256}</code>"
        if report.previous
        else "none"
    )
    facts = (
        f"<p>topicsd {escape(report.version)}, engine {escape(report.engine)}; {stages}.<br>"
        f"Report before: {previous}.</p>"
        "<table><thead><tr><th>Shard</th><th>Snapshot</th><th>Manifest</th><th>Its checksum</th></tr></thead>"
        f"<tbody>{shards}</tbody></table>"
    )
    listing = (
        "<table><thead><tr><th>Shard</th><th>Segment</th><th>Tier</th><th>Size</th><th>Records</th><th>Topics</th>"
        f"<th>SHA-256</th></tr></thead><tbody>{segments}</tbody></table>{note}"
    )
    return (
        f"<section><details><summary>How it was done</summary>{facts}</details>"
        f"<details><summary>Digests of all segments</summary>{listing}</details></section>"
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>" if content else ""


def _when(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _took(report: Report) -> str:
    seconds = (report.finished_ms - report.started_ms) / 1000
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _legend(*entries: tuple[str, str]) -> str:
    return (
        '<p class="legend">'
        + "".join(f'<span><i class="{kind}"></i>{name}</span>' for kind, name in entries)
        + "</p>"
    )


_LEGEND_SEGMENTS = _legend(
    ("cold", "cold"), ("hot", "hot"), ("bad", "with findings"), ("lost", "missing or unreadable")
)
_LEGEND_TOPICS = _legend(
    ("live", "sealed and there"),
    ("log", "still in the log"),
    ("gone", "deleted, expired or evicted"),
    ("error", "missing or damaged"),
)
