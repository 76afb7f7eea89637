"""`topics top`: what a server does, live: rates, queues, lag, shards, pressure."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from topicsd.client.api import Server
from topicsd.client.errors import Refused, Unreachable
from topicsd.client.options import Session, client_command
from topicsd.client.readings import SORTS, Reading, compare
from topicsd.client.terminal import Screen
from topicsd.client.top_screen import render

ROUTERS_SHOWN = 100
ONCE_SPAN_S = 1.0


@client_command("top", json_help="One reading as JSON: the server's metrics and readiness.")
@click.option("--interval", type=click.FloatRange(0.2, 3600), default=2.0, show_default=True, metavar="SECONDS",
              help="Between two readings.")  # fmt: skip
@click.option(
    "--sort", type=click.Choice(list(SORTS.values())), default="rate", show_default=True, help="Topics by."
)
@click.option("--once", is_flag=True, help="Print one picture and end; so it is where stdout is no terminal.")
def command(session: Session, interval: float, sort: str, once: bool) -> None:
    """Show what the server does: rates, queues, router lag, shards, pressure. q quits, the keys below sort."""
    if session.as_json:
        reading = take_reading(session.server)
        document = {"metrics": reading.metrics, "ready": reading.ready, "routers": reading.routers}
        session.out.json(document)
    elif once or not session.out.is_terminal or not sys.stdin.isatty():
        before = take_reading(session.server)
        time.sleep(min(ONCE_SPAN_S, interval))  # rates need two readings
        picture = compare(before, take_reading(session.server))
        for line in render(
            picture, server=str(session.server.address), sort=sort, clock=_clock(), paint=session.out.paint
        ):
            session.out.text(line)
    else:
        _live(session, interval, sort)


def _live(session: Session, interval: float, sort: str) -> None:
    before: Reading | None = None
    now = take_reading(session.server)  # a server that is not there is said before the screen is taken
    trouble: str | None = None
    with Screen().opened() as screen:
        while True:
            next_at = time.monotonic() + interval
            picture = compare(before, now)
            while (wait_s := next_at - time.monotonic()) > 0:
                width, height = screen.size
                screen.draw(
                    render(
                        picture,
                        server=str(session.server.address),
                        sort=sort,
                        clock=_clock(),
                        width=width,
                        height=height,
                        trouble=trouble,
                        keys=True,
                        paint=session.out.paint,
                    )
                )
                key = screen.key(wait_s)
                if key is None:
                    break
                if key in ("q", "Q", "\x04"):
                    return
                sort = SORTS.get(key, sort)
            try:
                reading = take_reading(session.server)
                before, now, trouble = now, reading, None
            except (Refused, Unreachable) as err:
                trouble = f"{err}; what you see is from {now_ago(now)} ago"


def now_ago(reading: Reading) -> str:
    return f"{time.monotonic() - reading.at_s:.0f} s"


def take_reading(server: Server) -> Reading:
    at_s = time.monotonic()
    metrics = server.ask(dict[str, Any], "GET", "/v0/metrics", headers={"Accept": "application/json"})
    return Reading(at_s=at_s, metrics=metrics, ready=_readiness(server), routers=_routers(server))


def _readiness(server: Server) -> dict[str, Any]:
    try:
        return server.ask(dict[str, Any], "GET", "/v0/ready")
    except Refused as err:
        if err.code != "not_ready":
            raise
        return {"shards": err.detail.get("shards", [])}


def _routers(server: Server) -> tuple[dict[str, Any], ...]:
    try:
        page = server.ask(dict[str, Any], "GET", "/v0/routers", query={"page_size": ROUTERS_SHOWN})
    except Refused as err:
        # A server without routers, or one that cannot list them all while a shard is away.
        if err.status == 404 or err.passes:
            return ()
        raise
    return tuple(page.get("routers", []))


def _clock() -> str:
    return time.strftime("%H:%M:%S")
