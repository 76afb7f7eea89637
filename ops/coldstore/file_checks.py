"""Checking files, or parts of large ones: what a task of an audit does, wherever it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from ops.coldstore.places import filesystem_for
from ops.coldstore.segment_files import opened
from shared.audit_blocks import (
    Footer,
    SegmentFacts,
    SliceFacts,
    check_slice,
    fold_segment,
    read_footer,
    salvage,
)
from shared.audit_findings import Finding
from shared.audit_routers import RouterCopies
from shared.cold_plan import Query, SegmentSlice, slice_segment
from shared.segment_reader import Pread

_AT_ONCE_BYTES: Final = 1 << 20
"""Files up to this size are read with one call: a small one has seven parts."""


@dataclass(frozen=True, slots=True)
class FileToCheck:
    path: str
    shard: int
    number: int
    size: int | None
    """As recorded; None where nobody says."""

    @property
    def bytes(self) -> int:
        return self.size or 0


@dataclass(slots=True)
class CheckedFile:
    path: str
    shard: int
    number: int
    size: int = 0
    created_ms: int = 0
    bytes: int = 0
    """Of blocks that were read."""
    facts: SegmentFacts | None = None
    findings: list[Finding] = field(default_factory=list)
    copies: list[RouterCopies] = field(default_factory=list)
    vanished: bool = False

    def fold(self, footer: Footer, parts: Iterable[SliceFacts]) -> None:
        """Take in what was found in the blocks; the parts are all of the file."""
        held = sorted(parts, key=lambda part: part.first)
        for part in held:
            self.bytes += part.bytes
            self.findings += part.findings
            self.copies += part.copies
        if any(finding.kind == "missing_file" for finding in self.findings):
            self.vanished, self.findings = True, []
        elif not any(finding.kind == "unreadable_file" for finding in self.findings):
            self.facts = fold_segment(footer, held)


Part = FileToCheck | SegmentSlice
Task = tuple[Part, ...]


def check_task(task: Task) -> list[CheckedFile | SliceFacts]:
    return [check_file(part) if isinstance(part, FileToCheck) else check_part(part) for part in task]


def check_file(wanted: FileToCheck) -> CheckedFile:
    """All of a file: footer, blocks, and what they amount to."""
    file = CheckedFile(wanted.path, wanted.shard, wanted.number)
    with _named_errors(file), opened(filesystem_for(file.path), file.path) as stored:
        file.size = stored.size()
        pread = stored.pread if file.size > _AT_ONCE_BYTES else _at_once(stored.pread, file.size)
        footer = _footer(file, pread)
        if footer is not None:
            whole = slice_segment(file.path, file.shard, file.number, footer.index, Query())
            file.fold(footer, [check_slice(pread, whole)] if whole is not None else [])
    return file


def open_file(wanted: FileToCheck) -> tuple[CheckedFile, Footer | None]:
    """The footer alone: for files whose blocks are checked in several tasks. `fold` comes later."""
    file = CheckedFile(wanted.path, wanted.shard, wanted.number)
    footer = None
    with _named_errors(file), opened(filesystem_for(file.path), file.path) as stored:
        file.size = stored.size()
        footer = _footer(file, stored.pread)
    return file, footer


def check_part(work: SegmentSlice) -> SliceFacts:
    try:
        with opened(filesystem_for(work.path), work.path) as file:
            return check_slice(file.pread, work)
    except OSError as err:
        # Dropped by its worker meanwhile, or a disk that fails: whoever knows the manifests decides.
        kind = "missing_file" if isinstance(err, FileNotFoundError) else "unreadable_file"
        reason = err.strerror or str(err)
        finding = Finding(kind=kind, reason=reason, path=work.path, shard=work.shard, segment=work.number)
        return SliceFacts(work.path, work.number, work.blocks[0][0], findings=[finding])


def _footer(file: CheckedFile, pread: Pread) -> Footer | None:
    footer, file.findings = read_footer(pread, file.size, file.path, file.shard, file.number)
    if footer is None:
        file.findings += salvage(pread, file.size, file.path, file.shard, file.number)
    else:
        file.created_ms = footer.header.created_ms
    return footer


def _at_once(pread: Pread, size: int) -> Pread:
    content = pread(size, 0)
    return lambda length, offset: content[offset : offset + length]


@contextmanager
def _named_errors(file: CheckedFile) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        file.vanished, file.findings = True, []
    except OSError as err:
        reason = err.strerror or str(err)
        file.findings.append(
            Finding(
                kind="unreadable_file", reason=reason, path=file.path, shard=file.shard, segment=file.number
            )
        )
