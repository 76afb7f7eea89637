"""The directory of reports: one audit at a time, a chain that shows every change, a bounded number of them."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ops.coldstore.report_files import AnotherRuns, ReportDir
from ops.coldstore.report_html import render_html
from shared.audit_findings import KINDS, Finding, finding_order
from shared.audit_report import (
    SCHEMA,
    Previous,
    Report,
    SegmentRow,
    ShardRow,
    TopicRow,
    Totals,
    UnknownReport,
    decode_report,
    encode_report,
    prometheus_text,
)


def a_report(
    previous: Previous | None = None, *, findings: list[Finding] | None = None, at_ms: int = 1_000
) -> Report:
    found = findings or []
    errors = sum(each.severity == "error" for each in found)
    return Report(
        schema=SCHEMA,
        version="1",
        engine="local",
        started_ms=at_ms - 900,
        finished_ms=at_ms,
        data_dir="/data",
        cold_dir=None,
        shard_count=1,
        previous=previous,
        verdict="findings" if errors else "clean",
        totals=Totals(
            files=1, blocks=1, records=9, bytes=100, topics=1, live=9, missing=0, errors=errors, notices=0
        ),
        stages={"plan": 0.1},
        shards=[ShardRow(shard=0, snapshot=1, next_segment=2, generation=0, manifest_checksum="0" * 16)],
        findings=[each.to_dict() for each in found],
        segments=[
            SegmentRow(
                shard=0,
                number=1,
                tier="hot",
                path="/data/1.seg",
                size=100,
                digest="0" * 16,
                sha256="0" * 64,
                blocks=1,
                bad_blocks=0,
                records=9,
                created_ms=1,
                min_ts=1,
                max_ts=2,
                topics=[("<b>bold</b>", 1, 1, 9, 9)],
            )
        ],
        topics=[
            TopicRow(
                shard=0,
                name="<b>bold</b>",
                epoch=1,
                head=9,
                floor=1,
                first=1,
                sealed_end=9,
                live=9,
                missing=0,
                segments=[1],
                sha256="0" * 64,
            )
        ],
    )


def save_many(reports: ReportDir, count: int) -> None:
    for number in range(count):
        before, chain = reports.last()
        assert chain == []
        reports.save(a_report(before[0] if before else None, at_ms=1_000 * (number + 1)), "<html>", None)


@pytest.fixture
def reports(tmp_path: Path) -> ReportDir:
    (tmp_path / "audit").mkdir()
    return ReportDir(str(tmp_path / "audit"))


def test_a_second_audit_is_told_that_one_runs(reports: ReportDir) -> None:
    with (
        reports.locked(),
        pytest.raises(AnotherRuns, match="another audit"),
        ReportDir(reports.path).locked(),
    ):
        pass
    with reports.locked():
        pass


def test_each_report_names_the_digest_of_the_one_before(reports: ReportDir) -> None:
    save_many(reports, 3)
    newest, chain = reports.last()
    assert newest is not None and chain == []
    assert newest[1].previous is not None and newest[1].previous.name == reports.names()[1]
    assert (Path(reports.path) / "latest").resolve().name == reports.names()[-1]


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_report_that_was_changed_or_removed_is_found(reports: ReportDir, victim: int) -> None:
    save_many(reports, 3)
    path = Path(reports.path) / reports.names()[victim] / "report.json"
    original = path.read_bytes()
    path.write_bytes(original.replace(b'"records": 9', b'"records": 8'))
    assert path.read_bytes() != original and decode_report(path.read_bytes())
    assert {finding.path for finding in reports.last()[1]} >= {str(path)}
    path.unlink()
    assert reports.last()[1], "missing"
    path.write_bytes(original)
    assert reports.last()[1] == []


def test_a_chain_rewritten_as_a_whole_is_broken_where_the_reports_stand(reports: ReportDir) -> None:
    """Whoever changes an old report and CHAIN still has every later report against them."""
    save_many(reports, 3)
    first = Path(reports.path) / reports.names()[0] / "report.json"
    first.write_bytes(first.read_bytes().replace(b'"records": 9', b'"records": 8'))
    from shared.audit_report import report_digest

    chain = Path(reports.path) / "CHAIN"
    lines = chain.read_text().splitlines()
    lines[0] = f"{reports.names()[0]} {report_digest(first.read_bytes())}"
    chain.write_text("\n".join(lines) + "\n")
    (found,) = reports.last()[1]
    assert found.path is not None and reports.names()[1] in found.path and "does not follow" in found.reason


def test_old_reports_go_and_the_chain_holds(reports: ReportDir) -> None:
    save_many(reports, 5)
    names = reports.names()
    assert reports.keep(2) == names[:3] and reports.names() == names[3:]
    assert reports.last()[1] == []
    save_many(reports, 1)


def test_names_ascend_also_if_the_clock_does_not(reports: ReportDir) -> None:
    for at_ms in (5_000, 5_000, 1_000):
        before, _ = reports.last()
        reports.save(a_report(before[0] if before else None, at_ms=at_ms), "", None)
    assert len(reports.names()) == 3 and reports.last()[1] == []


def test_a_new_history_keeps_the_old_one_aside(reports: ReportDir) -> None:
    save_many(reports, 2)
    reports.start_anew()
    assert reports.last() == (None, [])
    (aside,) = Path(reports.path).glob("before-*")
    assert len(list(aside.glob("*/report.json"))) == 2


def test_a_report_comes_back_as_it_was_and_others_are_refused() -> None:
    report = a_report(findings=[Finding(kind="gap", reason="x", topic="t", first_seq=1, last_seq=2)])
    assert decode_report(encode_report(report)) == report
    for content in (b"{}", b"[", encode_report(msgspec.structs.replace(report, schema=99))):
        with pytest.raises(UnknownReport):
            decode_report(content)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.outside += [value for name, value in attrs if name in ("src", "href", "xlink:href") and value]


def test_the_page_needs_nothing_from_outside_and_shows_names_as_text() -> None:
    every = [
        Finding(kind=kind, reason="<i>why</i>", path="/a&b", topic="<b>bold</b>", first_seq=2)
        for kind in KINDS
    ]
    for findings in ([], every):
        page = render_html(a_report(findings=findings))
        seen = _Tags()
        seen.feed(page)
        assert seen.outside == [] and not {"script", "link", "img", "iframe"} & set(seen.tags)
        assert "url(" not in page and "@import" not in page
        assert "<b>bold</b>" not in page and "&lt;b&gt;bold" in page
        assert ("problems found" in page) == bool(findings)


def test_the_metrics_are_prometheus_text_with_every_kind() -> None:
    text = prometheus_text(a_report(findings=[Finding(kind="gap", reason="x")] * 2))
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["topicsd_audit_clean"].samples[0].value == 0
    counts = {sample.labels["kind"]: sample.value for sample in families["topicsd_audit_findings"].samples}
    assert counts.keys() == KINDS.keys() and counts["gap"] == 2


def test_findings_are_one_line_for_people_and_sorted_alike_everywhere() -> None:
    gap = Finding(kind="gap", reason="2 records are missing", topic="t", first_seq=3, last_seq=4, shard=1)
    block = Finding(
        kind="bad_block", reason="checksum", path="/x.seg", offset=80, topic="t", first_seq=5, last_seq=5
    )
    assert gap.line() == "gap: 2 records are missing (topic t seqs 3..4)"
    assert block.line() == "bad_block: checksum (/x.seg at byte 80, topic t seq 5)"
    notice = Finding(kind="no_snapshot", reason="y", shard=0)
    assert sorted([notice, gap, block], key=finding_order) == [block, gap, notice]
    assert Finding.from_dict(gap.to_dict()) == gap


def test_every_kind_of_finding_is_documented_in_its_own_words() -> None:
    page = (Path(__file__).parents[3] / "docs" / "cold-data.md").read_text()
    for kind, (severity, meaning) in KINDS.items():
        notice = " (notice)" if severity == "notice" else ""
        assert f"| `{kind}`{notice} | {meaning} |" in page, kind
