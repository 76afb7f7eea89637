"""`topicsd cold …`: work on sealed segments without a server. A file per subcommand."""

from __future__ import annotations

import click

from topicsd.commands.cold_audit import audit


@click.group()
def cold() -> None:
    """Audit, compact and export sealed data."""


cold.add_command(audit)
