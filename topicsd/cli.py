"""The command line: `topicsd SUBCOMMAND`. One file per subcommand, in topicsd/commands."""

from __future__ import annotations

import click

from topicsd.commands.config import config
from topicsd.commands.serve import serve


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="topicsd", prog_name="topicsd")
def main() -> None:
    """A persistent event engine on one machine."""


main.add_command(serve)
main.add_command(config)
