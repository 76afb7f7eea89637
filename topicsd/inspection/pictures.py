"""What each `topicsd shard` command prints for people, from the answer it got. `--json` prints the answer itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from topicsd.inspection.locks import LockState
from topicsd.inspection.tables import bad, cell, good, pairs, seqs_text, size_text, table, time_text

Document = dict[str, Any]


def shards_picture(rows: Sequence[Document]) -> list[str]:
    return table(
        ["shard", "state", "topics", "bytes", "log files", "written", "synced", "segments", "damage"],
        [
            [row["shard"], row["state"], "-", "-", "-", "-", "-", "-", row["error"]]
            if "error" in row
            else [
                row["shard"],
                row["state"],
                row["topics"],
                size_text(row["bytes"]),
                row["log"]["files"],
                row["log"]["written"],
                row["log"]["synced"],
                sum(tier["count"] for tier in row["segments"].values()),
                len(row["recovery"]["damage"]) or "none",
            ]
            for row in rows
        ],
        right="shard topics segments",
    )


def show_picture(found: Document) -> list[str]:
    log, recovery = found["log"], found["recovery"]
    cold, hot = found["segments"]["cold"], found["segments"]["hot"]
    lines = pairs(
        [
            ("shard", found["shard"]),
            ("read from", _source(found)),
            ("topics", f"{found['topics']}, {size_text(found['bytes'])} of live records"),
            ("log", f"{log['files']} files, {log['first_file']} to {log['last_file']}"),
            ("written up to", log["written"]),
            ("synced up to", log["synced"]),
            (
                "segments",
                f"{hot['count']} hot ({size_text(hot['bytes'])}), {cold['count']} cold ({size_text(cold['bytes'])})",
            ),
            (
                "snapshots",
                ", ".join(f"{each['number']} ({size_text(each['bytes'])})" for each in found["snapshots"])
                or None,
            ),
            ("idempotency keys", found["idempotency_keys"]),
            ("latest time", time_text(found["clock_ms"])),
            (
                "writes",
                good("taken") if found["read_only"] is None else bad(f"refused: {found['read_only']}"),
            ),
            (_replayed(found), f"{recovery['frames']} frames, {size_text(recovery['bytes'])}"),
        ]
    )
    lines += [f"  note: {note}" for note in recovery["notes"]]
    lines += [bad(f"  damage: {damage}") for damage in recovery["damage"]]
    if found["quarantine"]:
        lines += [
            "",
            *table(
                ["in quarantine", "bytes"],
                [[each["file"], each["bytes"]] for each in found["quarantine"]],
                right="bytes",
            ),
        ]
    return lines


def _source(found: Document) -> str:
    return "its running worker" if found["source"] == "live" else "its files; it is stopped"


def _replayed(found: Document) -> str:
    return "replayed at start" if found["source"] == "live" else "a start replays"


def topics_picture(rows: Sequence[Document]) -> list[str]:
    return table(
        ["topic", "type", "durability", "earliest", "head", "count", "bytes", "batches", "segments", "holes"],
        [
            [
                row["topic"], row["type"], row["durability"], row["earliest_seq"], row["head_seq"], row["count"],
                size_text(row["bytes"]), row["hot_batches"], row["segments"], row["holes"],
            ]
            for row in rows
        ],
        right="earliest head count bytes batches segments holes",
    )  # fmt: skip


def topic_picture(found: Document) -> list[str]:
    log, queue = found["log"], found.get("queue")
    rows: list[tuple[str, object]] = [
        ("topic", found["topic"]),
        ("shard", f"{found['shard']} ({_source(found)})"),
        ("id, epoch", f"{found['id']}, {found['epoch']}"),
        ("kind", f"{found['type']}, {found['durability']}"),
        ("seqs", f"{found['earliest_seq']} (earliest) to {found['head_seq']} (head)"),
        ("records", f"{found['count']}, {size_text(found['bytes'])}"),
        ("last write", time_text(found["last_write_ts"])),
        ("evict floor", f"{found['evict_floor']} ({found['evict_reason'] or 'nothing evicted'})"),
        ("deleted above it", found["deleted"]),
        ("reserved up to", found["reserved_upto"]),
        ("last frame", f"{found['lsn']} ({'synced' if found['synced'] else 'not synced yet'})"),
        ("idempotency keys", found["idempotency_keys"]),
    ]
    if log is not None:
        seqs = seqs_text(log["first_seq"], log["last_seq"])
        where = f"seqs {seqs}, {found['hot_batches']} batches from {log['oldest']}, {size_text(log['bytes'])}"
        rows.append(
            ("in the log", where + (f", {log['in_memory']} in memory only" if log["in_memory"] else ""))
        )
    if queue is not None:
        counts = ", ".join(
            f"{queue[name]} {name.replace('_', ' ')}" for name in ("ready", "in_flight", "delayed")
        )
        rows.append(("queue", f"{counts}, {queue['dead_lettered']} dead-lettered"))
    lines = pairs(rows)
    lines += [bad(f"lost: seqs {seqs_text(first, last)} ({reason})") for first, last, reason in found["lost"]]
    if found["runs"]:
        lines += ["", *_runs(found["runs"])]
    if queue is not None and queue["leases"]:
        leases = [
            [each["seq"], each["node"], time_text(each["deadline"]), each["deliveries"]]
            for each in queue["leases"]
        ]
        lines += ["", *table(["leased seq", "node", "until", "deliveries"], leases, right="deliveries")]
    if "routers" in found:
        lines += ["", *_routers(found["routers"])]
    if "routed" in found:
        came = [[each["router"], each["source_seq"]] for each in found["routed"]]
        lines += ["", *table(["copied here by", "up to its source's seq"], came)]
    lines += ["", "config " + json.dumps(found["config"])]
    return lines


def _routers(routers: Sequence[Document]) -> list[str]:
    return table(
        ["router", "to", "guarantee", "cursor", "confirmed", "lag", "forwarded"],
        [
            [each["router"], each["dest"], each["guarantee"], each["cursor"], each["confirmed"], each["lag"],
             each["forwarded"]]
            for each in routers
        ],
        right="cursor confirmed lag forwarded",
    )  # fmt: skip


def _runs(runs: Sequence[Document]) -> list[str]:
    return table(
        ["segment", "tier", "seqs", "live", "bytes", "newest"],
        [
            [run["segment"], run["tier"], seqs_text(run["first_seq"], run["last_seq"]), run["live"],
             size_text(run["bytes"]), time_text(run["max_ts"])]
            for run in runs
        ],
        right="segment live bytes",
    )  # fmt: skip


def segments_picture(rows: Sequence[Document]) -> list[str]:
    return table(
        ["segment", "tier", "bytes", "digest", "topics", "path"],
        [
            [row["segment"], row["tier"], size_text(row["bytes"]), row["digest"], row["runs"], row["path"]]
            for row in rows
        ],
        right="segment bytes topics",
    )


def runs_picture(topic: str, runs: Sequence[Document]) -> list[str]:
    return _runs(runs) if runs else [f"topic {topic} has no records in segments"]


def place_picture(found: Document) -> list[str]:
    named = {"segment": "segment", "path": "file", "json_at": "JSON part at", "bytes": "bytes", "why": "why"}
    rows: list[tuple[str, object]] = [
        ("topic", found["topic"]),
        ("seq", found["seq"]),
        ("is in", found["place"]),
    ]
    if "first_seq" in found:
        what = "block of seqs" if found["place"] == "segment" else "batch of seqs"
        rows.append((what, seqs_text(found["first_seq"], found["last_seq"])))
    rows += [(label, found[name]) for name, label in named.items() if name in found]
    return pairs(rows)


def log_picture(rows: Sequence[Document]) -> list[str]:
    return table(
        ["lsn", "kind", "topic", "seqs", "bytes", "time", "detail"],
        [
            [
                row["lsn"],
                row["kind"],
                row.get("topic"),
                seqs_text(row["first_seq"], row["last_seq"]) if "first_seq" in row else None,
                row["bytes"],
                time_text(row.get("ts")),
                bad(row["damage"]) if "damage" in row else _detail(row.get("detail", {})),
            ]
            for row in rows
        ],
        right="bytes",
    )


def _detail(fields: Document) -> str:
    shown = {name: value for name, value in fields.items() if name != "config"}
    return " ".join(f"{name}={_plain(value)}" for name, value in shown.items())


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def locks_picture(locks: Sequence[LockState]) -> list[str]:
    return table(
        ["lock", "held by", "command", "pid in the file"],
        [
            [
                lock.path,
                cell(lock.holder or None) if lock.holder != 0 else "somebody",
                lock.command,
                lock.written_pid,
            ]
            for lock in locks
        ],
    )
