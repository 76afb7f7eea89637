"""The gateway process: puts the API, the shard links and the edge together, and ends them in order."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from gateway.edge import Edge, EdgeOptions
from gateway.io.shard_pool import ShardPool
from gateway.io.shard_roll_call import ShardRollCall
from gateway.io.supervisor_feed import SupervisorFeed
from gateway.service import Api
from shared.io.child_channel import Boot, ChildChannel
from shared.io.logs import set_up_logging
from shared.io.spare_memory import return_spare_memory
from shared.settings import Settings
from shared.version import VERSION

if TYPE_CHECKING:
    from quart_trio import QuartTrio

log = logging.getLogger(__name__)

END_WAITS_EVERY_S: Final = 0.1


def main(argv: Sequence[str]) -> int:
    channel, boot = ChildChannel.open(argv)
    set_up_logging(level=boot.settings.log_level, style=boot.settings.log_format, process="gateway")
    try:
        trio.run(run_gateway, channel, boot)
    except Exception as err:
        log.exception("gateway.failed")
        channel.report("failed", reason=f"{type(err).__name__}: {err}", retry=True)
        return 1
    return 0


async def run_gateway(channel: ChildChannel, boot: Boot) -> None:
    """Serve until the supervisor closes the channel, then drain."""
    settings = boot.settings
    shards = ShardPool(shards=boot.shards, socket_dir=boot.socket_dir, version=VERSION)
    api = Api(settings, shards, version=VERSION)
    feed = SupervisorFeed(boot.shards, on_keys=api.replace_keys, on_ready=shards.connect_now)
    api.replay = feed
    edge = Edge(api, edge_options(settings), registrations=[partial(register_routes, api)])
    api.connections = lambda: edge.connections
    listeners = [socket.socket(fileno=fd) for fd in boot.listen_fds]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.heartbeat, ShardRollCall(shards, edge.turn).facts)
        nursery.start_soon(return_spare_memory)
        nursery.start_soon(shards.run, edge.poller)
        nursery.start_soon(api.hub.run, edge.turn)
        nursery.start_soon(api.work.run, edge.turn)
        # At once, without waiting for the shards: health answers, and the rest says 503 and why.
        await nursery.start(edge.serve, listeners)
        channel.report("ready")
        await feed.follow(channel)
        channel.report("draining")
        nursery.start_soon(keep_ending_waits, shards)
        await drain(api, edge, settings.drain_timeout_ms / 1000)
        nursery.cancel_scope.cancel()


async def drain(api: Api, edge: Edge, timeout_s: float) -> None:
    with edge.turn():
        api.drain()
    if not await edge.drain(timeout_s):
        log.warning("gateway.drain.cut", extra={"timeout_s": timeout_s})


async def keep_ending_waits(shards: ShardPool) -> None:
    """Readers that wait are answered as things stand: they must not hold up the drain.

    Again and again, because those that waited for credit in front of a shard begin to wait there only now.
    """
    while True:
        shards.end_waits()
        await trio.sleep(END_WAITS_EVERY_S)


def register_routes(api: Api, app: QuartTrio) -> None:
    """What the full lane has besides the API. Called when it is loaded, and importing it only then."""
    from gateway.full_lane.pages import register_pages
    from gateway.full_lane.websocket import register_websocket

    register_pages(api)(app)
    register_websocket(api)(app)


def edge_options(settings: Settings) -> EdgeOptions:
    return EdgeOptions(
        max_body_bytes=settings.max_body_bytes,
        request_timeout_ms=settings.request_timeout_ms,
        keepalive_timeout_ms=settings.keepalive_timeout_ms,
    )
