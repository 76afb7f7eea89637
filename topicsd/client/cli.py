"""The command line: `topics SUBCOMMAND`. A subcommand is imported when it is asked for, so that each starts fast."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from topicsd.client.errors import ClientError, Exit, OutputClosed
from topicsd.client.output import note

COMMANDS = {
    "ls": "list topics",
    "create": "make a topic",
    "get": "show a topic",
    "set": "change a topic's configuration",
    "rm": "delete topics, or records of one",
    "append": "write records from stdin or the command line",
    "read": "read records from a seq to the end",
    "tail": "the last records, and those to come",
    "watch": "follow many topics live",
    "claim": "take jobs from a queue, or work on them with a command",
    "ack": "jobs are done",
    "nack": "give jobs back",
    "router": "copy records from topic to topic",
    "bench": "measure a server",
    "top": "what a server does, live",
}
"""In the order of `topics --help`, with what it says about them."""


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"topicsd.client.commands.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    name="topics",
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="topicsd", prog_name="topics")
def topics() -> None:
    """Talk to a topicsd server.

    TOPICS_URL names it (http://127.0.0.1:4000 by default), TOPICS_TOKEN is the API key. Data is NDJSON on stdin and
    stdout; everything meant for people goes to stderr.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(run(given))


def run(arguments: Sequence[str]) -> int:
    """The exit code."""
    try:
        # A number: the code of a command that has ended, or of --help.
        ended = topics.main(list(arguments), prog_name="topics", standalone_mode=False)
        return int(ended) if isinstance(ended, int) else Exit.OK
    except click.exceptions.NoArgsIsHelpError as err:
        err.show()
        return Exit.USAGE
    except click.UsageError as err:
        path = err.ctx.command_path if err.ctx is not None else "topics"
        _complain(f"{err.format_message().rstrip('.')}; see: {path} --help", {}, arguments)
        return Exit.USAGE
    except OutputClosed as err:
        return err.exit_code
    except ClientError as err:
        _complain(str(err), err.as_json(), arguments)
        return err.exit_code
    except click.Abort:
        return Exit.INTERRUPTED


def _complain(text: str, document: dict[str, object], arguments: Sequence[str]) -> None:
    if "--json" in arguments:
        document = document or {"code": "usage", "message": text}
        sys.stderr.write(json.dumps({"error": document}, ensure_ascii=False) + "\n")
    else:
        note(text)
