"""The full lane put together: the app with all its routes, on Hypercorn.

Imported only by who needs the lane (gateway/edge.py, gateway/process.py): everything heavy comes with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.api import ApiPort
from gateway.fast_lane.bounds import EdgeOptions
from gateway.fast_lane.lane import FastLane
from gateway.full_lane.app import Register, create_app
from gateway.full_lane.asgi_bridge import AsgiBridge
from gateway.full_lane.hypercorn_glue import HypercornHost


def build_lane(
    api: ApiPort, fast_lane: FastLane, options: EdgeOptions, registrations: Sequence[Register]
) -> HypercornHost:
    bridge = AsgiBridge(api, fast_lane, options)
    return HypercornHost(create_app(bridge, options, registrations), options)
