"""Routers as a graph: may this arrow be drawn, given all the others?

Every cycle has an arrow that was drawn last, and that one was drawn with `allow_cycle`: so a record that goes round
and round passes a router that counts its hops.
"""

from __future__ import annotations

from collections.abc import Iterable

from shared.errors import RouterCycle, TopicExistsIncompatible
from shared.wire import Edge


def check_edge(edge: Edge, others: Iterable[Edge]) -> None:
    """Raises if the arrow makes a second source for its destination, or closes a cycle that is not allowed."""
    others = [other for other in others if other.router != edge.router]
    for other in others:
        if other.dest == edge.dest and other.source != edge.source:
            raise TopicExistsIncompatible(
                f"router {other.router} copies to {edge.dest} already, from another topic; "
                "a destination has one source",
                detail={"reason": "router_dest_fan_in", "dest": edge.dest, "router": other.router},
            )
    if not edge.allow_cycle:
        cycle = find_cycle(edge, others)
        if cycle is not None:
            raise RouterCycle(cycle=cycle)


def find_cycle(edge: Edge, others: Iterable[Edge]) -> list[str] | None:
    """The topics of a shortest cycle through `edge`, its source first and last; None if there is none."""
    onward: dict[str, list[str]] = {}
    for other in others:
        onward.setdefault(other.source, []).append(other.dest)
    came_from = {edge.dest: edge.source}
    reached = [edge.dest]
    for topic in reached:
        if topic == edge.source:
            break
        for dest in onward.get(topic, ()):
            if dest not in came_from:
                came_from[dest] = topic
                reached.append(dest)
    if edge.source not in came_from:
        return None
    path = [edge.source]
    while True:
        path.append(came_from[path[-1]])
        if path[-1] == edge.source:
            return path[::-1]
