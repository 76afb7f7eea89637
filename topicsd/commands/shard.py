"""`topicsd shard …`: looking inside one shard, running or stopped. Nothing here changes anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import wraps
from typing import Any, NoReturn, TypeVar

import click

from shard_worker.disk.dir_lock import LOCK_NAME
from shard_worker.disk.shard_paths import shard_paths
from shared.errors import DataDamage
from topicsd.commands.settings_options import some_settings
from topicsd.inspection.dump import record_line
from topicsd.inspection.locks import lock_state
from topicsd.inspection.pictures import (
    locks_picture,
    log_picture,
    place_picture,
    runs_picture,
    segments_picture,
    shards_picture,
    show_picture,
    topic_picture,
    topics_picture,
)
from topicsd.inspection.questions import Asked, AskFailed, pages
from topicsd.inspection.store import StoreView, open_store_view
from topicsd.settings_in_force import settings_or_exit

F = TypeVar("F", bound=Callable[..., Any])
Document = dict[str, Any]

NOT_FOUND, COULD_NOT_RUN = 1, 2


@click.group()
def shard() -> None:
    """Look inside a shard: its topics, log, segments and locks.

    A running shard is asked through its socket; of a stopped one the files are read, and never changed.
    """


def _command(name: str) -> Callable[[F], Any]:
    """A subcommand with the options that all have; it gets the store, and `as_json` and `offline` if it wants them."""

    def decorate(function: F) -> Any:
        @wraps(function)
        def run(config_file: str | None, data_dir: str | None, cold_dir: str | None, **rest: Any) -> None:
            settings = settings_or_exit(config_file, {"data_dir": data_dir, "cold_dir": cold_dir})
            try:
                function(open_store_view(settings), **rest)
            except AskFailed as err:
                _fail(str(err), NOT_FOUND if err.code == "topic_not_found" else COULD_NOT_RUN)
            except (DataDamage, OSError) as err:
                _fail(str(err), COULD_NOT_RUN)

        offline = click.option(
            "--offline", is_flag=True, help="Read the files, also while a process holds the shard."
        )
        as_json = click.option("--json", "as_json", is_flag=True, help="The answer as JSON.")
        return shard.command(name)(some_settings("data_dir", "cold_dir")(as_json(offline(run))))

    return decorate


_limit = click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, help="Rows at the most."
)


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"topicsd: {message}", err=True)
    raise click.exceptions.Exit(code)


def _print(as_json: bool, document: object, picture: Callable[[], Sequence[str]]) -> None:
    if as_json:
        click.echo(json.dumps(document, ensure_ascii=False))
    else:
        for line in picture():
            click.echo(line)


def _one(store: StoreView, number: int, offline: bool, question: str, options: Document) -> Document:
    with store.open(number, offline=offline) as opened:
        return {**opened.ask(question, options), "source": opened.kind}


@_command("ls")
def ls(store: StoreView, as_json: bool, offline: bool) -> None:
    """All shards of the store, with their state."""
    rows: list[Document] = []
    for number in store.shards:
        try:
            with store.open(number, offline=offline) as opened:
                state = "running" if opened.kind == "live" else "stopped"
                rows.append({"shard": number, "state": state, **opened.ask("show", {})})
        except (AskFailed, DataDamage, OSError) as err:
            rows.append({"shard": number, "state": "unknown", "error": str(err)})
    _print(as_json, {"shards": rows}, lambda: shards_picture(rows))


@_command("show")
@click.argument("number", metavar="N", type=int)
def show(store: StoreView, number: int, as_json: bool, offline: bool) -> None:
    """One shard: how far its log is written and synced, what it keeps, what recovery found or would do."""
    found = _one(store, number, offline, "show", {})
    _print(as_json, found, lambda: show_picture(found))


@_command("topics")
@click.argument("number", metavar="N", type=int)
@click.option("--prefix", default="", help="Only topics whose name begins with this.")
@click.option("--after", default="", help="Only topics behind this name.")
@_limit
def topics(
    store: StoreView, number: int, prefix: str, after: str, limit: int, as_json: bool, offline: bool
) -> None:
    """The topics of a shard, in name order."""
    with store.open(number, offline=offline) as opened:
        rows = list(pages(opened, "topics", "topics", {"prefix": prefix, "after": after, "limit": limit}))
    _print(as_json, {"topics": rows}, lambda: topics_picture(rows))


@contextmanager
def _owner(store: StoreView, words: Sequence[str], offline: bool) -> Iterator[tuple[Asked, str]]:
    """The shard that has the topic: `[N] TOPIC`, and without N wherever it is."""
    name = words[-1]
    places = [int(words[0])] if len(words) == 2 and words[0].isdigit() else store.likely_shards(name)
    if len(words) > 2 or (len(words) == 2 and not words[0].isdigit()):
        raise AskFailed("name a topic, or the number of a shard and a topic")
    for number in places:
        with store.open(number, offline=offline) as opened:
            try:
                opened.ask("topic", {"topic": name, "limit": 1})
            except AskFailed as err:
                if err.code != "topic_not_found":
                    raise
                continue
            yield opened, name
            return
    where = f"shard {places[0]}" if len(places) == 1 else f"any of the {len(places)} shards"
    raise AskFailed(f"topic {name} is not in {where}", code="topic_not_found")


_words = click.argument("words", metavar="[N] TOPIC", nargs=-1, required=True)


@_command("topic")
@_words
@click.option("--after", type=click.IntRange(0), default=0, help="Only segments behind this number.")
@_limit
def topic(
    store: StoreView, words: tuple[str, ...], after: int, limit: int, as_json: bool, offline: bool
) -> None:
    """All about one topic, wherever it is: seqs, floors, losses, segments, leases, how far it is synced."""
    with _owner(store, words, offline) as (opened, name):
        found = {
            **opened.ask("topic", {"topic": name, "after": after, "limit": limit}),
            "source": opened.kind,
        }
    _print(as_json, found, lambda: topic_picture(found))


@_command("tail")
@_words
@click.option("--limit", type=click.IntRange(1), default=10, show_default=True, help="Records at the most.")
def tail(store: StoreView, words: tuple[str, ...], limit: int, as_json: bool, offline: bool) -> None:
    """The newest records of a topic, one JSON document per line."""
    with _owner(store, words, offline) as (opened, name):
        for row in pages(opened, "records", "records", {"topic": name, "limit": limit, "last": True}):
            click.echo(record_line(row))


@_command("dump")
@click.argument("words", metavar="[N] [TOPIC]", nargs=-1, required=True)
@click.option("--after", type=click.IntRange(0), default=0, help="Only records behind this seq.")
@click.option(
    "--limit", type=click.IntRange(1), default=None, help="Records per topic at the most.  [default: all]"
)
def dump(
    store: StoreView,
    words: tuple[str, ...],
    after: int,
    limit: int | None,
    as_json: bool,
    offline: bool,
) -> None:
    """All live records of a topic, or of every topic of shard N, one JSON document per line with its topic."""
    options: Document = {"after": after} if limit is None else {"after": after, "limit": limit}
    if len(words) == 1 and words[0].isdigit() and int(words[0]) in store.shards:
        with store.open(int(words[0]), offline=offline) as opened:
            for row in pages(opened, "topics", "topics", {}):
                _dump_topic(opened, row["topic"], options)
        return
    with _owner(store, words, offline) as (opened, name):
        _dump_topic(opened, name, options)


def _dump_topic(opened: Asked, name: str, options: Document) -> None:
    for row in pages(opened, "records", "records", {"topic": name, **options}):
        click.echo(record_line(row, topic=name))


@_command("wal")
@click.argument("number", metavar="N", type=int)
@click.option(
    "--from", "start", metavar="LSN", default="", help="From this position, as in 3:64.  [default: the start]"
)
@_limit
def wal(store: StoreView, number: int, start: str, limit: int, as_json: bool, offline: bool) -> None:
    """The frames of a shard's log: position, kind, topic, seqs, size."""
    with store.open(number, offline=offline) as opened:
        rows = list(pages(opened, "log", "frames", {"from": start, "limit": limit}, after="from"))
    _print(as_json, {"frames": rows}, lambda: log_picture(rows))


@_command("segments")
@click.argument("number", metavar="N", type=int)
@click.option("--topic", default=None, help="Those that hold records of this topic.")
@click.option(
    "--seq", type=click.IntRange(1), default=None, help="With --topic: where the record of this seq is."
)
@click.option("--after", type=click.IntRange(0), default=0, help="Only segments behind this number.")
@_limit
def segments(
    store: StoreView,
    number: int,
    topic: str | None,
    seq: int | None,
    after: int,
    limit: int,
    as_json: bool,
    offline: bool,
) -> None:
    """The segments of a shard, or those of one topic, or the one that holds a seq."""
    options: Document = {"after": after, "limit": limit}
    with store.open(number, offline=offline) as opened:
        if seq is not None and topic is None:
            raise AskFailed("--seq needs --topic: every topic has seqs of its own")
        if topic is None:
            rows = list(pages(opened, "segments", "segments", options))
            _print(as_json, {"segments": rows}, lambda: segments_picture(rows))
        elif seq is None:
            runs: Any = opened.ask("topic", {"topic": topic, **options})["runs"]
            _print(as_json, {"runs": runs}, lambda: runs_picture(topic, runs))
        else:
            place = opened.ask("where", {"topic": topic, "seq": seq})
            _print(as_json, place, lambda: place_picture(place))


@_command("locks")
@click.argument("number", metavar="[N]", type=int, required=False)
def locks(store: StoreView, number: int | None, as_json: bool, offline: bool) -> None:
    """Who holds the store and its shards; takes no lock itself."""
    numbers = store.shards if number is None else [number]
    roots = [store.settings.data_dir, *(shard_paths(store.settings, each).root for each in numbers)]
    found = [lock_state(f"{root}/{LOCK_NAME}") for root in roots]
    _print(as_json, {"locks": [asdict(lock) for lock in found]}, lambda: locks_picture(found))
