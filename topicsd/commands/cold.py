"""`topicsd cold …`: work on sealed segments without a server. A file per subcommand."""

from __future__ import annotations

import click

from topicsd.commands.cold_audit import audit
from topicsd.commands.cold_compact import adopt, compact
from topicsd.commands.cold_export import export


@click.group()
def cold() -> None:
    """Audit, compact and export sealed data."""


cold.add_command(adopt)
cold.add_command(audit)
cold.add_command(compact)
cold.add_command(export)
