"""What an audit can find, by name. A finding says where: file, byte, shard, segment, topic, seqs, as far as known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

ERROR, NOTICE = "error", "notice"

KINDS: Final[dict[str, tuple[str, str]]] = {
    # kind: (severity, what it means to a person)
    "bad_header": (ERROR, "The header of a segment file is damaged, or it is no segment at all"),
    "bad_footer": (ERROR, "Terms, index or trailer of a segment are damaged"),
    "bad_block": (ERROR, "A block of records is damaged"),
    "size_differs": (ERROR, "A file is shorter or longer than recorded"),
    "digest_differs": (ERROR, "A segment is intact in itself, but not the one that was recorded"),
    "wrong_file": (ERROR, "A file stands under another one's name"),
    "manifest_disagrees": (ERROR, "The manifest describes a segment otherwise than the segment itself"),
    "missing_file": (ERROR, "A recorded file is not there"),
    "unreadable_file": (ERROR, "The system cannot read a file"),
    "orphan_file": (ERROR, "A segment file that nothing refers to"),
    "foreign_file": (ERROR, "A file that is not topicsd's"),
    "bad_manifest": (ERROR, "A manifest is damaged"),
    "manifest_chain": (ERROR, "Manifests do not follow from each other"),
    "manifest_went_back": (ERROR, "An older manifest is in force than before"),
    "bad_snapshot": (ERROR, "The newest snapshot of a shard is damaged"),
    "gap": (ERROR, "Records are missing without a recorded reason"),
    "duplicate": (ERROR, "The same seq is stored twice"),
    "ts_order": (ERROR, "Times run backwards"),
    "wrong_shard": (ERROR, "A topic is kept by a shard that its name does not belong to"),
    "delete_not_honoured": (ERROR, "A deleted record was written to a segment again"),
    "copy_differs": (ERROR, "A router's copy is not what its source holds"),
    "history_rewritten": (ERROR, "A segment is not the one that an earlier audit saw"),
    "history_dropped": (ERROR, "A segment that an earlier audit saw is gone, and its live records with it"),
    "history_undone": (ERROR, "A floor, a head or a delete that an earlier audit saw has moved back"),
    "report_chain": (ERROR, "An earlier report is missing or was changed"),
    "leftover_file": (NOTICE, "An unfinished or replaced file, removed by the worker in time"),
    "no_snapshot": (NOTICE, "The shard has no snapshot yet, so gaps cannot be told from deletes"),
    "rewritten": (NOTICE, "A segment was replaced by a compaction"),
    "router_source_gone": (NOTICE, "Copies whose source is not in segments any more were not compared"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    kind: str
    reason: str
    path: str | None = None
    offset: int | None = None
    shard: int | None = None
    segment: int | None = None
    topic: str | None = None
    epoch: int | None = None
    first_seq: int | None = None
    last_seq: int | None = None

    @property
    def severity(self) -> str:
        return KINDS[self.kind][0]

    def to_dict(self) -> dict[str, str | int]:
        known: dict[str, str | int] = {
            name: value for name, value in asdict(self).items() if value is not None
        }
        return {"kind": known.pop("kind"), "severity": self.severity, **known}

    @classmethod
    def from_dict(cls, known: Mapping[str, Any]) -> Finding:
        return cls(**{name: value for name, value in known.items() if name != "severity"})

    def line(self) -> str:
        """For people, in one line."""
        where = [] if self.path is None else [self.path + (f" at byte {self.offset}" if self.offset else "")]
        if self.topic is not None:
            seqs = "" if self.first_seq is None else f" seq {self.first_seq}"
            if self.first_seq is not None and self.last_seq not in (None, self.first_seq):
                seqs = f" seqs {self.first_seq}..{self.last_seq}"
            where.append(f"topic {self.topic}{seqs}")
        elif self.shard is not None and self.path is None:
            where.append(f"shard {self.shard}")
        return f"{self.kind}: {self.reason}" + (f" ({', '.join(where)})" if where else "")


def finding_order(finding: Finding) -> tuple[object, ...]:
    """The same order in every report, whichever engine found them first."""
    return (
        finding.severity,
        list(KINDS).index(finding.kind),
        finding.path or "",
        finding.offset or 0,
        finding.shard if finding.shard is not None else -1,
        finding.topic or "",
        finding.first_seq or 0,
        finding.reason,
    )
