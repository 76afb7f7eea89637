"""`topics router`: routers copy records from one topic to another, in the server."""

from __future__ import annotations

import click
import msgspec

from topicsd.client.api import router_path
from topicsd.client.errors import Exit
from topicsd.client.options import Session, client_command, parse_predicate
from topicsd.client.output import count, note

PAGE = 1000


class Router(msgspec.Struct):
    router: str
    source: str
    dest: str
    guarantee: str = "at_least_once"
    filter: str | list[str] | None = None
    preserve_node: bool = True
    preserve_tag: bool = True
    forwarded_total: int | None = None
    lag: int | None = None


class Page(msgspec.Struct):
    routers: list[msgspec.Raw]
    next_cursor: str | None = None


class Deleted(msgspec.Struct):
    deleted: bool


@click.group(name="router")
def command() -> None:
    """Routers copy records from one topic to another, in the server."""


@client_command("ls", json_help="One JSON object per router, as the server gave it.")
@click.argument("prefix", default="")
@click.option("--source", help="Only those that read this topic.")
@click.option("--dest", help="Only those that write to this topic.")
def list_routers(session: Session, prefix: str, source: str | None, dest: str | None) -> None:
    """List routers, all of them or those whose name begins with PREFIX."""
    found: list[Router] = []
    cursor: str | None = None
    while True:
        query = {
            "prefix": prefix or None,
            "source": source,
            "dest": dest,
            "page_size": PAGE,
            "cursor": cursor,
        }
        page = session.server.ask(Page, "GET", "/v0/routers", query=query)
        for raw in page.routers:
            if session.as_json:
                session.out.line(bytes(raw))
            else:
                found.append(session.server.decode(Router, bytes(raw)))
        cursor = page.next_cursor
        if cursor is None:
            break
    if not session.as_json:
        rows = [(r.router, r.source, r.dest, _filter(r), r.guarantee, _number(r.lag)) for r in found]
        session.out.table(("ROUTER", "SOURCE", "DEST", "FILTER", "GUARANTEE", ">LAG"), rows)


@client_command("create", json_help="The server's answer as JSON.")
@click.argument("router")
@click.argument("source")
@click.argument("dest")
@click.option(
    "--filter", "predicate", metavar="PREDICATE", help="Copy only this tag, or tag=PREFIX*, key=…, node=…."
)
@click.option("--exactly-once", is_flag=True, help="Never a second copy, even after a crash.")
@click.option("--no-preserve-node", is_flag=True, help="Copies have no node.")
@click.option("--no-preserve-tag", is_flag=True, help="Copies have no tag.")
@click.option("--no-create-dest", is_flag=True, help="Fail if DEST does not exist.")
@click.option("--allow-cycle", is_flag=True, help="Even if records could come back to SOURCE.")
def create_router(
    session: Session,
    router: str,
    source: str,
    dest: str,
    predicate: str | None,
    exactly_once: bool,
    no_preserve_node: bool,
    no_preserve_tag: bool,
    no_create_dest: bool,
    allow_cycle: bool,
) -> None:
    """Copy what is written to SOURCE from now on to DEST."""
    body = {
        "source": source,
        "dest": dest,
        "preserve_node": not no_preserve_node,
        "preserve_tag": not no_preserve_tag,
        "create_dest": not no_create_dest,
        "filter": None if predicate is None else parse_predicate(predicate),
        "allow_cycle": allow_cycle,
        "guarantee": "exactly_once" if exactly_once else "at_least_once",
    }
    answer = session.server.call("PUT", router_path(router), body)
    if session.as_json:
        session.out.line(answer)
    else:
        session.out.text(f"router {router} copies {source} to {dest}")


@client_command("get", json_help="The server's answer as JSON.")
@click.argument("router")
def get_router(session: Session, router: str) -> None:
    """Show ROUTER."""
    answer = session.server.call("GET", router_path(router))
    if session.as_json:
        session.out.line(answer)
        return
    found = session.server.decode(Router, answer)
    session.out.pairs(
        [
            ("router", found.router),
            ("source", found.source),
            ("dest", found.dest),
            ("filter", _filter(found)),
            ("guarantee", found.guarantee),
            ("forwarded", _number(found.forwarded_total)),
            ("lag", _number(found.lag)),
        ]
    )


@client_command("rm", json_help="The server's answers as NDJSON.")
@click.argument("routers", nargs=-1, required=True, metavar="ROUTER...")
def remove_routers(session: Session, routers: tuple[str, ...]) -> Exit | None:
    """Delete routers. What they have copied stays."""
    missing = False
    for router in routers:
        answer = session.server.call("DELETE", router_path(router))
        deleted = session.server.decode(Deleted, answer).deleted
        if session.as_json:
            session.out.line(answer)
        elif deleted:
            session.out.text(f"deleted {router}")
        else:
            note(f"there is no router {router}; see: topics router ls")
        missing |= not deleted
    return Exit.REFUSED if missing else None


for one in (list_routers, create_router, get_router, remove_routers):
    command.add_command(one)


def _filter(router: Router) -> str:
    if router.filter is None:
        return "-"
    if isinstance(router.filter, str):
        return f"tag={router.filter}"
    return f"{router.filter[0]}={router.filter[-1]}"


def _number(value: int | None) -> str:
    return "-" if value is None else count(value)
