"""`topicsd restore`: a new data directory from a backup, at its end, at a time or at a seq."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from shared.io.durable_fs import RealFileSystem
from shared.io.object_store import open_store
from shared.limits import RESTORE_SEQ_GAP
from shared.settings import Settings
from topicsd.backup.cut import Target, TopicSeq, iso_time
from topicsd.backup.refusal import BackupRefused
from topicsd.backup.restore import Restorer, parse_topic_seqs
from topicsd.commands.backup import refusals


@click.command()
@click.argument("src")
@click.option("--data-dir", required=True, metavar="DIR", help="Where to; must be absent or empty.")
@click.option(
    "--backup", "backup_id", metavar="ID", help="Begin with this one (default: the newest that will do)."
)
@click.option(
    "--to-time", metavar="TIME", help="Up to this moment: ISO 8601 (UTC unless it says otherwise), or ms."
)
@click.option(
    "--to-seq", "to_seqs", multiple=True, metavar="TOPIC:SEQ", help="Not beyond this record; repeatable."
)
@click.option(
    "--reuse-seqs",
    is_flag=True,
    help=f"Go on right behind the last seq instead of leaving {RESTORE_SEQ_GAP} out: for a copy that no reader of "
    "the original will ever see.",
)
def restore(
    src: str,
    data_dir: str,
    backup_id: str | None,
    to_time: str | None,
    to_seqs: tuple[str, ...],
    reuse_seqs: bool,
) -> None:
    """Put the backups of SRC (a directory or s3://bucket/prefix) together to a data directory."""
    fs = RealFileSystem()
    with refusals():
        seqs = tuple(TopicSeq(topic, seq) for topic, seq in parse_topic_seqs(to_seqs))
        target = Target(None if to_time is None else parse_time(to_time), seqs)
        place = open_store(fs, src, setting="SRC")
        restorer = Restorer(fs, place, data_dir, Settings(), progress=lambda text: click.echo(text, err=True))
        restored = restorer.restore(target, backup_id=backup_id, reuse_seqs=reuse_seqs)
    for note in restored.notes:
        click.echo(f"note: {note}", err=True)
    until = iso_time(restored.last_ms or restored.backup.created_ms)
    click.echo(
        f"restored {restored.topics} topics with {restored.records} records, as of {until}, to {data_dir}"
    )
    click.echo(f"start it with: topicsd serve --data-dir {data_dir}")


def parse_time(text: str) -> int:
    if text.isdigit():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BackupRefused(
            f"--to-time {text}: say it as 2026-11-16T06:15:00Z, or in milliseconds since 1970"
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return int(found.timestamp() * 1000)
