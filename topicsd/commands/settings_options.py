"""Every setting as a flag of a subcommand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from shared.settings import SETTINGS, Setting

F = TypeVar("F", bound=Callable[..., Any])


def settings_options(command: F) -> F:
    """Adds `--config` and a flag per setting; the command gets `config_file` and one argument per flag."""
    return some_settings(*(row.name for row in SETTINGS if row.flag is not None))(command)


def some_settings(*names: str) -> Callable[[F], F]:
    """Adds `--config` and the flags of these settings."""
    return lambda command: _with_options(command, names)


def _with_options(command: F, names: Sequence[str]) -> F:
    # Backwards, because each decorator puts its option in front of the ones before it.
    for row in reversed([row for row in SETTINGS if row.name in names]):
        command = _option(row)(command)
    config = click.option(
        "--config",
        "config_file",
        metavar="FILE",
        type=click.Path(dir_okay=False),
        help="TOML file with settings; flags and TOPICS_* variables win over it.",
    )
    return config(command)


def _option(row: Setting) -> Callable[[F], F]:
    assert row.flag is not None
    # Values stay text here: the table parses them, so that a flag and a variable fail with the same words.
    bare: dict[str, Any] = {"is_flag": False, "flag_value": "1"} if row.type_name == "boolean" else {}
    metavar = (row.unit or row.type_name).upper()
    return click.option(row.flag, row.name, metavar=metavar, help=row.help_line(), **bare)
