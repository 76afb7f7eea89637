"""Reading the files of an audit, each once: footers here, blocks by the engine. Facts are kept for another look."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ops.coldstore.engines import Advance, Engine
from ops.coldstore.places import filesystem_for
from ops.coldstore.segment_files import opened
from shared.audit_blocks import Footer, SegmentFacts, SliceFacts, fold_segment, read_footer, salvage
from shared.audit_findings import Finding
from shared.audit_routers import RouterCopies
from shared.cold_plan import Query, SegmentSlice, pack_bins, slice_segment


@dataclass(slots=True)
class CheckedFile:
    path: str
    shard: int
    number: int
    size: int = 0
    footer: Footer | None = None
    facts: SegmentFacts | None = None
    findings: list[Finding] = field(default_factory=list)
    copies: list[RouterCopies] = field(default_factory=list)
    vanished: bool = False


class FileChecks:
    """`checked[path]` for every file that was asked for."""

    def __init__(self, engine: Engine, bin_bytes: int) -> None:
        self._engine = engine
        self._bin_bytes = bin_bytes
        self.checked: dict[str, CheckedFile] = {}
        self.bytes = 0

    def run(self, wanted: Iterable[tuple[str, int, int]], advance: Advance) -> None:
        """(path, shard, number) of files; those read before are not read again."""
        slices: list[SegmentSlice] = []
        fresh: list[CheckedFile] = []
        for path, shard, number in wanted:
            known = self.checked.get(path)
            if known is None or known.vanished:
                file = self.checked[path] = _open(path, shard, number)
                fresh.append(file)
                if file.footer is not None:
                    whole = slice_segment(path, shard, number, file.footer.index, Query())
                    slices += [whole] if whole is not None else []
        by_path: dict[str, list[SliceFacts]] = {}
        for facts in self._engine.check(pack_bins(slices, self._bin_bytes), advance):
            by_path.setdefault(facts.path, []).append(facts)
        for file in fresh:
            self._fold(file, by_path.get(file.path, []))

    def _fold(self, file: CheckedFile, parts: list[SliceFacts]) -> None:
        self.bytes += sum(part.bytes for part in parts)
        for part in sorted(parts, key=lambda part: part.first):
            file.findings += part.findings
            file.copies += part.copies
        if any(finding.kind == "missing_file" for finding in file.findings):
            file.vanished, file.findings = True, []
        elif file.footer is not None and not any(f.kind == "unreadable_file" for f in file.findings):
            file.facts = fold_segment(file.footer, parts)


def _open(path: str, shard: int, number: int) -> CheckedFile:
    file = CheckedFile(path, shard, number)
    try:
        with opened(filesystem_for(path), path) as stored:
            file.size = stored.size()
            file.footer, file.findings = read_footer(stored.pread, file.size, path, shard, number)
            if file.footer is None:
                file.findings += salvage(stored.pread, file.size, path, shard, number)
    except FileNotFoundError:
        file.vanished = True
    except OSError as err:
        reason = err.strerror or str(err)
        file.findings.append(
            Finding(kind="unreadable_file", reason=reason, path=path, shard=shard, segment=number)
        )
    return file
