"""Reading a topic page by page, and printing what comes; a loss on the way is always told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import click
import msgspec
from msgspec import Raw

from topicsd.client.api import Server, topic_path
from topicsd.client.options import Session, parse_predicate
from topicsd.client.output import note, seq_range
from topicsd.client.patience import patiently
from topicsd.client.record_lines import Form, shown

PAGE_RECORDS = 1000
PAGE_BYTES = 4 * 1024 * 1024
RETRY_FOR_S = 30.0


class Gap(msgspec.Struct):
    gap_from: int
    gap_to: int
    reason: str
    earliest_seq: int
    head_seq: int
    missed_estimate: int | None = None


class Page(msgspec.Struct):
    topic: str
    records: list[Raw]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: Gap | None = None


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which records of a topic are wanted. Labels are always shown: a record that is printed is a whole one."""

    match: str | None = None
    without_nodes: tuple[str, ...] = ()

    def fields(self) -> dict[str, object]:
        wanted: dict[str, object] = {"include_tags": True, "include_keys": True}
        if self.match is not None:
            wanted["match"] = parse_predicate(self.match)
        if self.without_nodes:
            wanted["node"] = self.without_nodes
        return wanted


def filter_options(function: Callable[..., Any]) -> Callable[..., Any]:
    predicate = "Only records with this tag, or tag=PREFIX*, key=VALUE, node=VALUE."
    function = click.option("--match", metavar="PREDICATE", help=predicate)(function)
    return click.option(
        "--without-node", multiple=True, metavar="NODE", help="Leave out what this node wrote."
    )(function)


def form_options(function: Callable[..., Any]) -> Callable[..., Any]:
    data = "Print the data only, as JSON."
    raw = "Print the data only; strings as plain text."
    function = click.option("--raw", "form", flag_value="raw", help=raw)(function)
    return click.option("--data", "form", flag_value="data", help=data)(function)


def tombstones_option(function: Callable[..., Any]) -> Callable[..., Any]:
    text = "Print tombstones as NDJSON on stdout, in their place, and not on stderr."
    return click.option("--tombstones", is_flag=True, help=text)(function)


def read_page(
    server: Server, topic: str, wanted: Filter, from_seq: int, *, limit: int = PAGE_RECORDS, wait_ms: int = 0
) -> Page:
    body = {
        **wanted.fields(),
        "from_seq": from_seq,
        "limit": min(limit, PAGE_RECORDS),
        "max_bytes": PAGE_BYTES,
        "wait_ms": wait_ms,
    }
    return server.ask(Page, "POST", topic_path(topic, "diff"), body, again=True)


def pages(
    server: Server, topic: str, wanted: Filter, from_seq: int, *, limit: int | None = None
) -> Iterator[Page]:
    """Up to where the topic ends when the first page is read, or `limit` records."""
    end: int | None = None
    left = limit
    while left != 0:
        page = patiently(
            lambda: read_page(server, topic, wanted, from_seq, limit=PAGE_RECORDS if left is None else left),  # noqa: B023
            for_s=RETRY_FOR_S,
            unreachable_too=end is not None,
        )
        yield page
        end = page.head_seq if end is None else end
        from_seq = page.next_from_seq
        if left is not None:
            left -= len(page.records)
        # Whoever writes faster than we read must not keep us for ever.
        if page.caught_up or from_seq >= end:
            return


class RecordPrinter:
    def __init__(self, session: Session, form: Form | None, *, tombstones: bool) -> None:
        self._out = session.out
        self._form: Form = form or "record"
        self._tombstones = tombstones

    def page(self, page: Page) -> None:
        if page.tombstone is not None:
            self.gap(page.topic, page.tombstone)
        for raw in page.records:
            self.record(bytes(raw))
        self._out.flush()

    def record(self, record: bytes) -> None:
        if self._form == "raw":
            self._out.write(shown(record, "raw") + b"\n")
        else:
            self._out.line(shown(record, self._form))

    def gap(self, topic: str, gap: Gap) -> None:
        if self._tombstones:
            self._out.json({"$event": "tombstone", "topic": topic, **msgspec.structs.asdict(gap)})
            return
        self._out.flush()
        note(gap_text(topic, gap))


REASONS = {
    "cap": "its cap was reached",
    "ttl": "they were too old",
    "mixed": "cap and age",
    "source_trim": "its router's source dropped them before they were copied",
    "from_seq_too_old": "they were gone before this began",
}


def gap_text(topic: str, gap: Gap) -> str:
    if gap.reason == "recreated":
        return f"{topic}: it was deleted and made anew; reading starts over at seq {gap.earliest_seq}"
    why = REASONS.get(gap.reason, gap.reason)
    lost = seq_range(gap.gap_from, gap.gap_to)
    are = "is" if gap.gap_from == gap.gap_to else "are"
    return f"{topic}: {lost} {are} lost ({why}); going on at seq {gap.earliest_seq}"
