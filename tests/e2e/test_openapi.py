"""The OpenAPI document says what the router dispatches, and a live server does what the document says.

The run of generated requests is derandomized: it sends the same ones every time, so a red run is the change's
fault. Most of them go to a few topics that hold something, because to an absent one everything is a 404.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import jsonschema_rs
import pytest
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from gateway.full_lane.openapi import OPERATIONS, build_document, openapi_path
from gateway.handlers import all_routes
from shared import errors
from shared.names import valid_topic_name
from shared.settings import load_settings
from tests.support.live_server import LiveServer

Json = dict[str, Any]
Case = schemathesis.Case[Any]

CHECKS = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
CONFIG = {"seed": 4000, "generation": {"deterministic": True}}
TOPICS = ["orders", "capped", "full", "jobs", "empty", "doomed"]


# Through JSON, as clients get it: a tuple or an enum in it would not survive.
DOCUMENT: Json = json.loads(
    json.dumps(build_document(all_routes(), load_settings({}, {}, None, cpus=2), version("topicsd")))
)


@pytest.fixture
def document() -> Json:
    return DOCUMENT


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def resolved(document: Json, part: Json) -> Json:
    if "$ref" not in part:
        return part
    found: Any = document
    for step in part["$ref"].removeprefix("#/").split("/"):
        found = found[step]
    target: Json = found
    return target


def error_codes(document: Json) -> set[str]:
    found: set[str] = set()
    for response in document["components"]["responses"].values():
        (content,) = response["content"].values()
        found |= set(content["schema"]["allOf"][1]["properties"]["error"]["properties"]["code"]["enum"])
    return found


def validator(document: Json, schema: Json) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]})


# --- the document by itself -----------------------------------------------------------------------------


def test_the_document_is_openapi_3_1(document: Json) -> None:
    assert document["openapi"] == "3.1.0"
    schemathesis.openapi.from_dict(document).validate()


def test_the_check_for_validity_can_fail(document: Json) -> None:
    broken = {**document, "paths": {"/v0/topics": {"get": {"parameters": "none"}}}}
    with pytest.raises(jsonschema_rs.ValidationError):
        schemathesis.openapi.from_dict(broken).validate()


def test_every_reference_leads_somewhere(document: Json) -> None:
    references = set(re.findall(r'"\$ref": ?"#/([^"]+)"', json.dumps(document)))
    assert references
    for reference in references:
        resolved(document, {"$ref": f"#/{reference}"})
    used = {reference for reference in references if reference.startswith("components/")}
    offered = {
        f"components/{kind}/{name}"
        for kind in ("schemas", "responses")
        for name in document["components"][kind]
    }
    assert used == offered


def test_every_schema_is_a_schema(document: Json) -> None:
    for schema in document["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})


def test_every_example_is_valid(document: Json) -> None:
    checked = 0
    for _, _, operation in operations(document):
        answers = [resolved(document, answer) for answer in operation["responses"].values()]
        for part in [*answers, *([operation["requestBody"]] if "requestBody" in operation else [])]:
            for content in part["content"].values():
                check = validator(document, content["schema"])
                examples = [example["value"] for example in content.get("examples", {}).values()]
                for example in [*examples, *([content["example"]] if "example" in content else [])]:
                    check.validate(example)
                    checked += 1
    assert checked > 100


def test_every_route_is_documented_and_nothing_else() -> None:
    assert set(OPERATIONS) == {(route.method, route.path) for route in all_routes()}


def test_the_document_has_every_route_and_nothing_else(document: Json) -> None:
    routes = {(route.method, openapi_path(route.path)) for route in all_routes()}
    assert {(method, path) for method, path, _ in operations(document)} == routes


def test_a_route_without_documentation_is_refused() -> None:
    (first, *_) = all_routes()
    unknown = type(first)("GET", "/v0/unheard-of", first.handler, first.access)
    with pytest.raises(KeyError):
        build_document([unknown], load_settings({}, {}, None, cpus=2), "1.2.3")


def test_every_documented_error_code_exists_with_that_status(document: Json) -> None:
    known: dict[str, set[int]] = {}
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.TopicsError) and hasattr(kind, "code"):
            known.setdefault(kind.code, set()).add(kind.status_hint)
    # The edge answers these with the status that says best what was wrong with the request.
    known["invalid_request"] |= {408, 414, 417, 431}
    assert error_codes(document) <= set(known)
    for _, _, operation in operations(document):
        for status, answer in operation["responses"].items():
            content = resolved(document, answer)["content"].get("application/json", {})
            for example in content.get("examples", {}).values():
                assert int(status) in known[example["value"]["error"]["code"]]


def test_every_operation_says_which_scope_it_needs(document: Json) -> None:
    needed = {(route.method, openapi_path(route.path)): route.access.value for route in all_routes()}
    for method, path, operation in operations(document):
        scope = needed[method, path]
        if scope == "probe":
            assert operation["security"] == [{}, {"bearer": []}]
            assert "Needs no key" in operation["description"]
        else:
            assert operation["security"] == [{"bearer": scope.split("+")}]
            assert f"scope **{scope}**" in operation["description"]


# --- a live server --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("openapi") / "data") as running:
        running.wait_serving()
        with running.client() as client:
            for topic, config in (
                ("orders", {}),
                ("capped", {"cap_records": 2}),
                ("full", {"cap_records": 5, "discard": "reject"}),
                ("jobs", {"type": "queue"}),
                ("empty", {"durability": "ephemeral"}),
            ):
                client.send("PUT", f"/v0/topics/{topic}", config)
            record = {"data": {"sku": "A"}, "tag": "order-1", "key": "1", "node": "eu-1", "meta": {"a": 1}}
            for topic in ("orders", "capped", "full", "jobs"):
                client.send("POST", f"/v0/topics/{topic}", {"records": [record, {"data": None}] * 2})
        yield running
        assert running.failures() == []
        assert running.stop() == 0


def get(server: LiveServer, path: str) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{server.port}{path}")


def test_the_server_serves_its_document(live: LiveServer, document: Json) -> None:
    answer = get(live, "/openapi.json")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == document


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_the_pages_are_self_contained(live: LiveServer, path: str) -> None:
    answer = get(live, path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy and "http" not in policy
    assert set(re.findall(r'(?:src|href)="([^"]*)"', answer.text)) <= links_within(answer.text)


def links_within(page: str) -> set[str]:
    """What a page may link to: its own parts, other paths of the server, and its icon."""
    parts = {f"#{id_}" for id_ in re.findall(r'id="([^"]+)"', page)}
    (icon,) = re.findall(r'<link rel="icon" href="(data:[^"]+)"', page)
    return parts | {icon, "/", "/docs", "/openapi.json", "/v0/ready", "/v0/metrics"}


def test_the_reference_page_names_every_operation_and_error_code(live: LiveServer, document: Json) -> None:
    page = get(live, "/docs").text
    for _, path, operation in operations(document):
        assert f'id="{operation["operationId"]}"' in page
        assert f">{path}</span>" in page
    for code in error_codes(document):
        assert f"<code>{code}</code>" in page


def test_no_answer_has_a_field_that_is_not_documented(live: LiveServer, document: Json) -> None:
    closed: Json = json.loads(json.dumps(document))
    for schema in closed["components"]["schemas"].values():
        schema["additionalProperties"] = False
    with live.client() as client:
        for method, path, body in (
            ("GET", "/v0/topics?page_size=2", None),
            ("PUT", "/v0/topics/orders", {}),
            ("PUT", "/v0/topics/another", {"type": "queue"}),
            ("GET", "/v0/topics/orders", None),
            ("GET", "/v0/topics/jobs", None),
            ("POST", "/v0/topics/orders", {"records": [{"data": 1}]}),
            ("POST", "/v0/topics/orders/diff", {"include_tags": True, "include_keys": True}),
            ("POST", "/v0/topics/capped/diff", {"from_seq": 0}),
            ("GET", "/v0/topics/orders/records?from_seq=1", None),
            ("POST", "/v0/topics/orders/delete", {"before_seq": 2}),
            ("POST", "/v0/topics/jobs/claim", {"node": "a", "max": 4, "lease_ms": 60_000}),
            ("GET", "/v0/topics/jobs/leases?page_size=1", None),
            ("POST", "/v0/topics/jobs/extend", {"node": "a", "seqs": [1], "lease_ms": 1000}),
            ("POST", "/v0/topics/jobs/ack", {"node": "a", "seqs": [1]}),
            ("POST", "/v0/topics/jobs/nack", {"node": "a", "seqs": [2]}),
            ("POST", "/v0/topics/jobs/redrive", {"from": "empty"}),
            ("POST", "/v0/topics/orders/claim", {"node": "a"}),
            ("DELETE", "/v0/topics/another", None),
            ("GET", "/v0/health", None),
            ("GET", "/v0/ready", None),
            ("GET", "/v0/topics/absent", None),
        ):
            answer = client.send(method, path, body)
            template = re.sub(r"^/v0/topics/[^/]+", "/v0/topics/{topic}", path.partition("?")[0])
            documented = closed["paths"][template][method.lower()]["responses"][str(answer.status_code)]
            content = resolved(closed, documented)["content"]["application/json"]
            validator(closed, content["schema"]).validate(answer.json())


def test_keys_and_scopes_are_asked_for_as_documented(tmp_path: Path, document: Json) -> None:
    """401 without a key, 403 with one that lacks the scope, 200 for probes; all of it with documented codes."""
    scopes = {"read", "write", "delete", "admin"}
    keys = ",".join(f"no-{scope}:{'+'.join(sorted(scopes - {scope}))}" for scope in sorted(scopes))
    with LiveServer(tmp_path / "data", shards=1, env={"TOPICS_API_KEYS": keys}) as running:
        running.wait_serving()
        base = f"http://127.0.0.1:{running.port}"
        for method, path, operation in operations(document):
            url = base + path.replace("{topic}", "orders")
            needed = operation["security"][-1]["bearer"]
            without = httpx.request(method, url)
            assert without.status_code == (401 if needed else 200)
            if needed:
                assert without.headers["www-authenticate"].startswith("Bearer")
                lacking = httpx.request(method, url, headers={"Authorization": f"Bearer no-{needed[0]}"})
                for answer, status in ((without, "401"), (lacking, "403")):
                    assert str(answer.status_code) == status
                    content = resolved(document, operation["responses"][status])["content"]
                    validator(document, content["application/json"]["schema"]).validate(answer.json())
        for path in ("/", "/docs", "/openapi.json"):
            assert httpx.get(base + path).status_code == 200


# --- generated requests ---------------------------------------------------------------------------------


# A stream does not end by itself, so no generated request opens one (tests/e2e/test_api_work.py does).
documented_api = schemathesis.openapi.from_dict(
    DOCUMENT, config=SchemathesisConfig.from_dict(CONFIG)
).exclude(path_regex="/work$")


@documented_api.parametrize()
@hypothesis.settings(max_examples=40, suppress_health_check=list(hypothesis.HealthCheck))
def test_the_server_does_what_the_document_says(case: Case, live: LiveServer) -> None:
    aim(case)
    if case.method == "DELETE":
        with live.client() as client:
            client.send("PUT", "/v0/topics/doomed", {})
    case.call_and_validate(f"http://127.0.0.1:{live.port}", checks=CHECKS, timeout=20)


def aim(case: Case) -> None:
    """Send most requests to topics that exist, and let no long poll take its time."""
    topic = (case.path_parameters or {}).get("topic")
    if isinstance(topic, str) and valid_topic_name(topic) and len(topic) % 4:
        case.path_parameters["topic"] = (
            "doomed" if case.method == "DELETE" else TOPICS[len(topic) % len(TOPICS)]
        )
    for part in (case.body, case.query):
        wait_ms = part.get("wait_ms") if isinstance(part, dict) else None
        if isinstance(wait_ms, int) and isinstance(part, dict):
            part["wait_ms"] = min(wait_ms, 5)
