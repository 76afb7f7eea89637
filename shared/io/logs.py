"""Logging of all processes: one line per event on stderr, text for people or JSON for machines.

`log.warning("wal.fsync.slow", extra={"shard": 3, "took_ms": 1204})`: the message is a static event name and
everything that varies is a field. Payloads and keys are never fields. Under systemd each line begins with its level
(`<4>`, sd-daemon(3)), which the journal takes off again, so that `journalctl -p warning` finds it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from types import TracebackType
from typing import Final, TextIO

# What every record has; the rest of its attributes came in through `extra`.
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# Libraries log their own course at INFO; theirs is not the operator's.
_CHATTY: Final = ("hypercorn", "quart", "asyncio", "httpx")


def set_up_logging(*, level: str, style: str, process: str, stream: TextIO | None = None) -> None:
    """`level` and `style` are the settings log_level and log_format; `process` names who speaks."""
    out = sys.stderr if stream is None else stream
    as_text = style == "text" or (style == "auto" and out.isatty())
    handler = logging.StreamHandler(out)
    formatter = TextFormatter(process) if as_text else JsonFormatter(process)
    handler.setFormatter(JournalFormatter(formatter) if goes_to_journal(out) else formatter)
    logging.captureWarnings(True)
    sys.excepthook = log_crash
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


class JsonFormatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "ts": timestamp(record),
            "level": record.levelname.lower(),
            "process": self._process,
            "event": record.getMessage(),
        }
        if record.name != "root":
            fields["logger"] = record.name
        # The fields of the frame come first in the line and win over a namesake.
        fields = fields | {name: value for name, value in extras(record).items() if name not in fields}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str, separators=(",", ":"))


class TextFormatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        head = f"{timestamp(record)} {record.levelname:<7} {self._process:<10} {record.getMessage()}"
        line = " ".join([head, *(f"{name}={field_text(value)}" for name, value in extras(record).items())])
        return line + "\n" + self.formatException(record.exc_info) if record.exc_info else line


class JournalFormatter(logging.Formatter):
    """Another formatter's lines, each with the level in front that the journal reads."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        # syslog(3): err, warning, info, debug.
        level = next((number for least, number in _SYSLOG_LEVELS if record.levelno >= least), 7)
        return "\n".join(f"<{level}>{line}" for line in self._inner.format(record).split("\n"))


_SYSLOG_LEVELS: Final = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))


def goes_to_journal(stream: TextIO) -> bool:
    """Whether `stream` is what systemd connected to the journal (`JOURNAL_STREAM`, systemd.exec(5))."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):  # io.UnsupportedOperation is both
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def log_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """For `sys.excepthook`: the end of a process by an exception is a line like any other."""
    logging.getLogger("crash").critical("process.crashed", exc_info=(kind, error, trace))


def timestamp(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def extras(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def field_text(value: object) -> str:
    text = str(value)
    # Quoted when it could be taken for more than one field, or for a line of its own.
    plain = text.isprintable() and text and not any(char in text for char in ' "=')
    return text if plain else json.dumps(text)
