"""`topicsd config`: the settings that `serve` would use, as TOML."""

from __future__ import annotations

import json

import click

from topicsd.commands.settings_options import settings_options
from topicsd.settings_in_force import settings_or_exit


@click.command()
@settings_options
def config(config_file: str | None, **flags: str | None) -> None:
    """Print the effective settings; API keys only as a number."""
    for name, value in settings_or_exit(config_file, flags).effective().items():
        click.echo(toml_line(name, value))


def toml_line(name: str, value: str | int | bool | None) -> str:
    if name == "api_keys":
        return f"# api_keys: {value}"
    if value is None:
        return f"# {name} is unset"
    if isinstance(value, bool):
        return f"{name} = {str(value).lower()}"
    # A basic string of TOML escapes as JSON does.
    return f"{name} = {json.dumps(value, ensure_ascii=False)}"
