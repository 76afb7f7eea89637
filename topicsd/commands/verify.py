"""`topicsd verify`: read every file of the store and say what is wrong."""

from __future__ import annotations

import json
import os
from enum import IntEnum

import click

from topicsd.commands.settings_options import some_settings
from topicsd.exits import Exit
from topicsd.inspection.check import ShardCheck, check_shard
from topicsd.inspection.progress import ProgressLine
from topicsd.inspection.questions import AskFailed
from topicsd.inspection.store import StoreView, open_store_view
from topicsd.inspection.tables import bad, good, size_text
from topicsd.settings_in_force import refuse, settings_or_exit


class Verdict(IntEnum):
    CLEAN = 0
    DAMAGED = 1
    COULD_NOT_RUN = 2


@click.command()
@some_settings("data_dir", "cold_dir")
@click.option(
    "--shard", "only", type=int, multiple=True, metavar="N", help="Only this shard; may be repeated."
)
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
@click.pass_context
def verify(
    context: click.Context,
    config_file: str | None,
    data_dir: str | None,
    cold_dir: str | None,
    only: tuple[int, ...],
    as_json: bool,
) -> None:
    """Read every file of every shard and report damage; changes nothing, also beside a running server.

    Exit code 0: clean, 1: damage was found, 2: something could not be checked.
    """
    settings = settings_or_exit(config_file, {"data_dir": data_dir, "cold_dir": cold_dir})
    try:
        store = open_store_view(settings)
    except AskFailed as err:
        refuse(str(err), Exit.BAD_SETTINGS)
    progress = ProgressLine()
    checks = []
    for shard in only or store.shards:
        progress.begin(f"shard {shard}")
        checks.append(check_shard(store, shard, progress))
        progress.clear()
        if not as_json:
            print_check(store, checks[-1])
    verdict = verdict_of(checks)
    if as_json:
        shards = [check.to_json() for check in checks]
        click.echo(
            json.dumps({"data_dir": settings.data_dir, "clean": verdict is Verdict.CLEAN, "shards": shards})
        )
    else:
        _print_end(store, checks, verdict)
    context.exit(verdict)


def verdict_of(checks: list[ShardCheck]) -> Verdict:
    if any(check.damage for check in checks):
        return Verdict.DAMAGED
    return Verdict.COULD_NOT_RUN if any(check.error for check in checks) else Verdict.CLEAN


def print_check(store: StoreView, check: ShardCheck) -> None:
    if check.error is not None:
        click.echo(f"shard {check.shard}: {bad('not checked')}: {relative(store, check.error)}")
        return
    state = bad("damaged") if check.damage else good("clean")
    how = "running" if check.source == "live" else "stopped"
    click.echo(f"shard {check.shard}: {state} ({how}; {check.files} files, {size_text(check.bytes)})")
    for damage in check.damage:
        click.echo(f"  {relative(store, str(damage))}")
    for note in check.notes:
        click.echo(f"  note: {relative(store, note)}")


def relative(store: StoreView, text: str) -> str:
    """Paths as seen from the data directory: what is left of them differs from shard to shard."""
    return text.replace(store.settings.data_dir.rstrip(os.sep) + os.sep, "")


def _print_end(store: StoreView, checks: list[ShardCheck], verdict: Verdict) -> None:
    if verdict is Verdict.DAMAGED:
        damaged = sum(bool(check.damage) for check in checks)
        server = store.server
        first = "Stop the server, then see" if server is not None else "See"
        click.echo(
            f"{damaged} of {len(checks)} shards damaged. {first} what a repair would cost: topicsd repair --dry-run"
        )
