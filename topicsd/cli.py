"""The command line: `topicsd SUBCOMMAND`. One file per subcommand, in topicsd/commands.

A subcommand is imported when it is asked for: `topicsd serve` starts sooner without the code of the others.
"""

from __future__ import annotations

import importlib

import click

# Name of the subcommand → the module that has it, under the same name (with an underscore if that is taken).
_COMMANDS = {
    "backup": "topicsd.commands.backup",
    "cold": "topicsd.commands.cold",
    "compile": "topicsd.commands.compile",
    "config": "topicsd.commands.config",
    "repair": "topicsd.commands.repair",
    "restore": "topicsd.commands.restore",
    "serve": "topicsd.commands.serve",
    "shard": "topicsd.commands.shard",
    "verify": "topicsd.commands.verify",
}
_SHADOWING = frozenset({"compile"})  # names that Python has already


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return None
        name = f"{cmd_name}_" if cmd_name in _SHADOWING else cmd_name
        found: click.Command = getattr(importlib.import_module(module), name)
        return found


@click.group(
    cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(package_name="topicsd", prog_name="topicsd")
def main() -> None:
    """A persistent event engine on one machine."""
