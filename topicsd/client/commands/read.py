"""`topics read`: records from a seq to the end, as NDJSON."""

from __future__ import annotations

import click

from topicsd.client.options import SEQ, Session, client_command
from topicsd.client.output import Progress, count
from topicsd.client.reading import (
    Filter,
    RecordPrinter,
    filter_options,
    form_options,
    pages,
    tombstones_option,
)
from topicsd.client.record_lines import Form


@client_command("read", json_help="Errors as JSON on stderr; records are NDJSON anyway.")
@click.argument("topic")
@click.option(
    "--from-seq", type=SEQ, default=0, metavar="SEQ", help="The last seq you know; reading starts after it."
)
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="At most this many records.")
@filter_options
@form_options
@tombstones_option
def command(
    session: Session,
    topic: str,
    from_seq: int,
    limit: int | None,
    match: str | None,
    without_node: tuple[str, ...],
    form: Form | None,
    tombstones: bool,
) -> None:
    """Print the records of TOPIC, one per line, up to its end as it is now.

    Records that a cap or a TTL took away before you read them are reported on stderr, with their seqs.
    """
    printer = RecordPrinter(session, form, tombstones=tombstones)
    progress = Progress(shown=not session.out.is_terminal)
    wanted = Filter(match=match, without_nodes=without_node)
    try:
        found = 0
        for page in pages(session.server, topic, wanted, from_seq, limit=limit):
            if page.tombstone is not None:
                progress.clear()
            printer.page(page)
            found += len(page.records)
            progress.show(f"{count(found)} records read, at seq {page.next_from_seq} of {page.head_seq}")
    finally:
        progress.clear()
