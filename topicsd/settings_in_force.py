"""The settings in force, from flags, environment, files and what the service manager provides."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NoReturn

from shared.errors import BadSetting
from shared.settings import Settings, load_settings, parse_toml
from topicsd.exits import Exit
from topicsd.key_file import credential_setting, with_key_file


def settings_or_exit(config_file: str | None, flags: Mapping[str, str | None]) -> Settings:
    """Keys of the key file included. A bad setting ends the process, named."""
    try:
        toml = credential_setting(os.environ)
        if config_file is not None:
            toml |= parse_toml(_read_config(config_file))
        return with_key_file(load_settings(flags, os.environ, toml, cpus=len(os.sched_getaffinity(0))))
    except BadSetting as err:
        refuse(err.message, Exit.BAD_SETTINGS)


def refuse(message: str, exit_code: Exit) -> NoReturn:
    sys.stderr.write(f"topicsd: {message}\n")
    sys.exit(exit_code)


def _read_config(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as err:
        message = f"{path} cannot be read: {err.strerror}"
        raise BadSetting(key="--config", source="flag", message=message) from err
