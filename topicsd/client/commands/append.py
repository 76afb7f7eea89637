"""`topics append`: records from stdin or the command line, in batches; each batch is written whole or not at all.

Every batch has an idempotency key, so a batch whose answer was lost is sent again and still written once.
"""

from __future__ import annotations

import secrets
import sys

import click
import msgspec

from topicsd.client.api import topic_path
from topicsd.client.errors import BadInput, Refused, Unreachable, Usage
from topicsd.client.lines import Lines
from topicsd.client.options import Session, client_command
from topicsd.client.output import Progress, count, records, seq_range
from topicsd.client.patience import patiently
from topicsd.client.record_lines import RECORD_OF, BadLine, Form

BATCH_BYTES = 1024 * 1024
PAUSE_S = 0.02
"""Stdin that gives nothing for this long pauses: what has come is written now."""


class Written(msgspec.Struct):
    first_seq: int
    last_seq: int
    count: int


@client_command("append", json_help="One JSON object per batch, as the server acknowledged it.")
@click.argument("topic")
@click.argument("values", nargs=-1, metavar="[VALUE]...")
@click.option(
    "--data", "form", flag_value="data", help="A line is a JSON value and becomes the record's data."
)
@click.option(
    "--raw", "form", flag_value="raw", help="A line is text and becomes the record's data, a string."
)
@click.option(
    "--batch", type=click.IntRange(1, 10000), default=1000, show_default=True, help="Records per request."
)
@click.option("--node", help="Node of every record that has none of its own.")
@click.option("--no-create", is_flag=True, help="Fail if the topic does not exist.")
@click.option("--retry-for", type=click.FloatRange(0), default=30.0, show_default=True, metavar="SECONDS",
              help="Keep trying if the server is busy or goes away in between.")  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="Say nothing about success.")
def command(
    session: Session,
    topic: str,
    values: tuple[str, ...],
    form: Form | None,
    batch: int,
    node: str | None,
    no_create: bool,
    retry_for: float,
    quiet: bool,
) -> None:
    """Write records to TOPIC: the VALUEs, which are JSON (text with --raw), or lines of stdin.

    A line is a record, {"data":…,"tag":…,"node":…,"key":…,"meta":…}; what `topics read` prints will do. The first
    line that is wrong ends it; all lines before it are written.
    """
    writer = Writer(
        session, topic, limit=batch, node=node, create=not no_create, retry_for_s=retry_for, quiet=quiet
    )
    try:
        if values:
            form = form or "data"
            for number, value in enumerate(values, 1):
                writer.add(value.encode(errors="surrogateescape"), number, form, word="value")
        else:
            _append_lines(writer, form or "record")
        writer.flush()
    finally:
        writer.progress.clear()
    writer.report()


def _append_lines(writer: Writer, form: Form) -> None:
    if sys.stdin.isatty():
        raise Usage(
            "there is nothing on stdin; pipe lines into it, or give values: topics append TOPIC '{\"a\":1}'"
        )
    source = Lines(sys.stdin.fileno())
    number = 0
    while not source.ended:
        lines = source.take(PAUSE_S if writer.pending else None)
        for line in lines:
            number += 1
            # An empty line is an empty string in plain text, and nothing in NDJSON.
            if form == "raw" or line.strip():
                writer.add(line, number, form)
        if not lines:
            writer.flush()


class Writer:
    def __init__(
        self,
        session: Session,
        topic: str,
        *,
        limit: int,
        node: str | None,
        create: bool,
        retry_for_s: float,
        quiet: bool,
    ) -> None:
        self._session = session
        self._topic = topic
        self._limit = limit
        self._retry_for_s = retry_for_s
        self._quiet = quiet
        more: dict[str, object] = {} if create else {"create": False}
        if node:
            more["node"] = node
        self._tail = b"]}" if not more else b"]," + msgspec.json.encode(more)[1:]
        self._records: list[bytes] = []
        self._bytes = 0
        self._first_line = 0
        self._last_line = 0
        self._run = secrets.token_hex(8)
        self._batches = 0
        self.written = 0
        self._first_seq = 0
        self._last_seq = 0
        self.progress = Progress()

    @property
    def pending(self) -> bool:
        return bool(self._records)

    def add(self, line: bytes, number: int, form: Form, *, word: str = "line") -> None:
        try:
            record = RECORD_OF[form](line)
        except BadLine as err:
            self.flush()
            raise BadInput(
                f"{word} {number}: {err}; {self._so_far()}, nothing from {word} {number} on"
            ) from None
        if not self._records:
            self._first_line = number
        self._last_line = number
        self._records.append(record)
        self._bytes += len(record)
        if len(self._records) >= self._limit or self._bytes >= BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        if not self._records:
            return
        body = b'{"records":[' + b",".join(self._records) + self._tail
        self._batches += 1
        key = {"Idempotency-Key": f"topics-{self._run}-{self._batches}"}

        def attempt() -> bytes:
            return self._session.server.call(
                "POST", topic_path(self._topic), body, query={"return_seqs": "false"}, headers=key, again=True
            )

        try:
            answer = patiently(attempt, for_s=self._retry_for_s, unreachable_too=self.written > 0)
        except Refused as err:
            raise err.with_hint("; ".join(filter(None, (self._hint(err), self._where())))) from err
        except Unreachable as err:
            unsure = f"{self._lines()} may or may not be written" if self.written else "nothing was written"
            raise Unreachable(
                f"{err}; {self._so_far()}; {unsure}" if self.written else f"{err}; {unsure}"
            ) from err
        except KeyboardInterrupt:
            self.progress.clear()
            raise
        self._took(answer)

    def _took(self, answer: bytes) -> None:
        result = self._session.server.decode(Written, answer)
        self._first_seq = self._first_seq or result.first_seq
        self._last_seq = result.last_seq
        self.written += result.count
        self._records, self._bytes = [], 0
        if self._session.as_json:
            self._session.out.line(answer)
            self._session.out.flush()
        self.progress.show(f"{count(self.written)} records written, up to line {count(self._last_line)}")

    def _hint(self, err: Refused) -> str | None:
        return (
            f"use --batch {err.detail['max']}"
            if err.code == "batch_too_large" and "max" in err.detail
            else err.hint
        )

    def _lines(self) -> str:
        if self._first_line == self._last_line:
            return f"line {self._first_line}"
        return f"lines {self._first_line}…{self._last_line}"

    def _where(self) -> str:
        return f"{self._so_far()}, nothing from {self._lines().replace('lines', 'line').partition('…')[0]} on"

    def _so_far(self) -> str:
        if not self.written:
            return "nothing was written"
        are = "is" if self.written == 1 else "are"
        return f"{records(self.written)} before it {are} written (up to seq {self._last_seq})"

    def report(self) -> None:
        if self._session.as_json or self._quiet:
            return
        if not self.written:
            self._session.out.text("nothing to write")
            return
        # Others may have written in between; only an unbroken range is worth naming as one.
        whole = self._last_seq - self._first_seq + 1 == self.written
        seqs = seq_range(self._first_seq, self._last_seq) if whole else f"up to seq {self._last_seq}"
        self._session.out.text(f"{records(self.written)} written to {self._topic}, {seqs}")
