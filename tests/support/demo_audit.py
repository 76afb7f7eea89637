"""`make demo-audit`: a small store, a damaged copy of it, and the audits of both.

    python -m tests.support.demo_audit [DIRECTORY]

The store is made by a real shard: appended to, sealed, moved to the cold tier, with deletes, a cap and a TTL. The copy
is audited once while it is whole, so that the second audit has a history, and then damaged in every way there is.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner
from msgspec.structs import replace

from tests.support.audit_kit import (
    cold_segments,
    copy_store,
    edit_snapshots,
    flip_byte,
    forge_segment,
    hot_segments,
    newest_manifest_path,
    recompute_everything,
    regions,
)
from tests.support.cold_stores import StorePaths, fill, rows, store_in
from topicsd.cli import main

DAY_MS = 86_400_000
SEGMENTS = 24


def build(directory: Path) -> StorePaths:
    with store_in(directory, hot_retain_segments=4) as (driver, paths):
        driver.put("sensors:hall", cap_records=300)
        driver.put("sessions", ttl_ms=12 * DAY_MS)
        for _ in range(SEGMENTS):
            driver.clock.advance(DAY_MS)
            fill(driver, ["orders", "payments", "sensors:hall", "sessions"], segments=1)
        driver.tick()
        driver.delete_records("orders", match=["tag", "Eq", "tag-3"])
        driver.delete_records("payments", before_seq=201)
        driver.relocate()
        driver.snapshot()
        driver.append("orders", rows(2000, 200))
        driver.snapshot()
    return paths


def damages(paths: StorePaths) -> dict[str, Callable[[], None]]:
    """Each in a segment of its own, so that none hides another."""
    cold, hot = cold_segments(paths), hot_segments(paths)

    def swap(first: str, second: str) -> None:
        one, two = Path(first).read_bytes(), Path(second).read_bytes()
        Path(first).write_bytes(two)
        Path(second).write_bytes(one)

    def rewrite_history() -> None:
        size, digest = forge_segment(cold[15], lambda json: json.replace(b"record 6", b"forged 6"))
        recompute_everything(paths, 16, size, digest)

    def undelete() -> None:
        edit_snapshots(paths, lambda topic: replace(topic, deleted=None) if topic.name == "orders" else topic)

    return {
        "a flipped bit in the header of a file": lambda: flip_byte(cold[6], regions(cold[6])["file header"]),
        "a flipped bit in the columns of a block": lambda: flip_byte(
            cold[7], regions(cold[7])["block columns"]
        ),
        "a flipped bit in the records of a block": lambda: flip_byte(hot[1], regions(hot[1])["block JSON"]),
        "a flipped bit in the terms": lambda: flip_byte(cold[8], regions(cold[8])["terms"]),
        "a flipped bit in the index": lambda: flip_byte(cold[9], regions(cold[9])["index"]),
        "a truncated file": lambda: os.truncate(cold[10], 1000),
        "a missing file": lambda: os.unlink(cold[11]),
        "a file that is not ours": lambda: shutil.copyfile(
            "/etc/hostname", f"{paths.shard}/segments/notes.txt"
        ),
        "two segments that changed places": lambda: swap(cold[12], cold[13]),
        "a rewritten past, every checksum recomputed": rewrite_history,
        "deletes that were taken back": undelete,
        "an old manifest in force again": lambda: os.unlink(newest_manifest_path(paths)),
    }


def audit(paths: StorePaths) -> tuple[int, str, str]:
    """Exit code, what it printed, and where the report is."""
    command = ["cold", "audit", "--data-dir", paths.data, "--cold-dir", paths.cold, "--offline", "--quiet"]
    result = CliRunner().invoke(main, command)
    return result.exit_code, result.output, f"{os.path.realpath(paths.data)}/audit/latest/report.html"


def run(directory: Path) -> int:
    shutil.rmtree(directory, ignore_errors=True)
    whole = build(directory / "whole")
    copy = copy_store(whole, directory / "damaged")
    clean_code, clean_told, clean_page = audit(whole)
    first_code, _, _ = audit(copy)
    done = damages(copy)
    for damage in done.values():
        damage()
    code, told, page = audit(copy)
    out = sys.stdout.write
    out(f"A store of {SEGMENTS} segments, audited: {clean_told.strip()}\n")
    out(f"A copy with {len(done)} kinds of damage ({', '.join(done)}), audited: {told}")
    out(f"\nClean:   {clean_page}\nDamaged: {page}\n")
    return 0 if (clean_code, first_code, code) == (0, 0, 1) else 1


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1] if len(sys.argv) > 1 else "build/demo-audit")))
