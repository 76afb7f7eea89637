"""The report of an audit: `report.json`, the same facts for Prometheus, and the link to the report before. Pure.

A report names the SHA-256 of its predecessor, which names that of its own: nobody can change what an earlier night saw
without changing every report since. docs/cold-data.md, "Audit", describes the fields.
"""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from typing import Final

import msgspec

from shared.audit_findings import KINDS

SCHEMA: Final = 1


class Previous(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    sha256: str


class SegmentRow(msgspec.Struct, frozen=True, kw_only=True):
    shard: int
    number: int
    tier: str
    path: str
    size: int
    digest: str | None
    sha256: str
    blocks: int
    bad_blocks: int
    records: int
    created_ms: int
    min_ts: int
    max_ts: int
    topics: list[tuple[str, int, int, int, int]]
    """(name, epoch, first seq, last seq, records)"""


class TopicRow(msgspec.Struct, frozen=True, kw_only=True):
    shard: int
    name: str
    epoch: int
    head: int
    floor: int
    first: int
    sealed_end: int
    live: int
    """Live records in segments, and how many of those are missing."""
    missing: int
    segments: list[int]
    sha256: str
    """Over the topic's blocks in those segments, in the order of seqs."""
    deleted: str | None = None
    """Base64 of a 64-bit roaring bitmap in the portable format."""


class ShardRow(msgspec.Struct, frozen=True, kw_only=True):
    shard: int
    snapshot: int | None
    next_segment: int
    generation: int
    manifest_checksum: str


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    files: int
    blocks: int
    records: int
    bytes: int
    topics: int
    live: int
    missing: int
    errors: int
    notices: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    schema: int
    version: str
    engine: str
    started_ms: int
    finished_ms: int
    data_dir: str
    cold_dir: str | None
    shard_count: int
    previous: Previous | None
    verdict: str
    totals: Totals
    stages: dict[str, float]
    """Seconds."""
    shards: list[ShardRow]
    findings: list[dict[str, str | int]]
    segments: list[SegmentRow]
    topics: list[TopicRow]


class UnknownReport(ValueError):
    """Not a report that this version can read."""


class _SchemaOnly(msgspec.Struct):
    schema: int


def encode_report(report: Report) -> bytes:
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


def decode_report(content: bytes) -> Report:
    try:
        schema = msgspec.json.decode(content, type=_SchemaOnly).schema
        if schema != SCHEMA:
            raise UnknownReport(f"schema {schema}; this version reads {SCHEMA}")
        return msgspec.json.decode(content, type=Report)
    except msgspec.MsgspecError as err:
        raise UnknownReport(str(err)) from err


def report_digest(content: bytes) -> str:
    return sha256(content).hexdigest()


def prometheus_text(report: Report) -> str:
    """For node_exporter's textfile collector."""
    totals = report.totals
    lines: list[str] = []

    def metric(name: str, kind: str, text: str, rows: list[tuple[str, float]]) -> None:
        full = f"topicsd_audit_{name}"
        lines.extend((f"# HELP {full} {text}", f"# TYPE {full} {kind}"))
        lines.extend(f"{full}{labels} {value:.15g}" for labels, value in rows)

    metric("clean", "gauge", "1 if the last audit found no error.", [("", float(report.verdict == "clean"))])
    finished_s = report.finished_ms / 1000
    metric("finished_timestamp_seconds", "gauge", "When the last audit finished.", [("", finished_s)])
    took_s = (report.finished_ms - report.started_ms) / 1000
    metric("duration_seconds", "gauge", "How long it took.", [("", took_s)])
    counts = Counter(str(finding["kind"]) for finding in report.findings)
    labelled = [
        (f'{{kind="{kind}",severity="{severity}"}}', float(counts[kind]))
        for kind, (severity, _) in KINDS.items()
    ]
    metric("findings", "gauge", "Findings of the last audit by kind.", labelled)
    for name, text in (
        ("files", "Segment files that were read."),
        ("blocks", "Blocks that were read."),
        ("records", "Records in intact blocks."),
        ("bytes", "Bytes that were read."),
        ("topics", "Topics with sealed records."),
        ("missing", "Live records that are missing."),
    ):
        metric(name, "gauge", text, [("", float(getattr(totals, name)))])
    return "\n".join(lines) + "\n"
