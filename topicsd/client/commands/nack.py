"""`topics nack`: give jobs back."""

from __future__ import annotations

import click

from topicsd.client.errors import Exit
from topicsd.client.options import Session, client_command, duration_ms, node_option
from topicsd.client.settling import settle_jobs


@client_command("nack", json_help="The server's answers as NDJSON.")
@click.argument("queue")
@click.argument("jobs", nargs=-1, metavar="[SEQ[:LEASE_ID]]...")
@click.option(
    "--delay",
    type=duration_ms,
    metavar="DURATION",
    default=0,
    help="Hand them out again only after this time, as in 30s.",
)
@node_option
def command(session: Session, queue: str, jobs: tuple[str, ...], delay: int, node: str) -> Exit | None:
    """Give jobs of QUEUE back, for others or for later. Without SEQs, reads what `topics claim` printed."""
    return settle_jobs(session, "nack", queue, jobs, node, delay_ms=delay)
