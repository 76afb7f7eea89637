"""Why `topicsd serve` ends, as its exit code says it (docs/operations.md, "Exit codes")."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    CLEAN = 0
    UNCLEAN_STOP = 1
    BAD_SETTINGS = 2
    LOCKED = 3
    UNUSABLE_STORE = 4
    CANNOT_LISTEN = 5


class StartRefused(Exception):
    """The server cannot start as things are. The message is one line for the operator."""

    def __init__(self, exit_code: Exit, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
