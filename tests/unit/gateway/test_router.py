"""Paths, percent-decoding, queries."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from gateway.core.auth import Access
from gateway.core.router import (
    Route,
    Router,
    decode_component,
    flag_parameter,
    number_parameter,
    parse_query,
    text_parameter,
)
from shared.errors import InvalidRequest, MethodNotAllowed, NotFound
from tests.unit.gateway.api_harness import ApiHarness, error_code, header


def handler() -> None:
    raise AssertionError("never called here")


ROUTER = Router(
    [
        Route("GET", "/v0/topics", handler, Access.READ),
        Route("GET", "/v0/topics/:name", handler, Access.READ),
        Route("PUT", "/v0/topics/:name", handler, Access.ADMIN),
        Route("POST", "/v0/topics/:name/diff", handler, Access.READ),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "shape", "name"),
    [
        ("GET", "/v0/topics", "/v0/topics", ""),
        ("GET", "/v0/topics/orders", "/v0/topics/:name", "orders"),
        ("GET", "/v0/topics/topics", "/v0/topics/:name", "topics"),
        ("GET", "/v0/topics/diff", "/v0/topics/:name", "diff"),
        ("POST", "/v0/topics/diff/diff", "/v0/topics/:name/diff", "diff"),
        ("GET", "/v0/topics/a%3Ab", "/v0/topics/:name", "a:b"),
        ("GET", "/v0/topics/a%2Fdiff", "/v0/topics/:name", "a/diff"),
        ("GET", "/v0/topics/a%2541", "/v0/topics/:name", "a%41"),
        ("GET", "/v0/top%69cs/x", "/v0/topics/:name", "x"),
        ("GET", "/v0/topics/:name", "/v0/topics/:name", ""),
    ],
)
def test_paths_find_their_route(method: str, path: str, shape: str, name: str) -> None:
    target = ROUTER.resolve(method, path)
    assert (target.route.path, target.name) == (shape, name)


def test_the_short_way_of_topics_comes_to_the_same_as_the_long_one() -> None:
    long = Router(ROUTER.routes)
    long._of_topics = {}
    segments = ("", "v0", "topics", "a", ":name", "a%3Ab", "%", "diff", "A.b:c-d")
    for length in range(1, 6):
        for path in map("/".join, itertools.product(segments, repeat=length)):
            for method in ("GET", "POST"):
                assert _outcome(ROUTER, method, path) == _outcome(long, method, path), (method, path)


def _outcome(router: Router[Callable[[], None]], method: str, path: str) -> object:
    try:
        target = router.resolve(method, path)
    except (NotFound, MethodNotAllowed, InvalidRequest) as err:
        return type(err), err.detail
    return target.route, target.name, target.refused


@pytest.mark.parametrize(
    "path",
    [
        "", "/", "/v0", "/v0/", "/v0/topics/", "/v0/topics/orders/", "/v0//topics", "//v0/topics",
        "/V0/topics", "/v0/topics//diff", "/v0/topics/a/nothing", "/v0/topics/a/diff/b", "/v1/topics", "v0/topics", "*",
        "/v0/topics/a/b/c/d/e/f/g",
    ],
)  # fmt: skip
def test_other_paths_are_not_found(path: str) -> None:
    with pytest.raises(NotFound):
        ROUTER.resolve("GET", path)


def test_a_wrong_method_names_the_right_ones() -> None:
    with pytest.raises(MethodNotAllowed) as caught:
        ROUTER.resolve("PATCH", "/v0/topics/orders")
    assert caught.value.allow == ("GET", "HEAD", "PUT")


@pytest.mark.parametrize(
    "path", ["/v0/topics/%", "/v0/topics/%4", "/v0/topics/%zz", "/v0/topics/%ff", "/v0/%c3%28"]
)
def test_h01_invalid_escapes_are_refused(path: str) -> None:
    with pytest.raises(InvalidRequest):
        ROUTER.resolve("GET", path)


@pytest.mark.parametrize("name", [".", "..", "-a", "a b", "ä", "a" * 256, "%C3%A4", ":name", "a%00"])
def test_h01_names_outside_the_grammar_are_400(name: str) -> None:
    assert error_code(ApiHarness().call("GET", f"/v0/topics/{name}")) == "invalid_request"


def test_unknown_paths_and_methods_get_error_documents() -> None:
    harness = ApiHarness()
    assert error_code(harness.call("GET", "/v0/nothing")) == "not_found"
    response = harness.call("PATCH", "/v0/topics")
    assert (response.status, error_code(response)) == (405, "method_not_allowed")
    assert header(response, "Allow") == "GET, HEAD"


def test_queries_are_decoded_once_and_kept_in_order() -> None:
    query = parse_query("a=1&b=x+y&a=%2541&&c&d==")
    assert query == {"a": ["1", "%41"], "b": ["x y"], "c": [""], "d": ["="]}
    assert text_parameter(query, "a") == "%41"
    assert text_parameter(query, "z", "default") == "default"


@pytest.mark.parametrize("query", ["a=%", "a=%zz", "%ff=1", "&".join(["a=1"] * 100)])
def test_h01_malformed_queries_are_refused(query: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_query(query)


def test_flags_and_numbers() -> None:
    query = parse_query("yes=true&no=0&bad=maybe&n=42&neg=-1&big=" + "9" * 21 + "&arabic=%D9%A1&empty=")
    assert flag_parameter(query, "yes", default=False) and not flag_parameter(query, "no", default=True)
    assert flag_parameter(query, "absent", default=True)
    assert number_parameter(query, "n") == 42 and number_parameter(query, "absent") is None
    for name in ("neg", "big", "arabic", "empty", "yes"):
        with pytest.raises(InvalidRequest):
            number_parameter(query, name)
    with pytest.raises(InvalidRequest):
        flag_parameter(query, "bad", default=True)


def test_text_without_escapes_is_left_alone() -> None:
    assert decode_component("a+b") == "a+b"
    assert decode_component("a+b", plus=True) == "a b"
