"""`topics watch`: records of many topics, live, as NDJSON."""

from __future__ import annotations

import click

from topicsd.client.errors import Usage
from topicsd.client.options import Session, client_command
from topicsd.client.output import note
from topicsd.client.reading import Filter, Gap, filter_options, gap_text
from topicsd.client.record_lines import Form, shown
from topicsd.client.watching import RecordFrame, TopicFrame, Watch, WatchEvent


@client_command("watch", json_help="Errors as JSON on stderr; records are NDJSON anyway.")
@click.argument("names", nargs=-1, required=True, metavar="NAME[@SEQ]...")
@click.option("--from-start", is_flag=True, help="Begin with the first record where no @SEQ is given.")
@click.option("--strong", is_flag=True, help="Records only once they are synced to disk.")
@click.option(
    "--events",
    is_flag=True,
    help="Print everything that happens as NDJSON: tombstones, caught-up, deletions.",
)
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="Stop after this many records.")
@click.option("--retry-for", type=click.FloatRange(0), default=300.0, show_default=True, metavar="SECONDS",
              help="Wait so long for a server that went away.")  # fmt: skip
@click.option("--data", "form", flag_value="data", help="Print the data only, as JSON.")
@click.option("--raw", "form", flag_value="raw", help="Print the data only; strings as plain text.")
@filter_options
def command(
    session: Session,
    names: tuple[str, ...],
    from_start: bool,
    strong: bool,
    events: bool,
    limit: int | None,
    retry_for: float,
    form: Form | None,
    match: str | None,
    without_node: tuple[str, ...],
) -> None:
    """Follow topics on one connection. A NAME that ends with * is a prefix, also for topics created later.

    Begins with what comes next, or after SEQ: orders@12. Broken connections are mended and resumed without a gap.
    """
    topics, prefixes = parse_names(names, None if not from_start else 0)
    options = Filter(match=match, without_nodes=without_node).fields()
    if strong:
        options["consistency"] = "strong"
    watch = Watch(session.server, topics, prefixes, options, retry_for_s=retry_for)
    printer = EventPrinter(session, form or "record", events=events, limit=limit)
    for event in watch.events():
        printer.event(event)
        session.out.flush()
        if printer.enough:
            return


def parse_names(
    names: tuple[str, ...], default: int | None
) -> tuple[dict[str, int | None], dict[str, int | None]]:
    """Topics and prefixes, with the seq each begins after; None is for what comes next."""
    topics: dict[str, int | None] = {}
    prefixes: dict[str, int | None] = {}
    for word in names:
        name, at, seq = word.partition("@")
        if at and not seq.isdigit():
            raise Usage(f"{word!r}: after the @ stands a seq, as in orders@12")
        start = int(seq) if at else default
        if name.endswith("*"):
            prefixes[name[:-1]] = start
        else:
            topics[name] = start
    return topics, prefixes


class EventPrinter:
    def __init__(self, session: Session, form: Form, *, events: bool, limit: int | None) -> None:
        self._session = session
        self._form = form
        self._events = events
        self._left = limit

    @property
    def enough(self) -> bool:
        return self._left == 0

    def event(self, event: WatchEvent) -> None:
        if event.name == "record":
            self._records(self._session.server.decode(RecordFrame, event.data))
        elif self._events:
            self._session.out.line(b'{"$event":"%b",%b' % (event.name.encode(), event.data.lstrip()[1:]))
        elif event.name == "tombstone":
            frame = self._session.server.decode(TopicFrame, event.data)
            note(gap_text(frame.topic, self._session.server.decode(Gap, event.data)))
        elif event.name == "topic-deleted":
            note(f"{self._session.server.decode(TopicFrame, event.data).topic} was deleted")

    def _records(self, frame: RecordFrame) -> None:
        for raw in frame.records if self._left is None else frame.records[: self._left]:
            record = bytes(raw)
            if self._form == "record":
                # Names need no escape in JSON.
                record = b'{"$topic":"%b",%b' % (frame.topic.encode(), record.lstrip()[1:])
                self._session.out.line(record)
            else:
                self._session.out.write(
                    shown(record, self._form).replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"
                )
            if self._left is not None:
                self._left -= 1
