"""Options that every command has, and values that several of them read from the command line."""

from __future__ import annotations

import functools
import getpass
import os
import re
import socket
from collections.abc import Callable
from typing import Any

import click
import msgspec

from topicsd.client.api import DEFAULT_URL, Server
from topicsd.client.errors import Exit, Usage
from topicsd.client.output import Output


class Session:
    """What a command works with."""

    def __init__(self, url: str, *, as_json: bool) -> None:
        self.server = Server(url, os.environ.get("TOPICS_TOKEN"))
        self.out = Output()
        self.as_json = as_json


def client_command(
    name: str, *, json_help: str = "Answers as NDJSON on stdout, errors as JSON on stderr."
) -> Callable[[Callable[..., Exit | None]], click.Command]:
    """A subcommand: its function gets a `Session` first, and may return how it ended."""

    def decorate(function: Callable[..., Exit | None]) -> click.Command:
        @click.command(name=name)
        @click.option(
            "--url", envvar="TOPICS_URL", default=DEFAULT_URL, show_default=True, help="The server."
        )
        @click.option("--json", "as_json", is_flag=True, help=json_help)
        @functools.wraps(function)
        def run(*, url: str, as_json: bool, **parameters: object) -> Exit:
            session = Session(url, as_json=as_json)
            try:
                ended = function(session, **parameters)
                session.out.flush()
            finally:
                session.server.close()
            return ended or Exit.OK

        # A command's own options are listed before the common ones.
        own = [parameter for parameter in run.params if parameter.name not in ("url", "as_json")]
        run.params = own + [parameter for parameter in run.params if parameter not in own]
        return run

    return decorate


def default_node() -> str:
    """Who works, if nobody says it: the same for all commands of one person on one machine, so that an `ack`
    finds the leases of a `claim`."""
    given = os.environ.get("TOPICS_NODE")
    if given:
        return given
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"[:128]


def node_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--node", default=default_node, help="Who works. Default: TOPICS_NODE, or you@this-machine."
    )(function)


def parse_predicate(text: str) -> object:
    """A bare tag, FIELD=VALUE, FIELD=PREFIX*, or the JSON of the API."""
    if text.startswith("["):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            raise Usage(
                f"{text!r} is not JSON; a predicate looks like tag=order-7731 or tag=order-*"
            ) from None
    field, equals, value = text.partition("=")
    if equals and field in ("tag", "key", "node"):
        return [field, "Glob" if value.endswith("*") else "Eq", value]
    return ["tag", "Glob", text] if text.endswith("*") else text


_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|min|h|d|w)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)(k|m|g|t|kib|mib|gib|tib|kb|mb|gb|tb|b)", re.IGNORECASE)
_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def parse_duration_ms(text: str) -> int | None:
    """`7d`, `1.5h`, `30s`, `250ms`; None if it is none."""
    found = _DURATION.fullmatch(text)
    return round(float(found[1]) * _MS[found[2]]) if found else None


def parse_size_bytes(text: str) -> int | None:
    """`64MiB`, `10k`: powers of 1024 with and without the i, except kB, MB, GB and TB, which are of 1000."""
    found = _SIZE.fullmatch(text)
    if not found:
        return None
    unit = found[2].lower()
    base = 1000 if len(unit) == 2 else 1024
    power = "bkmgt".index(unit[0])
    return round(float(found[1]) * float(base**power))


def duration_ms(value: object) -> int:
    """The type of an option. Plain numbers are milliseconds, as everywhere in the API."""
    text = str(value)
    found = int(text) if text.isdigit() else parse_duration_ms(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is no duration; write 500ms, 30s, 5m, 2h, 7d, or milliseconds")
    return found


SEQ = click.IntRange(0, 2**64 - 1)
