"""`topics ls`: topics in name order, page by page."""

from __future__ import annotations

from collections.abc import Iterator

import click
import msgspec

from shared.api_types import TopicSummary
from topicsd.client.api import Server
from topicsd.client.options import Session, client_command
from topicsd.client.output import count, size

PAGE = 1000


class Page(msgspec.Struct):
    topics: list[msgspec.Raw]
    next_cursor: str | None = None


@client_command("ls", json_help="One JSON object per topic, as the server gave it.")
@click.argument("prefix", default="")
@click.option("-q", "--quiet", is_flag=True, help="Names only.")
@click.option("--type", "kind", type=click.Choice(["log", "queue"]), help="Only topics of this type.")
def command(session: Session, prefix: str, quiet: bool, kind: str | None) -> None:
    """List topics, all of them or those whose name begins with PREFIX."""
    found = ((raw, topic) for raw, topic in all_topics(session.server, prefix) if kind in (None, topic.type))
    if session.as_json or quiet:
        for raw, topic in found:
            session.out.line(topic.topic.encode() if quiet else raw)
        return
    rows = [
        (
            topic.topic,
            topic.type,
            count(topic.count),
            size(topic.bytes),
            str(topic.earliest_seq) if topic.count else "-",
            str(topic.head_seq),
            "yes" if topic.durable else "no",
        )
        for _, topic in found
    ]
    session.out.table(("TOPIC", "TYPE", ">RECORDS", ">SIZE", ">FIRST", ">HEAD", "DURABLE"), rows)


def all_topics(server: Server, prefix: str) -> Iterator[tuple[bytes, TopicSummary]]:
    """Each as the server wrote it, and read."""
    cursor: str | None = None
    while True:
        query = {"prefix": prefix or None, "page_size": PAGE, "cursor": cursor}
        page = server.ask(Page, "GET", "/v0/topics", query=query)
        for raw in page.topics:
            yield bytes(raw), server.decode(TopicSummary, bytes(raw))
        cursor = page.next_cursor
        if cursor is None:
            return
