"""The directory of reports: one subdirectory per audit, a file that names them all, a lock.

audit/
  LOCK
  CHAIN                            a line per audit: name, SHA-256 of its report.json
  2026-11-16T02-30-00Z/report.json
                      /report.html
  latest -> 2026-11-16T02-30-00Z
  topicsd_audit.prom               for node_exporter's textfile collector
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

from shared.audit_findings import Finding
from shared.audit_report import (
    Previous,
    Report,
    UnknownReport,
    decode_report,
    encode_report,
    prometheus_text,
    report_digest,
)
from shared.io.durable_fs import RealFileSystem, write_atomically

METRICS_NAME = "topicsd_audit.prom"
_RUN = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ(\.\d+)?")


class AnotherRuns(Exception):
    """An audit of this store is under way."""


class ReportDir:
    def __init__(self, path: str) -> None:
        self.path = path
        self._fs = RealFileSystem()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Two audits never overlap; the second one is told who runs."""
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        fd = os.open(f"{self.path}/LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.read(fd, 32).decode(errors="replace").strip() or "unknown"
                raise AnotherRuns(
                    f"another audit (pid {owner}) holds {self.path}/LOCK: wait until it is done, or end it"
                ) from None
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(fd)

    def names(self) -> list[str]:
        return sorted(name for name in os.listdir(self.path) if _RUN.fullmatch(name))

    def last(self) -> tuple[tuple[Previous, Report] | None, list[Finding]]:
        """The newest report that can be read, and what is wrong with the chain of all that are kept."""
        found: list[Finding] = []
        chained = self._chain()
        newest: tuple[Previous, Report] | None = None
        for name in self.names():
            path = f"{self.path}/{name}/report.json"
            try:
                with open(path, "rb") as file:
                    content = file.read()
                report = decode_report(content)
            except (OSError, UnknownReport) as err:
                found.append(Finding(kind="report_chain", reason=f"cannot be read: {err}", path=path))
                continue
            digest = report_digest(content)
            if chained.get(name) != digest:
                told = "is not in CHAIN" if name not in chained else "is not the one that was written"
                found.append(Finding(kind="report_chain", reason=f"the report {told}", path=path))
            if newest is not None and report.previous != newest[0]:
                reason = f"does not follow from the report {newest[0].name}"
                found.append(Finding(kind="report_chain", reason=reason, path=path))
            newest = (Previous(name=name, sha256=digest), report)
        if chained and (newest is None or newest[0].name != max(chained)):
            path = f"{self.path}/{max(chained)}/report.json"
            found.append(Finding(kind="report_chain", reason="the newest report is missing", path=path))
        return newest, found

    def _chain(self) -> dict[str, str]:
        with suppress(FileNotFoundError), open(f"{self.path}/CHAIN", encoding="utf-8") as file:
            rows = [line.split() for line in file]
            return {row[0]: row[1] for row in rows if len(row) == 2}
        return {}

    def save(self, report: Report, html: str, metrics_file: str | None) -> tuple[str, str]:
        """Writes everything, the report last; returns its directory and its digest."""
        name = self._new_name(report.finished_ms)
        directory = f"{self.path}/{name}"
        os.makedirs(directory, mode=0o700)
        content = encode_report(report)
        digest = report_digest(content)
        write_atomically(self._fs, f"{directory}/report.html", [html.encode()])
        write_atomically(self._fs, f"{directory}/report.json", [content])
        chain = {**self._chain(), name: digest}
        text = "".join(f"{each} {known}\n" for each, known in sorted(chain.items()))
        write_atomically(self._fs, f"{self.path}/CHAIN", [text.encode()])
        metrics = metrics_file or f"{self.path}/{METRICS_NAME}"
        write_atomically(self._fs, metrics, [prometheus_text(report).encode()])
        os.chmod(metrics, 0o644)  # the exporter is somebody else
        link = f"{self.path}/latest"
        with suppress(FileNotFoundError):
            os.unlink(link + ".tmp")
        os.symlink(name, link + ".tmp")
        self._fs.rename(link + ".tmp", link)
        return directory, digest

    def _new_name(self, finished_ms: int) -> str:
        name = datetime.fromtimestamp(finished_ms / 1000, UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
        # Two within a second, or a clock that was set back: names ascend in the order of the audits.
        newest = max([*self.names(), *self._chain()], default="")
        if name > newest:
            return name
        stem, _, serial = newest.partition(".")
        return f"{stem}.{int(serial or 0) + 1:06d}"

    def start_anew(self) -> None:
        """Keeps the reports, under another name, and begins a new chain: for a store restored from a backup."""
        names = self.names()
        if not names and not os.path.exists(f"{self.path}/CHAIN"):
            return
        aside = f"{self.path}/before-{datetime.now(UTC).strftime('%Y%m%dT%H%M%S%f')}"
        os.makedirs(aside, mode=0o700)
        for name in [*names, "CHAIN"]:
            with suppress(FileNotFoundError):
                self._fs.rename(f"{self.path}/{name}", f"{aside}/{name}")

    def keep(self, count: int) -> list[str]:
        """Removes all but the newest `count` reports; CHAIN still names them."""
        gone = self.names()[:-count] if count > 0 else []
        for name in gone:
            shutil.rmtree(f"{self.path}/{name}")
        return gone
