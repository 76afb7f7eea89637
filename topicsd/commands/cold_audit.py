"""`topicsd cold audit`: is everything that was sealed still there, whole and unchanged?"""

from __future__ import annotations

import click

from ops.coldstore.audit import Audit, AuditOptions
from ops.coldstore.engines import Engine, LocalEngine, SparkEngine
from ops.coldstore.progress import Progress
from ops.coldstore.report_files import AnotherRuns, ReportDir
from ops.coldstore.report_html import render_html
from ops.coldstore.spark_session import CannotRun, open_session
from ops.coldstore.store_view import NotAStore
from shared.audit_findings import Finding
from shared.audit_report import Report
from shared.cold_plan import BIN_BYTES
from shared.io.durable_fs import RealFileSystem
from shared.version import VERSION

CLEAN, FINDINGS, COULD_NOT_RUN = 0, 1, 2
_SHOWN = 20


@click.command()
@click.option(
    "--data-dir", envvar="TOPICS_DATA_DIR", required=True, metavar="DIR", help="The data directory."
)
@click.option(
    "--cold-dir", envvar="TOPICS_COLD_DIR", metavar="DIR", help="The cold directory, if there is one."
)
@click.option(
    "--engine",
    type=click.Choice(["local", "spark"]),
    default="local",
    show_default=True,
    help="One process, or Spark tasks. The findings are the same.",
)
@click.option("--master", default="local[*]", show_default=True, metavar="URL", help="Where Spark runs.")
@click.option(
    "--task-bytes",
    type=click.IntRange(min=1),
    default=BIN_BYTES,
    show_default=True,
    help="Bytes that a Spark task reads. Small tasks are slow.",
)
@click.option("--report-dir", metavar="DIR", help="Where reports are kept. [default: DATA_DIR/audit]")
@click.option(
    "--metrics-file", metavar="FILE", help="Prometheus text. [default: REPORT_DIR/topicsd_audit.prom]"
)
@click.option("--keep", type=click.IntRange(min=1), default=60, show_default=True, help="Reports to keep.")
@click.option("--offline", is_flag=True, help="No server runs: do not look twice at files that seem to move.")
@click.option(
    "--new-history", is_flag=True, help="Begin a new chain of reports, as after a restore from a backup."
)
@click.option("--quiet", is_flag=True, help="No progress, findings only.")
@click.pass_context
def audit(
    context: click.Context,
    /,
    data_dir: str,
    cold_dir: str | None,
    engine: str,
    master: str,
    task_bytes: int,
    report_dir: str | None,
    metrics_file: str | None,
    keep: int,
    offline: bool,
    new_history: bool,
    quiet: bool,
) -> None:
    """Check every sealed block, file, manifest and topic, and that nothing an earlier audit saw has changed.

    Reads only, and may run beside the server. Exit code 0: clean; 1: findings; 2: the audit could not run.
    """
    reports = ReportDir(report_dir or f"{data_dir.rstrip('/')}/audit")
    options = AuditOptions(
        data_dir.rstrip("/"),
        cold_dir.rstrip("/") if cold_dir else None,
        online=not offline,
        bin_bytes=task_bytes,
        version=VERSION,
    )
    progress = Progress(quiet=quiet)
    try:
        with reports.locked():
            if new_history:
                reports.start_anew()
            report, directory = _run(options, reports, engine, master, progress, metrics_file)
            reports.keep(keep)
    except (CannotRun, NotAStore, AnotherRuns, OSError) as err:
        click.echo(f"topicsd: the audit could not run: {err}", err=True)
        context.exit(COULD_NOT_RUN)
    _tell(report, directory)
    context.exit(CLEAN if report.verdict == "clean" else FINDINGS)


def _run(
    options: AuditOptions,
    reports: ReportDir,
    engine_name: str,
    master: str,
    progress: Progress,
    metrics_file: str | None,
) -> tuple[Report, str]:
    session = None
    engine: Engine = LocalEngine()
    if engine_name == "spark":
        progress.say(f"starting Spark on {master}")
        session = open_session(master, app_name="topicsd audit")
        engine = SparkEngine(session)
    try:
        before, chain = reports.last()
        report = Audit(RealFileSystem(), options, engine, progress).run(before, chain)
    finally:
        if session is not None:
            session.stop()
    directory, digest = reports.save(report, render_html(report), metrics_file)
    progress.say(f"report {directory}/report.html, SHA-256 of report.json {digest}")
    return report, directory


def _tell(report: Report, directory: str) -> None:
    totals = report.totals
    click.echo(
        f"{report.verdict}: {totals.files} files, {totals.blocks} blocks, {totals.records} records, "
        f"{totals.topics} topics; {totals.errors} errors, {totals.notices} notices"
    )
    errors = [found for found in report.findings if found["severity"] == "error"]
    for found in errors[:_SHOWN]:
        click.echo(f"  {Finding.from_dict(found).line()}")
    if len(errors) > _SHOWN:
        click.echo(f"  … and {len(errors) - _SHOWN} more in {directory}/report.json")
