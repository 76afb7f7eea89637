"""`topics create`: make a topic; one that exists is left as it is."""

from __future__ import annotations

import click

from topicsd.client.api import topic_path
from topicsd.client.errors import Refused
from topicsd.client.options import Session, client_command
from topicsd.client.topic_config import explain, parse_fields


@client_command("create", json_help="The server's answer as JSON.")
@click.argument("topic")
@click.argument("fields", nargs=-1, metavar="[FIELD=VALUE]...")
@click.option("--queue", is_flag=True, help="A queue of jobs; short for type=queue.")
@click.option(
    "--durable",
    is_flag=True,
    help="Writes are synced before they are acknowledged; short for durability=fsync.",
)
@click.option("--if-missing", is_flag=True, help="Do nothing, successfully, if there is one already.")
def command(
    session: Session, topic: str, fields: tuple[str, ...], queue: bool, durable: bool, if_missing: bool
) -> None:
    """Make TOPIC. Durations and sizes may have units: ttl_ms=7d cap_bytes=64MiB."""
    config = parse_fields(fields)
    if queue:
        config["type"] = "queue"
    if durable:
        config["durability"] = "fsync"
    path = topic_path(topic)
    # A PUT would change one that exists, which nobody expects of "create".
    try:
        state = session.server.call("GET", path, query={"touch": "false"})
    except Refused as err:
        if err.code != "topic_not_found":
            raise
    else:
        if not if_missing:
            raise Refused(
                409,
                "topic_exists",
                f"topic {topic} exists already",
                hint=f"change it: topics set {topic} FIELD=VALUE",
            )
        if session.as_json:
            session.out.line(state)
        return
    try:
        answer = session.server.call("PUT", path, config)
    except Refused as err:
        raise explain(err, config) from err
    if session.as_json:
        session.out.line(answer)
    else:
        session.out.text(f"created {topic}")
