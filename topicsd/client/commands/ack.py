"""`topics ack`: jobs are done."""

from __future__ import annotations

import click

from topicsd.client.errors import Exit
from topicsd.client.options import Session, client_command, node_option
from topicsd.client.settling import settle_jobs


@client_command("ack", json_help="The server's answers as NDJSON.")
@click.argument("queue")
@click.argument("jobs", nargs=-1, metavar="[SEQ[:LEASE_ID]]...")
@node_option
def command(session: Session, queue: str, jobs: tuple[str, ...], node: str) -> Exit | None:
    """The jobs of QUEUE are done: delete them for good. Without SEQs, reads what `topics claim` printed."""
    return settle_jobs(session, "ack", queue, jobs, node)
