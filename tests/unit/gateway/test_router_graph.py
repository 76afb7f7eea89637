"""May an arrow be drawn? Cycles are found whole, and a destination has one source."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.router_graph import check_edge, find_cycle
from shared.errors import RouterCycle, TopicExistsIncompatible
from shared.wire import Edge


def edge(arrow: str, *, allow_cycle: bool = False) -> Edge:
    source, dest = arrow.split(">")
    return Edge(arrow, source, dest, allow_cycle)


def edges(text: str) -> list[Edge]:
    return [edge(arrow) for arrow in text.split()]


@pytest.mark.parametrize(
    ("drawn", "new", "cycle"),
    [
        ("", "a>b", None),
        ("a>b b>c", "c>d", None),
        ("a>b", "b>a", ["b", "a", "b"]),
        ("a>b b>c c>d", "d>a", ["d", "a", "b", "c", "d"]),
        ("a>b a>c c>d", "d>a", ["d", "a", "c", "d"]),
        ("b>a", "b>c", None),
    ],
)
def test_a_cycle_is_named_from_its_source_to_its_source(
    drawn: str, new: str, cycle: list[str] | None
) -> None:
    assert find_cycle(edge(new), edges(drawn)) == cycle
    if cycle is None:
        check_edge(edge(new), edges(drawn))
    else:
        with pytest.raises(RouterCycle) as caught:
            check_edge(edge(new), edges(drawn))
        assert caught.value.detail == {"cycle": cycle}
        check_edge(edge(new, allow_cycle=True), edges(drawn))


def test_a_destination_has_one_source() -> None:
    with pytest.raises(TopicExistsIncompatible) as caught:
        check_edge(edge("b>x"), edges("a>x"))
    assert caught.value.detail is not None and caught.value.detail["reason"] == "router_dest_fan_in"
    check_edge(Edge("second", "a", "x", False), edges("a>x"))


def test_a_router_does_not_stand_in_its_own_way() -> None:
    check_edge(Edge("a>x", "b", "x", False), edges("a>x"))
    check_edge(Edge("a>b", "b", "a", False), edges("a>b"))


NAMES = st.sampled_from("abcdef")


@given(st.lists(st.tuples(NAMES, NAMES, st.booleans()), max_size=25))
def test_every_cycle_that_comes_to_be_has_a_router_that_allows_it(
    wanted: list[tuple[str, str, bool]],
) -> None:
    drawn: dict[str, Edge] = {}
    for number, (source, dest, allow) in enumerate(wanted):
        new = Edge(f"r{number % 9}", source, dest, allow)
        try:
            if source != dest:
                check_edge(new, drawn.values())
                drawn[new.router] = new
        except (RouterCycle, TopicExistsIncompatible):
            continue
        strict = [each for each in drawn.values() if not each.allow_cycle]
        for each in strict:
            assert find_cycle(each, [other for other in strict if other is not each]) is None
