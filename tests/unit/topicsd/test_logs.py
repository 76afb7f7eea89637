from __future__ import annotations

import io
import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.io.logs import set_up_logging


@pytest.fixture(autouse=True)
def root_logger_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, hook = root.handlers[:], root.level, sys.excepthook
    yield
    sys.excepthook = hook
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_away_from_a_terminal_every_line_is_json_with_the_fields_beside_the_event() -> None:
    out = io.StringIO()
    set_up_logging(level="info", style="auto", process="shard-3", stream=out)
    logging.getLogger("wal").warning("wal.fsync.slow", extra={"shard": 3, "took_ms": 1204, "path": b"x"})
    line = json.loads(out.getvalue())
    assert line.pop("ts").endswith("Z")
    assert line == {
        "level": "warning",
        "process": "shard-3",
        "event": "wal.fsync.slow",
        "logger": "wal",
        "shard": 3,
        "took_ms": 1204,
        "path": "b'x'",
    }


def test_on_a_terminal_lines_are_text_and_a_value_cannot_fake_another_line() -> None:
    out = Terminal()
    set_up_logging(level="info", style="auto", process="gateway", stream=out)
    logging.getLogger("edge").info("edge.refused", extra={"peer": "::1", "reason": "a b\nERROR forged=1"})
    (line,) = out.getvalue().splitlines()
    assert line.endswith('INFO    gateway    edge.refused peer=::1 reason="a b\\nERROR forged=1"')


@pytest.mark.parametrize("style", ["json", "text"])
def test_an_exception_brings_its_traceback(style: str) -> None:
    out = io.StringIO()
    set_up_logging(level="error", style=style, process="gateway", stream=out)
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("x").exception("x.failed")
    assert "ValueError: broken" in out.getvalue()
    assert (out.getvalue().count("\n") == 1) is (style == "json")


def test_levels_below_the_setting_and_the_chatter_of_libraries_are_left_out() -> None:
    out = io.StringIO()
    set_up_logging(level="info", style="json", process="gateway", stream=out)
    logging.getLogger("x").debug("x.detail")
    logging.getLogger("hypercorn.error").info("Running on …")
    assert out.getvalue() == ""


def test_lines_for_the_journal_begin_with_their_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(tmp_path / "journal", "w+") as stream:
        found = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
        set_up_logging(level="info", style="auto", process="gateway", stream=stream)
        logging.getLogger("a").error("went.wrong", extra={"text": "two\nlines"})
        logging.getLogger("a").info("went.on")
        stream.seek(0)
        lines = stream.read().splitlines()
    assert [line[:3] for line in lines] == ["<3>", "<6>"]
    assert json.loads(lines[0][3:])["text"] == "two\nlines"
    # Another file than the one systemd means.
    set_up_logging(level="info", style="auto", process="gateway", stream=(other := io.StringIO()))
    logging.getLogger("a").info("went.on")
    assert other.getvalue().startswith("{")


def test_the_crash_of_a_process_is_a_line_like_any_other() -> None:
    out = io.StringIO()
    set_up_logging(level="info", style="json", process="shard-0", stream=out)
    try:
        raise ValueError("nobody planned this")
    except ValueError as err:
        sys.excepthook(type(err), err, err.__traceback__)
    line = json.loads(out.getvalue())
    assert (line["event"], line["level"]) == ("process.crashed", "critical")
    assert "nobody planned this" in line["traceback"]
