from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import InvalidRequest
from shared.limits import MATCH_VALUE_MAX_BYTES
from shared.match import Match, parse_match


def test_eq_compares_the_whole_field() -> None:
    match = parse_match(["tag", "Eq", "x"])
    assert match.matches("x", None, None)
    assert not match.matches("xy", "x", "x")


def test_glob_compares_the_beginning() -> None:
    match = parse_match(["tag", "Glob", "user-1042:*"])
    assert match.matches("user-1042:", None, None)
    assert match.matches("user-1042:cart", None, None)
    assert not match.matches("user-10421", None, None)


def test_a_bare_string_is_tag_eq_and_its_star_is_literal() -> None:
    assert parse_match("x*") == parse_match(["tag", "Eq", "x*"])
    assert parse_match("x*").matches("x*", None, None)
    assert not parse_match("x*").matches("xy", None, None)


@pytest.mark.parametrize(("field", "labels"), [("tag", "x--"), ("key", "-x-"), ("node", "--x")])
def test_each_field_looks_at_its_own_label(field: str, labels: str) -> None:
    assert parse_match([field, "Eq", "x"]).matches(*labels)
    assert parse_match([field, "Glob", "x*"]).matches(*labels)
    others = [None if label == "x" else "x" for label in labels]
    assert not parse_match([field, "Eq", "x"]).matches(*others)


def test_a_lone_star_matches_every_record_that_has_the_field() -> None:
    match = parse_match(["key", "Glob", "*"])
    assert match.matches(None, "", None)
    assert not match.matches("t", None, "n")


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        True,
        {},
        {"tag": "x"},
        [],
        ["tag"],
        ["tag", "Eq"],
        ["tag", "Eq", "x", "y"],
        ["tag", "Eq", 1],
        ["tag", "Eq", None],
        ["tag", "eq", "x"],
        ["tag", "In", ["x"]],
        ["data", "Eq", "x"],
        [["tag"], "Eq", "x"],
        ["tag", {}, "x"],
        ["tag", "Glob", ""],
        ["tag", "Glob", "x"],
        ["tag", "Glob", "*x"],
        ["tag", "Glob", "x*y*"],
        ["tag", "Glob", "x**"],
        "x" * (MATCH_VALUE_MAX_BYTES + 1),
        ["tag", "Eq", "é" * MATCH_VALUE_MAX_BYTES],
    ],
)
def test_anything_else_is_an_invalid_request_that_names_the_field(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^filter"):
        parse_match(value, where="filter")


@given(
    st.sampled_from(["tag", "key", "node"]),
    st.sampled_from(["Eq", "Glob"]),
    st.text(alphabet=st.characters(exclude_characters="*", exclude_categories=["Cs"]), max_size=40),
)
def test_the_wire_form_round_trips(field: str, op: str, text: str) -> None:
    match = parse_match([field, op, text + "*" if op == "Glob" else text])
    assert Match.from_wire(match.to_wire()) == match


def test_a_match_is_frozen() -> None:
    with pytest.raises(AttributeError):
        parse_match("x").value = "y"  # type: ignore[misc]
