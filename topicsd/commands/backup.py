"""`topicsd backup create|list|verify|prune`: thin; the substance is in topicsd/backup."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from shared.errors import BadSetting, DataDamage, DiskFault
from shared.io.bucket_fs import file_system
from shared.io.durable_fs import RealFileSystem
from shared.io.object_store import ObjectStore, open_store
from shared.version import VERSION
from topicsd.backup.check import check_backups
from topicsd.backup.create import BackupMaker
from topicsd.backup.cut import iso_time
from topicsd.backup.place import list_backups
from topicsd.backup.prune import prune as prune_place
from topicsd.backup.refusal import BackupRefused
from topicsd.backup.store_access import opened_store, source_of
from topicsd.commands.settings_options import some_settings
from topicsd.exits import Exit, StartRefused
from topicsd.settings_in_force import refuse, settings_or_exit

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@click.group()
def backup() -> None:
    """Make, list, check and prune backups. DEST is a directory or s3://bucket/prefix."""


@backup.command()
@click.argument("dest")
@some_settings("data_dir", "cold_dir")
@click.option("--quiet", is_flag=True, help="Print the id of the new backup and nothing else.")
def create(
    dest: str, config_file: str | None, data_dir: str | None, cold_dir: str | None, quiet: bool
) -> None:
    """Back up to DEST what DEST does not have yet; the server goes on serving."""
    settings = settings_or_exit(config_file, {"data_dir": data_dir, "cold_dir": cold_dir})
    with refusals():
        fs, place = file_system(settings.cold_dir), _open(dest)
        with opened_store(fs, settings) as opened:
            maker = BackupMaker(
                place, source_of(fs, settings), opened.store_id, VERSION, _quiet if quiet else _say
            )
            made = maker.make(opened.plans, opened.moment_ms)
    tally = maker.tally
    if quiet:
        click.echo(made.id)
        return
    click.echo(f"backup {made.id}: {files_text(len(made.files), made.size)}")
    copied = files_text(tally.copied_files, tally.copied_bytes)
    click.echo(f"  copied {copied}; there already: {files_text(tally.reused_files, tally.reused_bytes)}")


@backup.command("list")
@click.argument("dest")
def list_(dest: str) -> None:
    """The backups in DEST, oldest first."""
    with refusals():
        listing = list_backups(_open(dest))
    for each in listing.backups:
        shards = f"{len(each.shards)} shard" + ("s" if len(each.shards) != 1 else "")
        click.echo(
            f"{each.id}  {iso_time(each.created_ms)}  {shards}  {size_text(each.size)}  store {each.store}"
        )
    for damage in listing.damaged:
        click.echo(f"topicsd: {damage}", err=True)
    if listing.damaged:
        raise click.exceptions.Exit(Exit.UNUSABLE_STORE)
    if not listing.backups:
        click.echo(f"topicsd: there is no backup in {dest}", err=True)


@backup.command()
@click.argument("dest")
@click.argument("id", required=False)
def verify(dest: str, id: str | None) -> None:
    """Read every file of the backup ID, or of all of them, and compare it with its digest."""
    with refusals():
        place = _open(dest)
        listing = list_backups(place)
        chosen = [listing.find(id, place.url)] if id is not None else listing.backups
        if id is None and listing.damaged:
            for damage in listing.damaged:
                click.echo(f"topicsd: {damage}", err=True)
        if not chosen and not listing.damaged:
            raise BackupRefused(f"there is no backup in {dest}")
        result = check_backups(place, chosen, lambda line: click.echo(f"topicsd: {line}", err=True))
    good = files_text(result.files - len(result.damage), result.bytes)
    click.echo(f"{_backups(len(chosen))}: {good}, as they were written")
    count = len(result.damage) + (len(listing.damaged) if id is None else 0)
    if count:
        message = (
            f"{count} damaged, named above: make a new backup, and look after the disk that this one is on"
        )
        refuse(message, Exit.UNUSABLE_STORE)


@backup.command()
@click.argument("dest")
@click.option("--keep", type=click.IntRange(min=1), required=True, metavar="N", help="How many backups stay.")
def prune(dest: str, keep: int) -> None:
    """Remove all but the newest N backups, and what only they needed. Not while a backup is being made."""
    with refusals():
        pruned = prune_place(_open(dest), keep)
    click.echo(f"removed {_backups(len(pruned.backups))}: {files_text(pruned.files, pruned.bytes)}")


def _backups(count: int) -> str:
    return f"{count} {'backup' if count == 1 else 'backups'}"


def _open(place: str) -> ObjectStore:
    return open_store(RealFileSystem(), place, setting="DEST")


@contextmanager
def refusals() -> Iterator[None]:
    """What went wrong, as one line and an exit code."""
    try:
        yield
    except (BackupRefused, StartRefused) as err:
        refuse(str(err), err.exit_code)
    except BadSetting as err:
        refuse(err.message, Exit.BAD_SETTINGS)
    except (DataDamage, DiskFault) as err:
        refuse(str(err), Exit.UNUSABLE_STORE)
    except OSError as err:
        refuse(str(err), Exit.UNCLEAN_STOP)


def size_text(size: int) -> str:
    value, unit = float(size), _UNITS[0]
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


def files_text(count: int, size: int) -> str:
    return f"{count} {'file' if count == 1 else 'files'}, {size_text(size)}"


def _say(text: str) -> None:
    click.echo(text, err=True)


def _quiet(text: str) -> None:
    pass
