"""docs/http-api.md names what is served: every route, every error and every field of a request, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from gateway.full_lane.openapi import EDGE_ERRORS, OPERATIONS, openapi_path
from gateway.handlers import all_routes
from shared.api_types import (
    AckRequest,
    ClaimRequest,
    DeleteRequest,
    DiffRequest,
    ExtendRequest,
    NackRequest,
    RecordIn,
    RedriveRequest,
    TopicConfigIn,
    WriteRequest,
)
from shared.errors import Forbidden, MethodNotAllowed, NotFound, ShuttingDown, Unauthorized
from shared.router_types import RouterIn

PAGE = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text()
# Console blocks show requests that go wrong on purpose.
PROSE = re.sub(r"```.*?```", "", PAGE, flags=re.S)


def served_errors() -> set[tuple[int, str]]:
    """Status and code of every error that a request can meet."""
    found = {(status, error.code) for status, error in EDGE_ERRORS}
    found |= {
        (error.status_hint, error.code) for operation in OPERATIONS.values() for error in operation.errors
    }
    # From every route, or from paths that are none.
    for kind in (Unauthorized, Forbidden, ShuttingDown, NotFound, MethodNotAllowed):
        found.add((kind.status_hint, kind.code))
    return found


def test_the_page_names_every_route_and_no_other() -> None:
    named = set(re.findall(r"`((?:GET|PUT|POST|DELETE|PATCH) /[^`?]*)`", PROSE))
    assert named == {f"{route.method} {openapi_path(route.path)}" for route in all_routes()}


def test_every_route_has_a_section_or_stands_in_that_of_its_twin() -> None:
    sections = set(re.findall(r"^### `([A-Z]+ /[^`]*)`$", PAGE, flags=re.M))
    twins = set(re.findall(r"^Also `(GET /[^`]*)`\.", PAGE, flags=re.M))
    assert sections | twins == {f"{route.method} {openapi_path(route.path)}" for route in all_routes()}


def test_the_table_of_errors_has_every_error_that_can_occur_and_no_other() -> None:
    _, _, table = PAGE.partition("\n## Table of errors\n")
    rows = re.findall(r"^\| (\d{3}) \| `([a-z_]+)` \|", table, flags=re.M)
    assert len(rows) == len(set(rows))
    assert {(int(status), code) for status, code in rows} == served_errors()


def test_every_error_in_the_text_is_one_that_can_occur() -> None:
    named = {(int(status), code) for status, code in re.findall(r"`(\d{3}) ([a-z_]+)`", PROSE)}
    assert named and named <= served_errors()


REQUESTS = [
    TopicConfigIn,
    WriteRequest,
    RecordIn,
    DiffRequest,
    DeleteRequest,
    ClaimRequest,
    AckRequest,
    NackRequest,
    ExtendRequest,
    RedriveRequest,
    RouterIn,
]


@pytest.mark.parametrize("kind", REQUESTS)
def test_every_field_of_a_request_is_explained(kind: type[msgspec.Struct]) -> None:
    for field in kind.__struct_encode_fields__:
        assert re.search(rf'`{field}`|\{{.*"{field}".*\}}', PROSE), field


def test_every_link_within_the_page_leads_somewhere() -> None:
    headings = re.findall(r"^#+ (.+)$", PROSE, flags=re.M)
    # As GitHub makes them: lower case, spaces to hyphens, punctuation dropped.
    anchors = {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", PROSE)) <= anchors
