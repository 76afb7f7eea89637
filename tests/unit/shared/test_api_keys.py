from __future__ import annotations

import hashlib
import traceback

import pytest

from shared.api_keys import ALL_SCOPES, ApiKey, KeyRing, Scope, parse_api_keys, parse_api_keys_file
from shared.errors import BadSetting

SECRET = "s3cr3t-Zq9"


def parse(text: str) -> tuple[ApiKey, ...]:
    return parse_api_keys(text, key="TOPICS_API_KEYS", source="environment")


def parse_file(text: str) -> tuple[ApiKey, ...]:
    return parse_api_keys_file(text, key="api_keys_file", source="key file")


def test_a_bare_secret_may_do_everything() -> None:
    (key,) = parse(SECRET)
    assert key == ApiKey(hashlib.sha256(SECRET.encode()).digest(), ALL_SCOPES, ())


@pytest.mark.parametrize(
    ("scopes", "meaning"),
    [
        ("read", {Scope.READ}),
        ("r+w", {Scope.READ, Scope.WRITE}),
        ("rw", {Scope.READ, Scope.WRITE}),
        ("rw+delete", {Scope.READ, Scope.WRITE, Scope.DELETE}),
        ("a", {Scope.ADMIN}),
        ("d", {Scope.DELETE}),
        ("", ALL_SCOPES),
    ],
)
def test_scopes_are_words_joined_by_plus(scopes: str, meaning: set[Scope]) -> None:
    (key,) = parse(f"{SECRET}:{scopes}")
    assert key.scopes == meaning


def test_prefixes_may_contain_colons() -> None:
    (key,) = parse(f"{SECRET}:r:chat:eu|orders.")
    assert key.prefixes == ("chat:eu", "orders.")


def test_empty_fields_mean_all() -> None:
    (key,) = parse(f"{SECRET}::")
    assert (key.scopes, key.prefixes) == (ALL_SCOPES, ())
    (key,) = parse(f"{SECRET}::a")
    assert (key.scopes, key.prefixes) == (ALL_SCOPES, ("a",))


def test_entries_are_separated_by_commas_and_blank_text_means_none() -> None:
    assert len(parse(f"{SECRET}, other:r")) == 2
    assert parse("") == parse("  ") == ()


@pytest.mark.parametrize(
    "bad",
    [
        f"{SECRET},",
        f",{SECRET}",
        f"{SECRET},,x",
        ":read",
        f"{SECRET}:reed",
        f"{SECRET}:READ",
        f"{SECRET}:r+",
        f"{SECRET}:+",
        f"{SECRET}:r:a|",
        f"{SECRET}:r:|a",
        f"{SECRET}:r:a b",
        f"{SECRET}:r:*",
        f"two {SECRET}",
        f"{SECRET}\u00e9",
        f"{SECRET}:r,{SECRET}:w",
        f"half:{SECRET}:r",
    ],
)
def test_a_malformed_entry_is_refused_without_repeating_any_of_it(bad: str) -> None:
    with pytest.raises(BadSetting) as caught:
        parse(bad)
    shown = "".join(traceback.format_exception_only(caught.value)) + str(caught.value.to_json_body())
    assert "TOPICS_API_KEYS (environment): entry " in shown
    assert SECRET not in shown
    assert "reed" not in shown
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_file_may_have_lines_commas_and_comments() -> None:
    assert len(parse_file(f"# ours\n\n{SECRET}:rw\r\nb:r,c\n")) == 3


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing yet\n"])
def test_a_file_without_keys_is_refused(text: str) -> None:
    with pytest.raises(BadSetting, match="no key"):
        parse_file(text)


def test_the_ring_finds_each_key_by_its_secret_only() -> None:
    keys = parse("a:r,b:w,c:d")
    ring = KeyRing(keys)
    assert [ring.find(token) for token in "abc"] == list(keys)
    for token in ("", "d", "a:r", "A", "a ", "\ud800", "é", keys[0].digest.hex()):
        assert ring.find(token) is None


def test_the_ring_compares_with_every_key_even_after_a_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append(left)
        return left == right

    monkeypatch.setattr("hmac.compare_digest", compare)
    keys = parse("a,b,c")
    assert KeyRing(keys).find("a") is keys[0]
    assert compared == [key.digest for key in keys]


def test_nothing_of_a_key_shows_in_a_repr() -> None:
    (key,) = parse(SECRET)
    shown = repr(key) + repr(KeyRing([key]))
    assert SECRET not in shown
    assert repr(key.digest) not in shown
