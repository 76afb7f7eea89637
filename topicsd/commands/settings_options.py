"""Every setting as a flag of a subcommand, and the settings that result."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import click

from shared.errors import BadSetting
from shared.settings import SETTINGS, Setting, Settings, load_settings, parse_toml
from topicsd.exits import Exit
from topicsd.key_file import credential_setting, with_key_file

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


def settings_or_exit(config_file: str | None, flags: Mapping[str, str | None]) -> Settings:
    """The settings in force, keys of the key file included. A bad one ends the process, named."""
    try:
        toml = credential_setting(os.environ)
        if config_file is not None:
            toml |= parse_toml(_read_config(config_file))
        return with_key_file(load_settings(flags, os.environ, toml, cpus=len(os.sched_getaffinity(0))))
    except BadSetting as err:
        refuse(err.message, Exit.BAD_SETTINGS)


def refuse(message: str, exit_code: Exit) -> NoReturn:
    click.echo(f"topicsd: {message}", err=True)
    raise click.exceptions.Exit(exit_code)


def _read_config(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as err:
        message = f"{path} cannot be read: {err.strerror}"
        raise BadSetting(key="--config", source="flag", message=message) from err
