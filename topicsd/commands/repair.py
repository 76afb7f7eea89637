"""`topicsd repair`: make damaged shards whole again, and say what that costs."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from dataclasses import asdict

import click

from shard_worker.disk.dir_lock import DirectoryLocked, DirLock
from shard_worker.disk.repair import Loss, RepairReport, repair_shard
from shard_worker.disk.shard_paths import shard_paths
from shard_worker.disk.survey import survey_shard
from shared.errors import DataDamage
from topicsd.commands.settings_options import some_settings
from topicsd.commands.verify import Verdict, relative
from topicsd.exits import Exit
from topicsd.inspection.progress import ProgressLine
from topicsd.inspection.questions import AskFailed
from topicsd.inspection.store import StoreView, now_ms, open_store_view
from topicsd.inspection.tables import bad, good, seqs_text
from topicsd.settings_in_force import refuse, settings_or_exit


@click.command()
@some_settings("data_dir", "cold_dir")
@click.option(
    "--shard", "only", type=int, multiple=True, metavar="N", help="Only this shard; may be repeated."
)
@click.option("--dry-run", is_flag=True, help="Say what would be done and lost, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON; needs --yes or --dry-run.")
@click.pass_context
def repair(
    context: click.Context,
    config_file: str | None,
    data_dir: str | None,
    cold_dir: str | None,
    only: tuple[int, ...],
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Repair damaged shards of a stopped server.

    Everything that can be read is kept. What cannot be read is lost: it is listed here by topic and seqs, and readers
    are told with a tombstone. The damaged files are moved to the shard's quarantine directory, none is deleted.

    Exit code 0: nothing is damaged (any more), 1: damage is left (or found by --dry-run), 2: could not run.
    """
    settings = settings_or_exit(config_file, {"data_dir": data_dir, "cold_dir": cold_dir})
    if as_json and not (yes or dry_run):
        refuse("--json does not ask: add --yes or --dry-run", Exit.BAD_SETTINGS)
    try:
        store = open_store_view(settings)
        with _locked(store):
            context.exit(_repair(store, only or tuple(store.shards), dry_run, yes, as_json))
    except AskFailed as err:
        refuse(str(err), Exit.BAD_SETTINGS)
    except DirectoryLocked as err:
        refuse(f"{err}: stop the server first (topicsd verify works beside it)", Exit.BAD_SETTINGS)
    except (DataDamage, OSError) as err:
        refuse(
            f"{err}: nothing was changed in this shard, and the repair can be run again", Exit.BAD_SETTINGS
        )


def _locked(store: StoreView) -> ExitStack:
    """The locks of the server and of its workers: one that outlives its supervisor for a moment counts, too."""
    with ExitStack() as locks:
        locks.enter_context(DirLock(store.settings.data_dir))
        for shard in sorted(store.present):
            locks.enter_context(DirLock(shard_paths(store.settings, shard).root))
        return locks.pop_all()


def _repair(store: StoreView, shards: tuple[int, ...], dry_run: bool, yes: bool, as_json: bool) -> Verdict:
    missing = [shard for shard in shards if shard not in store.present and store.present]
    if missing:
        raise AskFailed(
            f"shard {missing[0]} is missing, and nothing here can bring it back: restore it from a backup"
        )
    if dry_run or not yes:
        planned = _run_all(store, shards, as_json, dry=True)
        if all(report.clean for report in planned):
            return Verdict.CLEAN
        if dry_run:
            return Verdict.DAMAGED
        if not _somebody_is_there():
            raise AskFailed("nobody can be asked here: repeat it with --yes if these losses are acceptable")
        if not click.confirm("Repair, and accept these losses?"):
            return Verdict.DAMAGED
    _run_all(store, shards, as_json, dry=False)
    left = [shard for shard in shards if _is_damaged(store, shard)]
    if left:
        click.echo(f"topicsd: shard {left[0]} is still damaged: topicsd verify says how", err=True)
    return Verdict.DAMAGED if left else Verdict.CLEAN


def _somebody_is_there() -> bool:
    return sys.stdin.isatty()


def _is_damaged(store: StoreView, shard: int) -> bool:
    """Is anything wrong with the shard? Under our own lock, which would pass for a server's."""
    progress = ProgressLine()
    progress.begin(f"shard {shard}: verifying")
    found = survey_shard(store.fs, store.settings, shard, now_ms(), progress)
    progress.clear()
    return bool(found.damage)


def _run_all(store: StoreView, shards: tuple[int, ...], as_json: bool, *, dry: bool) -> list[RepairReport]:
    reports = []
    for shard in shards:
        progress = ProgressLine()
        progress.begin(f"shard {shard}: {'planning' if dry else 'repairing'}")
        reports.append(repair_shard(store.fs, store.settings, shard, now_ms(), progress, dry=dry))
        progress.clear()
        if not as_json:
            # At once: should the next shard fail, what this one lost has been said.
            _print(store, reports[-1], done=not dry)
    if as_json:
        click.echo(json.dumps({"done": not dry, "shards": [asdict(report) for report in reports]}))
    return reports


def _print(store: StoreView, report: RepairReport, *, done: bool) -> None:
    if report.clean:
        click.echo(f"shard {report.shard}: nothing to repair")
        return
    click.echo(
        f"shard {report.shard}: {good('repaired') if done else bad('damaged; a repair would do this')}"
    )
    for text in report.damage:
        click.echo(f"  found  {relative(store, text)}")
    for loss in report.losses:
        click.echo(f"  lost   {_loss_text(loss)}")
    if not report.losses:
        click.echo("  lost   nothing")
    for note in report.notes:
        click.echo(f"  note   {note}")
    for path in report.quarantined:
        click.echo(f"  kept   {relative(store, path)}")


def _loss_text(loss: Loss) -> str:
    seqs = f"topic {loss.topic}, seqs {seqs_text(loss.first, loss.last)}"
    if loss.records is None:
        return f"{seqs}: may have been given out, and are skipped"
    return f"{seqs} ({loss.records} {'record' if loss.records == 1 else 'records'})"
