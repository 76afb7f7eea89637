"""`topics claim`: take jobs from a queue, or work on them with a command."""

from __future__ import annotations

import click
import msgspec

from topicsd.client.api import topic_path
from topicsd.client.errors import Exit, Usage
from topicsd.client.jobs import Queue
from topicsd.client.options import Session, client_command, duration_ms, node_option
from topicsd.client.record_lines import Form
from topicsd.client.worker import WorkPlan, run_workers


class _Config(msgspec.Struct):
    lease_ms: int


class _State(msgspec.Struct):
    config: _Config


@client_command("claim", json_help="Errors as JSON on stderr; jobs are NDJSON anyway.")
@click.argument("queue")
@click.option(
    "-n",
    "--max",
    "limit",
    type=click.IntRange(1),
    metavar="N",
    help="At most so many jobs; 1 without --exec.",
)
@click.option(
    "--lease",
    type=duration_ms,
    metavar="DURATION",
    help="How long they are yours, as in 5m. Default: the queue's.",
)
@click.option(
    "--wait",
    type=duration_ms,
    metavar="DURATION",
    default=0,
    help="Wait so long for a job, at most 30s. Not with --exec.",
)
@click.option(
    "--exec", "run", metavar="COMMAND", help="A shell command to run for each job, with the job on its stdin."
)
@click.option("-P", "--parallel", type=click.IntRange(1, 256), default=1, show_default=True, metavar="N",
              help="With --exec: so many jobs at a time.")  # fmt: skip
@click.option("--drain", is_flag=True, help="With --exec: end when no job is ready.")
@click.option(
    "--nack-delay",
    type=duration_ms,
    metavar="DURATION",
    default=0,
    help="With --exec: a failed job rests so long, as in 30s.",
)
@click.option("--data", "form", flag_value="data", help="With --exec: only the job's data, as JSON.")
@click.option(
    "--raw", "form", flag_value="raw", help="With --exec: only the job's data; a string as plain text."
)
@click.option("--retry-for", type=click.FloatRange(0), default=300.0, show_default=True, metavar="SECONDS",
              help="With --exec: wait so long for a server that went away.")  # fmt: skip
@node_option
def command(
    session: Session,
    queue: str,
    limit: int | None,
    lease: int | None,
    wait: int,
    run: str | None,
    parallel: int,
    drain: bool,
    nack_delay: int,
    form: Form | None,
    retry_for: float,
    node: str,
) -> Exit:
    """Lease jobs of QUEUE and print them, or work on them.

    With --exec it runs until interrupted: COMMAND gets the job as JSON on stdin; exit 0 acks it, anything else gives it
    back. While it runs, the lease is extended. TOPICS_JOB_SEQ and TOPICS_JOB_DELIVERIES are in its environment.
    """
    if run is None:
        if drain or parallel > 1 or form or nack_delay:
            raise Usage("--drain, --parallel, --nack-delay, --data and --raw need --exec COMMAND")
        found = Queue(session.server, queue, node).claim(limit or 1, lease_ms=lease, wait_ms=wait)
        for job in found.claimed:
            session.out.line(bytes(job))
        return Exit.OK
    if lease is None:
        lease = session.server.ask(_State, "GET", topic_path(queue), query={"touch": "false"}).config.lease_ms
    plan = WorkPlan(
        topic=queue,
        node=node,
        command=run,
        lease_ms=max(lease, 100),
        nack_delay_ms=nack_delay,
        form=form or "record",
        drain=drain,
        limit=limit,
        retry_for_s=retry_for,
    )
    return run_workers(session.server, plan, parallel=parallel)
