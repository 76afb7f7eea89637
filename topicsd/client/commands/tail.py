"""`topics tail`: the last records of a topic and, with -f, those to come."""

from __future__ import annotations

from collections import deque

import click
import msgspec

from topicsd.client.api import Server, topic_path
from topicsd.client.options import SEQ, Session, client_command
from topicsd.client.patience import patiently
from topicsd.client.reading import (
    Filter,
    RecordPrinter,
    filter_options,
    form_options,
    pages,
    read_page,
    tombstones_option,
)
from topicsd.client.record_lines import Form

WAIT_MS = 25_000
FOLLOW_FOR_S = 300.0
"""A server that is away is waited for so long; it may be restarting."""


@client_command("tail", json_help="Errors as JSON on stderr; records are NDJSON anyway.")
@click.argument("topic")
@click.option(
    "-n", "--lines", type=click.IntRange(0), default=10, show_default=True, metavar="N", help="How many."
)
@click.option("-f", "--follow", is_flag=True, help="Go on with new records until interrupted.")
@click.option("--from-seq", type=SEQ, metavar="SEQ", help="Everything after this seq instead of the last N.")
@filter_options
@form_options
@tombstones_option
def command(
    session: Session,
    topic: str,
    lines: int,
    follow: bool,
    from_seq: int | None,
    match: str | None,
    without_node: tuple[str, ...],
    form: Form | None,
    tombstones: bool,
) -> None:
    """Print the last records of TOPIC, oldest first."""
    printer = RecordPrinter(session, form, tombstones=tombstones)
    wanted = Filter(match=match, without_nodes=without_node)
    if from_seq is None:
        last, at = last_records(session.server, topic, wanted, lines)
        for record in last:
            printer.record(record)
        session.out.flush()
    else:
        at = from_seq
        for page in pages(session.server, topic, wanted, from_seq):
            printer.page(page)
            at = page.next_from_seq
    while follow:
        page = patiently(
            lambda: read_page(session.server, topic, wanted, at, wait_ms=WAIT_MS),  # noqa: B023
            for_s=FOLLOW_FOR_S,
        )
        printer.page(page)
        at = page.next_from_seq


class _Ends(msgspec.Struct):
    head_seq: int
    earliest_seq: int


def last_records(server: Server, topic: str, wanted: Filter, number: int) -> tuple[list[bytes], int]:
    """They, and the seq where the topic ended.

    Seqs may have holes and records may not match, so the stretch that is read from the end grows until it holds
    enough. It begins behind everything that is lost, hence without tombstones.
    """
    state = server.ask(_Ends, "GET", topic_path(topic), query={"touch": "false"})
    head, first = state.head_seq, state.earliest_seq
    stretch = number
    while True:
        begin = max(head - stretch, first - 1, 0)
        found: deque[bytes] = deque(maxlen=number)
        if number:
            for page in pages(server, topic, wanted, min(begin, head)):
                found.extend(bytes(raw) for raw in page.records)
                head = page.next_from_seq
        if len(found) == number or begin <= first - 1:
            return list(found), head
        stretch *= 8
