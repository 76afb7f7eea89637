"""`topicsd compile`: the hot modules as machine code. Optional: without it everything works, only slower."""

from __future__ import annotations

import os
import time

import click

from ops.compiled.build import CannotCompile, build, target_directory, up_to_date
from ops.compiled.image import image_is_current, write_image


@click.command(name="compile")
@click.option(
    "--if-possible", is_flag=True, help="Exit 0 where there is no compiler, and say what is missing."
)
@click.option("--jobs", default=os.cpu_count() or 1, show_default="number of cores", help="Compile at once.")
def compile_(if_possible: bool, jobs: int) -> None:
    """Compile the hot modules for this machine (a minute or two; needs a C compiler).

    Servers that start afterwards use them. After an upgrade they are ignored until they are compiled again.
    """
    if up_to_date():
        if not image_is_current(target_directory()):
            write_image(target_directory())  # of all modules of a start, of which most are not compiled
        click.echo("compiled modules are up to date")
        return
    click.echo("compiling the hot modules (a minute or two, only when they have changed)", err=True)
    started = time.monotonic()
    try:
        target = build(jobs)
    except CannotCompile as err:
        click.echo(f"not compiled, the server runs slower: {err}", err=True)
        raise SystemExit(0 if if_possible else 1) from None
    click.echo(f"compiled in {time.monotonic() - started:.0f} s: {target}", err=True)
