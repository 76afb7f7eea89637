"""`topics rm`: delete topics, or records of one."""

from __future__ import annotations

import sys

import click

from shared.api_types import DeleteResult, TopicDeleted
from topicsd.client.api import topic_path
from topicsd.client.errors import Exit, Usage
from topicsd.client.options import SEQ, Session, client_command, parse_predicate
from topicsd.client.output import note, records, seq_range


@client_command("rm", json_help="The server's answers as NDJSON.")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--if-empty", is_flag=True, help="Refuse if it still holds records.")
@click.option(
    "--match", metavar="PREDICATE", help="Records only: those with this tag, or tag=PREFIX*, key=…, node=…."
)
@click.option("--before-seq", type=SEQ, metavar="SEQ", help="Records only: those below this seq.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask. Questions are asked on a terminal only.")
def command(
    session: Session,
    topics: tuple[str, ...],
    if_empty: bool,
    match: str | None,
    before_seq: int | None,
    yes: bool,
) -> Exit | None:
    """Delete topics with all their records; with --match or --before-seq, only those records.

    Deleted is deleted: it takes effect for every reader at once and cannot be undone.
    """
    if match is None and before_seq is None:
        return _remove_topics(session, topics, if_empty=if_empty, yes=yes)
    if if_empty:
        raise Usage("--if-empty is about whole topics; leave it out, or leave out --match and --before-seq")
    which = {"match": None if match is None else parse_predicate(match), "before_seq": before_seq}
    for topic in topics:
        if not _sure(f"delete records of {topic}?", yes):
            return Exit.INTERRUPTED
        body = {name: value for name, value in which.items() if value is not None}
        answer = session.server.call("POST", topic_path(topic, "delete"), body)
        if session.as_json:
            session.out.line(answer)
        else:
            result = session.server.decode(DeleteResult, answer)
            left = f"{records(result.count)} left"
            if result.count:
                left += f", {seq_range(result.earliest_seq, result.head_seq)}"
            session.out.text(f"deleted {records(result.deleted)} of {topic}; {left}")
    return None


def _remove_topics(session: Session, topics: tuple[str, ...], *, if_empty: bool, yes: bool) -> Exit | None:
    missing = False
    for topic in topics:
        if not _sure(f"delete {topic} and all its records?", yes or if_empty):
            return Exit.INTERRUPTED
        query = {"if_empty": "true"} if if_empty else None
        answer = session.server.call("DELETE", topic_path(topic), query=query)
        result = session.server.decode(TopicDeleted, answer)
        if session.as_json:
            session.out.line(answer)
        elif result.deleted:
            routers = (
                f", and with it the routers {', '.join(result.routers_removed)}"
                if result.routers_removed
                else ""
            )
            session.out.text(f"deleted {topic}{routers}")
        else:
            note(f"there is no topic {topic}; see: topics ls")
        missing |= not result.deleted
    return Exit.REFUSED if missing else None


def _sure(question: str, yes: bool) -> bool:
    return yes or not sys.stdin.isatty() or click.confirm(question, err=True)
