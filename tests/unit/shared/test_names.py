from __future__ import annotations

import pytest

from shared.names import valid_router_name, valid_topic_name


@pytest.mark.parametrize("name", ["a", "0", "orders", "Orders.eu-1:x_", "x" * 255, "a..b", "a:"])
def test_good_names_serve_topics_and_routers(name: str) -> None:
    assert valid_topic_name(name)
    assert valid_router_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "-a",
        ":a",
        "x" * 256,
        "a/b",
        "a b",
        "a\n",
        "\na",
        "a\x00",
        "é",
        "٣",
        "a%2F",
        "a*",
    ],
)
def test_bad_names_serve_neither(name: str) -> None:
    assert not valid_topic_name(name)
    assert not valid_router_name(name)


def test_an_arrow_is_for_routers_and_never_leads() -> None:
    assert valid_router_name("orders>audit")
    assert not valid_topic_name("orders>audit")
    assert not valid_router_name(">audit")
