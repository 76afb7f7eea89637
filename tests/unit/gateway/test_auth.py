"""Who may do what: the whole matrix of routes, scopes and prefixes, and the tricks around it."""

from __future__ import annotations

import itertools

import pytest

from gateway.core.auth import bearer_token
from shared.api_keys import KeyRing, parse_api_keys
from tests.unit.gateway.api_harness import ApiHarness, error_code, header

# The contract's table, written out: what each route asks for, and a body that is good enough for it.
MATRIX = [
    ("GET", "/v0/topics", {"read"}, b""),
    ("PUT", "/v0/topics/a-1", {"admin"}, b"{}"),
    ("GET", "/v0/topics/a-1", {"read"}, b""),
    ("DELETE", "/v0/topics/a-1", {"delete"}, b""),
    ("POST", "/v0/topics/a-1", {"write"}, b'{"records":[{"data":1}]}'),
    ("POST", "/v0/topics/a-1/diff", {"read"}, b"{}"),
    ("GET", "/v0/topics/a-1/records", {"read"}, b""),
    ("POST", "/v0/topics/a-1/delete", {"delete"}, b'{"before_seq":1}'),
    ("POST", "/v0/topics/a-1/claim", {"read", "write"}, b'{"node":"n"}'),
    ("POST", "/v0/topics/a-1/ack", {"write"}, b'{"node":"n","seqs":[1]}'),
    ("POST", "/v0/topics/a-1/nack", {"write"}, b'{"node":"n","seqs":[1]}'),
    ("POST", "/v0/topics/a-1/extend", {"write"}, b'{"node":"n","seqs":[1],"lease_ms":1}'),
    ("GET", "/v0/topics/a-1/leases", {"read"}, b""),
    ("POST", "/v0/topics/a-1/redrive", {"write", "delete"}, b'{"from":"a-1-dead"}'),
    ("GET", "/v0/topics/a-1/work?node=n", {"read", "write"}, b""),
    ("GET", "/v0/routers", {"read"}, b""),
    ("PUT", "/v0/routers/a-1", {"admin"}, b'{"source":"a-1","dest":"a-1-copy"}'),
    ("GET", "/v0/routers/a-1", {"read"}, b""),
    ("DELETE", "/v0/routers/a-1", {"delete"}, b""),
    ("GET", "/v0/metrics", {"read"}, b""),
    ("GET", "/v0/health", set(), b""),
    ("GET", "/healthz", set(), b""),
    ("GET", "/v0/ready", set(), b""),
    ("GET", "/readyz", set(), b""),
]
SCOPES = ("read", "write", "delete", "admin")
SUBSETS = [set(chosen) for n in range(1, 5) for chosen in itertools.combinations(SCOPES, n)]
BEARER = {"authorization": "Bearer secret"}


def test_the_matrix_names_every_route() -> None:
    listed = {(method, path.partition("?")[0].replace("a-1", ":name")) for method, path, _, _ in MATRIX}
    # These two need a live feed behind them: tests/e2e/test_watch.py has their keys, scopes and prefixes.
    listed |= {("POST", "/v0/watch"), ("GET", "/v0/watch/:name")}
    assert listed == {(route.method, route.path) for route in ApiHarness().api.router.routes}


@pytest.mark.parametrize(("method", "path", "needed", "body"), MATRIX)
@pytest.mark.parametrize("scopes", SUBSETS, ids=lambda scopes: "+".join(sorted(scopes)))
def test_h06_scopes(method: str, path: str, needed: set[str], body: bytes, scopes: set[str]) -> None:
    harness = ApiHarness(api_keys=f"secret:{'+'.join(sorted(scopes))}")
    response = harness.call(method, path, body, BEARER)
    if needed <= scopes:
        assert response.status == 200
    else:
        assert (response.status, error_code(response)) == (403, "forbidden")
        assert not harness.shards.asked


@pytest.mark.parametrize(("method", "path", "needed", "body"), MATRIX)
@pytest.mark.parametrize(
    ("prefixes", "allowed"),
    [("", True), ("a-", True), ("a-1", True), ("b|a", True), ("b", False), ("a-12", False), ("A-", False)],
)
def test_h06_prefixes(
    method: str, path: str, needed: set[str], body: bytes, prefixes: str, allowed: bool
) -> None:
    harness = ApiHarness(api_keys=f"secret::{prefixes}")
    response = harness.call(method, path, body, BEARER)
    if allowed or "a-1" not in path:
        assert response.status == 200
    else:
        assert (response.status, error_code(response)) == (403, "forbidden")
        assert not harness.shards.asked


@pytest.mark.parametrize(("method", "path", "needed", "body"), MATRIX)
@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Bearer secret x",
        "Basic secret",
        "secret",
        "Bearer Secret",
    ],
)
def test_h06_missing_and_wrong_keys(
    method: str, path: str, needed: set[str], body: bytes, authorization: str | None
) -> None:
    harness = ApiHarness(api_keys="secret")
    headers = {} if authorization is None else {"authorization": authorization}
    response = harness.call(method, path, body, headers)
    if not needed:
        assert response.status == 200  # probes stay open
        return
    assert (response.status, error_code(response)) == (401, "unauthorized")
    assert (header(response, "WWW-Authenticate") or "").startswith("Bearer")
    assert not harness.shards.asked


@pytest.mark.parametrize(("method", "path", "needed", "body"), MATRIX)
def test_without_keys_everything_is_allowed(method: str, path: str, needed: set[str], body: bytes) -> None:
    assert ApiHarness().call(method, path, body).status == 200


def test_probes_need_a_key_of_any_scope_when_they_are_protected() -> None:
    harness = ApiHarness(api_keys="secret:w:x", probe_auth="1")
    for path in ("/v0/health", "/healthz", "/v0/ready", "/readyz"):
        assert harness.call("GET", path).status == 401
        assert harness.call("GET", path, headers=BEARER).status == 200


def test_a_token_in_the_query_is_no_key_outside_streams() -> None:
    assert ApiHarness(api_keys="secret").call("GET", "/v0/topics?token=secret").status == 401


@pytest.mark.parametrize("path", ["/v0/topics/%61-1", "/v0/topics/a%2D1"])
def test_h06_an_encoded_name_is_the_name_it_decodes_to(path: str) -> None:
    assert ApiHarness(api_keys="secret::a-").call("GET", path, headers=BEARER).status == 200
    assert ApiHarness(api_keys="secret::b").call("GET", path, headers=BEARER).status == 403


@pytest.mark.parametrize(
    "path", ["/v0/topics/a-%2Fb", "/v0/topics/a-%252Fb", "/v0/topics/a-%00", "/v0/topics/a-%0A"]
)
def test_h06_an_encoded_slash_never_makes_another_path(path: str) -> None:
    harness = ApiHarness(api_keys="secret::a-")
    assert error_code(harness.call("GET", path, headers=BEARER)) == "invalid_request"
    assert not harness.shards.asked


def test_h06_names_in_bodies_are_checked() -> None:
    harness = ApiHarness(api_keys="secret::a-")
    foreign = b'{"type":"queue","dead_letter":"b-dead"}'
    assert harness.call("PUT", "/v0/topics/a-1", foreign, BEARER).status == 403
    escaped = rb'{"dead\u005fletter":"\u0062-dead"}'
    assert harness.call("PUT", "/v0/topics/a-1", escaped, BEARER).status == 403
    write = b'{"records":[{"data":1}],"config":{"dead_letter":"b-dead"}}'
    assert harness.call("POST", "/v0/topics/a-1", write, BEARER).status == 403
    assert harness.call("POST", "/v0/topics/a-1/redrive", b'{"from":"b-dead"}', BEARER).status == 403
    assert not harness.shards.asked
    assert harness.call("POST", "/v0/topics/a-1/redrive", b'{"from":"a-dead"}', BEARER).status == 200
    assert harness.call("PUT", "/v0/topics/a-1", b'{"dead_letter":"a-dead"}', BEARER).status == 200
    assert harness.call("PUT", "/v0/topics/a-1", b'{"dead_letter":null}', BEARER).status == 200
    assert ApiHarness(api_keys="secret").call("PUT", "/v0/topics/a-1", foreign, BEARER).status == 200


def test_lists_are_narrowed_to_the_prefixes_of_the_key() -> None:
    harness = ApiHarness(api_keys="secret::a-|b:")
    harness.call("GET", "/v0/topics?prefix=a", headers=BEARER)
    options = harness.shards.asked[0].options
    assert options is not None
    assert (options["prefix"], options["prefixes"]) == ("a", ["a-", "b:"])


def test_keys_can_be_replaced_while_running() -> None:
    harness = ApiHarness(api_keys="secret")
    harness.api.replace_keys(KeyRing(parse_api_keys("other", key="k", source="test")))
    assert harness.call("GET", "/v0/topics", headers=BEARER).status == 401
    assert harness.call("GET", "/v0/topics", headers={"authorization": "Bearer other"}).status == 200


@pytest.mark.parametrize(
    ("value", "token"),
    [
        ("Bearer x", "x"),
        ("bearer  x ", "x"),
        ("BEARER x", "x"),
        ("Bearer", None),
        ("Basic x", None),
        (None, None),
        ("Bearer a, Bearer b", "a, Bearer b"),  # two headers are no key at all
    ],
)
def test_bearer_parsing(value: str | None, token: str | None) -> None:
    assert bearer_token(value) == token
