"""`topicsd cold compact` and `topicsd cold adopt`: rewrite cold segments without what is dead in them."""

from __future__ import annotations

import click

from ops.coldstore.compact_local import compact_local
from ops.coldstore.spark_session import CannotRun, open_session
from ops.coldstore.staging import ShardPlace, load_basis
from shared.compaction import NumbersUsedUp, PlanOptions
from shared.errors import BadSetting, DataDamage
from shared.io.bucket_fs import file_system
from shared.io.durable_fs import FileSystem
from shared.staged import STAGED_ENDING, Staged
from topicsd.cold_work import (
    Outcome,
    RunningServer,
    StoppedServer,
    WorkFailed,
    discard_leftovers,
    new_job_name,
    now_ms,
    outcome_of,
    places,
    server_stopped,
)

DONE, REFUSED, COULD_NOT_RUN = 0, 1, 2

data_dir_option = click.option(
    "--data-dir", envvar="TOPICS_DATA_DIR", required=True, metavar="DIR", help="The data directory."
)
cold_dir_option = click.option(
    "--cold-dir",
    envvar="TOPICS_COLD_DIR",
    required=True,
    metavar="DIR",
    help="The cold tier: a directory, or s3://bucket/prefix.",
)
engine_option = click.option(
    "--engine",
    type=click.Choice(["local", "spark"]),
    default="local",
    show_default=True,
    help="One process, or Spark tasks. The result is the same.",
)
master_option = click.option(
    "--master", default="local[*]", show_default=True, metavar="URL", help="Where Spark runs."
)
_wait_option = click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for a running server's part.",
)

_archive_option = click.option(
    "--wal-archive",
    envvar="TOPICS_WAL_ARCHIVE",
    metavar="PLACE",
    help="The server's archive, if it has one: nothing goes that is not in it yet.",
)


@click.command()
@data_dir_option
@cold_dir_option
@engine_option
@master_option
@click.option(
    "--min-dead",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help="Leave segments alone in which a smaller share of the records is dead.",
)
@click.option(
    "--target-bytes",
    type=click.IntRange(min=1 << 20),
    default=PlanOptions().target_bytes,
    show_default=True,
    help="Small segments are merged up to this size.",
)
@click.option("--no-merge", is_flag=True, help="Rewrite segments one by one.")
@_archive_option
@_wait_option
@click.pass_context
def compact(
    context: click.Context,
    /,
    data_dir: str,
    cold_dir: str,
    engine: str,
    master: str,
    min_dead: float,
    target_bytes: int,
    no_merge: bool,
    wal_archive: str | None,
    wait_s: float,
) -> None:
    """Physically remove what is deleted, expired or superseded from the cold tier.

    Works while the server runs (it verifies and adopts the result itself) and while it is stopped.
    """
    options = PlanOptions(target_bytes=target_bytes, min_dead=min_dead, merge=not no_merge)
    context.exit(
        _reporting(lambda: _compact(data_dir, cold_dir, engine, master, options, wal_archive, wait_s))
    )


@click.command()
@data_dir_option
@cold_dir_option
@_archive_option
@_wait_option
@click.option(
    "--discard",
    is_flag=True,
    help="Then remove what refused and unfinished jobs have left. Not while a compaction runs.",
)
@click.pass_context
def adopt(
    context: click.Context,
    /,
    data_dir: str,
    cold_dir: str,
    wal_archive: str | None,
    wait_s: float,
    discard: bool,
) -> None:
    """Adopt compactions that were staged and not taken over yet; say what became of each."""
    context.exit(_reporting(lambda: _adopt(data_dir, cold_dir, wal_archive, wait_s, discard)))


def _reporting(work: object) -> int:
    assert callable(work)
    try:
        return int(work())
    except (WorkFailed, CannotRun, NumbersUsedUp) as err:
        click.echo(f"topicsd: {err}", err=True)
    except BadSetting as err:
        click.echo(f"topicsd: {err.message}", err=True)
    except DataDamage as err:
        click.echo(
            f"topicsd: {err}\nNothing was changed. A damaged segment is never compacted: restore it, or see "
            "`topicsd cold audit`",
            err=True,
        )
        return REFUSED
    except OSError as err:
        click.echo(f"topicsd: {err}", err=True)
    return COULD_NOT_RUN


def _compact(
    data_dir: str,
    cold_dir: str,
    engine: str,
    master: str,
    options: PlanOptions,
    wal_archive: str | None,
    wait_s: float,
) -> int:
    fs = file_system(cold_dir)
    cold_dir = cold_dir.rstrip("/")
    refused = 0
    session = open_session(master) if engine == "spark" else None
    try:
        with server_stopped(data_dir) as stopped:
            worker = (
                StoppedServer(fs, data_dir, cold_dir, wal_archive) if stopped else RunningServer(fs, wait_s)
            )
            for place in places(fs, data_dir, cold_dir):
                staged: list[Staged] = []
                name = new_job_name(engine)

                def job(place: ShardPlace, name: str = name, staged: list[Staged] = staged) -> None:
                    found = _stage(fs, place, name, session, options)
                    if found is not None:
                        staged.append(found)

                worker.run(place, job)
                if not staged:
                    click.echo(f"shard {place.shard}: nothing to compact")
                    continue
                outcome = outcome_of(fs, place, name)
                _tell(place, staged[0], outcome)
                refused += not outcome.adopted
    finally:
        if session is not None:
            session.stop()
    return REFUSED if refused else DONE


def _stage(
    fs: FileSystem, place: ShardPlace, name: str, session: object, options: PlanOptions
) -> Staged | None:
    basis = load_basis(fs, place)
    if basis is None:
        return None
    if session is not None:
        from ops.coldstore.compact_spark import compact_spark

        return compact_spark(session, place, basis, job=name, now_ms=now_ms(), options=options)
    return compact_local(fs, place, basis, job=name, now_ms=now_ms(), options=options)


def _tell(place: ShardPlace, staged: Staged, outcome: Outcome) -> None:
    removed = sum(last - first + 1 for each in staged.removed for first, last in each.seqs)
    before, after = sum(old.size for old in staged.old), sum(new.size for new in staged.new)
    click.echo(
        f"shard {place.shard}: {len(staged.old)} segments became {len(staged.new)}, {before:,} bytes became "
        f"{after:,}, {removed:,} records removed; {outcome.text}"
    )


def _adopt(data_dir: str, cold_dir: str, wal_archive: str | None, wait_s: float, discard: bool) -> int:
    fs = file_system(cold_dir)
    cold_dir = cold_dir.rstrip("/")
    refused = 0
    with server_stopped(data_dir) as stopped:
        worker = StoppedServer(fs, data_dir, cold_dir, wal_archive) if stopped else RunningServer(fs, wait_s)
        for place in places(fs, data_dir, cold_dir):
            names = fs.list_dir(place.staging)
            jobs = [each.removesuffix(STAGED_ENDING) for each in names if each.endswith(STAGED_ENDING)]
            if jobs:
                worker.adopt(place)
            else:
                click.echo(f"shard {place.shard}: nothing is staged")
            for name in jobs:
                outcome = outcome_of(fs, place, name)
                click.echo(f"shard {place.shard}: {name}: {outcome.text}")
                refused += not outcome.adopted
            if discard:
                click.echo(f"shard {place.shard}: {discard_leftovers(fs, place)} files removed")
    return REFUSED if refused and not discard else DONE
