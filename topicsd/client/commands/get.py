"""`topics get`: one topic's state and configuration."""

from __future__ import annotations

import click

from shared.api_types import DEFAULT_CONFIG, QueueState, TopicState
from topicsd.client.api import topic_path
from topicsd.client.options import Session, client_command
from topicsd.client.output import count, duration, moment, size


@client_command("get", json_help="The server's answer as JSON.")
@click.argument("topic")
def command(session: Session, topic: str) -> None:
    """Show TOPIC. Looking does not count as a read."""
    answer = session.server.call("GET", topic_path(topic), query={"touch": "false"})
    if session.as_json:
        session.out.line(answer)
        return
    session.out.pairs(describe(session.server.decode(TopicState, answer)))


def describe(state: TopicState) -> list[tuple[str, str]]:
    """Configuration only where somebody has chosen it: what is at its default says nothing."""
    rows = [
        ("topic", state.topic),
        ("type", state.type),
        ("durability", state.config.durability),
        ("records", f"{count(state.count)}, {size(state.bytes)}"),
        (
            "seqs",
            f"{state.earliest_seq}…{state.head_seq}"
            if state.count
            else f"none, the next is {state.next_seq}",
        ),
        ("shard", str(state.shard)),
        ("priority", str(state.effective_priority)),
        ("written", moment(state.last_write_ts)),
        ("read", moment(state.last_read_ts)),
    ]
    if isinstance(state.queue, QueueState):
        jobs = state.queue
        text = f"{count(jobs.ready)} ready, {count(jobs.in_flight)} in flight, {count(jobs.delayed)} delayed"
        rows.append(("jobs", f"{text}, {count(jobs.dead_lettered)} dead-lettered so far"))
    for name in state.config.__struct_fields__:
        value = getattr(state.config, name)
        if name not in ("type", "durability", "durable") and value != getattr(DEFAULT_CONFIG, name):
            rows.append((name, _shown(name, value)))
    return rows


def _shown(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if name.endswith("_ms"):
        return duration(value)
    return size(value) if name.endswith("_bytes") else count(value)
