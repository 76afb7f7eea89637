"""The picture of `topics top` as lines of text of a given width. Pure."""

from __future__ import annotations

from collections.abc import Callable

from topicsd.client.output import count, duration, size, table_lines
from topicsd.client.readings import SORTS, Picture, ShardRow, TopicRow, sorted_topics

Paint = Callable[[str, str], str]


def plain(text: str, _style: str) -> str:
    return text


def render(
    picture: Picture,
    *,
    server: str,
    sort: str,
    clock: str,
    width: int = 0,
    height: int = 0,
    trouble: str | None = None,
    keys: bool = False,
    paint: Paint = plain,
) -> list[str]:
    """At most `height` lines of at most `width` characters; 0 is as many as there are. Topics give way first."""

    def fit(text: str) -> str:
        return text if not width or len(text) <= width else text[: max(0, width - 1)] + "…"

    lines = [paint(fit(f"topics top  {server}  up {duration(picture.uptime_ms)}  {clock}"), "head")]
    if trouble is not None:
        lines.append(paint(fit(trouble), "bad"))
    lines += [fit(line) for line in _totals(picture)]
    if picture.pressure:
        lines += [paint(fit(f"pressure  {line}"), "warn") for line in picture.pressure]
    else:
        lines.append(paint(fit("pressure  none"), "dim"))
    lines.append("")
    lines += _painted_table(table_lines(SHARD_HEADS, map(_shard_cells, picture.shards)), fit, paint)
    if picture.routers:
        lines += ["", *_painted_table(table_lines(ROUTER_HEADS, _router_cells(picture)), fit, paint)]
    lines.append("")
    hints = "  ".join(f"{key} {name}" for key, name in SORTS.items())
    footer = [paint(fit(f"sorted by {sort}   keys: {hints}  q quit"), "dim")] if keys else []
    rows = sorted_topics(picture.topics, sort)
    room = max(1, height - len(lines) - len(footer) - 1) if height else len(rows)
    hidden = len(rows) - room
    if hidden > 0:
        room = max(1, room - 1)
        hidden = len(rows) - room
    lines += _painted_table(table_lines(TOPIC_HEADS, map(_topic_cells, rows[:room])), fit, paint)
    if hidden > 0:
        lines.append(paint(fit(f"… and {count(hidden)} more"), "dim"))
    lines += footer
    return lines[:height] if height else lines


def _totals(picture: Picture) -> list[str]:
    t = {name: count(number) for name, number in picture.totals.items()}
    held = f"{t['records']} in {t['topics']} topics, {size(picture.totals['bytes'])}"
    jobs = (
        f"{t['ready']} ready, {t['in_flight']} in flight, {t['delayed']} delayed, {t['dead_lettered']} dead"
    )
    streams = f"{count(picture.streams)} streams, {count(picture.sessions)} sessions"
    return [
        f"records   {held}   in {t['appended_per_s']}/s   read {t['read_per_s']}/s   evicted {t['evicted_per_s']}/s",
        f"queues    {jobs}   claimed {t['claimed_per_s']}/s   acked {t['acked_per_s']}/s",
        f"watchers  {streams}   router lag {t['router_lag']}",
    ]


def _painted_table(lines: list[str], fit: Callable[[str], str], paint: Paint) -> list[str]:
    return [paint(fit(lines[0]), "head"), *(fit(line) for line in lines[1:])]


ROUTER_HEADS = ("ROUTER", "COPIES", ">LAG")
ROUTERS_SHOWN = 5  # those that lag most


def _router_cells(picture: Picture) -> list[tuple[str, str, str]]:
    return [
        (name, f"{source} -> {dest}", "-" if lag is None else count(lag))
        for name, source, dest, lag in picture.routers[:ROUTERS_SHOWN]
    ]


SHARD_HEADS = (
    *("SHARD", "STATE", ">TOPICS", ">RECORDS", ">SIZE", ">IN/S", ">READ/S"),
    *(">LOG/S", ">SYNCS/S", ">SYNC", ">WAITING"),
)


def _shard_cells(row: ShardRow) -> tuple[str, ...]:
    return (
        str(row.shard),
        row.state,
        count(row.topics),
        count(row.records),
        size(row.bytes),
        count(row.appended_per_s),
        count(row.read_per_s),
        size(row.written_bytes_per_s),
        count(row.syncs_per_s),
        "-" if row.sync_ms is None else f"{row.sync_ms:.1f} ms",
        count(row.waiting),
    )


TOPIC_HEADS = ("TOPIC", ">IN/S", ">RECORDS", ">SIZE", ">HEAD", ">READY", ">IN FLIGHT", ">DELAYED", ">OLDEST")


def _topic_cells(row: TopicRow) -> tuple[str, ...]:
    def jobs(number: int | None) -> str:
        return "" if number is None else count(number)

    return (
        row.name,
        count(row.appended_per_s),
        count(row.records),
        size(row.bytes),
        str(row.head_seq),
        jobs(row.ready),
        jobs(row.in_flight),
        jobs(row.delayed),
        "" if not row.oldest_ms else duration(row.oldest_ms),
    )
