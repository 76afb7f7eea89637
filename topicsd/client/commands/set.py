"""`topics set`: change fields of a topic's configuration."""

from __future__ import annotations

import click
import msgspec

from topicsd.client.api import topic_path
from topicsd.client.errors import Refused
from topicsd.client.options import Session, client_command
from topicsd.client.topic_config import explain, parse_fields


class Configured(msgspec.Struct):
    config: dict[str, object]


@client_command("set", json_help="The server's answer as JSON.")
@click.argument("topic")
@click.argument("fields", nargs=-1, required=True, metavar="FIELD=VALUE...")
def command(session: Session, topic: str, fields: tuple[str, ...]) -> None:
    """Change fields of TOPIC's configuration and keep the others; says what has changed."""
    config = parse_fields(fields)
    path = topic_path(topic)
    # A PUT would create one that is absent, which is what "create" is for.
    before = session.server.ask(Configured, "GET", path, query={"touch": "false"}).config
    try:
        answer = session.server.call("PUT", path, config)
    except Refused as err:
        raise explain(err, config) from err
    if session.as_json:
        session.out.line(answer)
        return
    after = session.server.decode(Configured, answer).config
    changed = [name for name in after if after[name] != before.get(name)]
    for name in changed:
        session.out.text(f"{name}: {_shown(before.get(name))} -> {_shown(after[name])}")
    if not changed:
        session.out.text("nothing has changed")


def _shown(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
