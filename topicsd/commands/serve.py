"""`topicsd serve`: run the server in the foreground.

A plain command line does not come here but goes without click: `topicsd/entry.py`.
"""

from __future__ import annotations

import click

from topicsd.commands.settings_options import settings_options
from topicsd.serving import run_server
from topicsd.settings_in_force import settings_or_exit


@click.command()
@settings_options
@click.pass_context
def serve(context: click.Context, /, config_file: str | None, **flags: str | None) -> None:
    """Run the server until SIGTERM or SIGINT."""
    context.exit(run_server(settings_or_exit(config_file, flags)))
