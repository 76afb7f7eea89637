"""`topicsd cold export`: sealed records as Parquet files for DuckDB, Spark SQL and everything else that reads them."""

from __future__ import annotations

import click

from ops.coldstore.places import NoStore
from ops.coldstore.spark_session import CannotRun, open_session
from shared.errors import BadSetting, DataDamage
from topicsd.cold_work import now_ms
from topicsd.commands.cold_compact import COULD_NOT_RUN, DONE, data_dir_option, engine_option, master_option

_NO_ARROW = "Parquet needs the package pyarrow: pip install 'topicsd[spark]'"


@click.command()
@data_dir_option
@click.option(
    "--cold-dir",
    envvar="TOPICS_COLD_DIR",
    metavar="DIR",
    help="The cold tier: a directory, or s3://bucket/prefix.",
)
@click.option(
    "--out", required=True, metavar="DIR", help="Where the files go: a directory, or s3://bucket/prefix."
)
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Only this topic; may be repeated.")
@engine_option
@master_option
@click.pass_context
def export(
    context: click.Context,
    /,
    data_dir: str,
    cold_dir: str | None,
    out: str,
    topics: tuple[str, ...],
    engine: str,
    master: str,
) -> None:
    """Write sealed records that are not exported yet as Parquet, by topic and day.

    Run it as often as you like: each record is written once.
    """
    try:
        context.exit(_export(data_dir, cold_dir, out, topics, engine, master))
    except (NoStore, CannotRun, DataDamage, OSError) as err:
        click.echo(f"topicsd: {err}", err=True)
    except BadSetting as err:
        click.echo(f"topicsd: {err.message}", err=True)
    context.exit(COULD_NOT_RUN)


def _export(
    data_dir: str, cold_dir: str | None, out: str, topics: tuple[str, ...], engine: str, master: str
) -> int:
    try:
        from ops.coldstore.export import LocalExport, run_export
    except ImportError as err:
        raise CannotRun(_NO_ARROW) from err
    if engine == "local":
        commit, rows = run_export(data_dir, cold_dir, out, LocalExport(), now_ms=now_ms(), topics=topics)
    else:
        from ops.coldstore.export_spark import SparkExport

        session = open_session(master)
        try:
            commit, rows = run_export(
                data_dir, cold_dir, out, SparkExport(session), now_ms=now_ms(), topics=topics
            )
        finally:
            session.stop()
    if not rows:
        click.echo("nothing new to export")
        return DONE
    assert commit is not None
    click.echo(f"{rows:,} records in {len(commit.files)} files, commit {commit.commit}: {out}")
    return DONE
