"""Why a backup or a restore does not happen, in one line for the operator."""

from __future__ import annotations

from topicsd.exits import Exit


class BackupRefused(Exception):
    """The message says what to do instead."""

    def __init__(self, message: str, exit_code: Exit = Exit.BAD_SETTINGS) -> None:
        super().__init__(message)
        self.exit_code = exit_code
