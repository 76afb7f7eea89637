"""Which command lines of `topicsd serve` go without click, and that they mean the same there."""

from __future__ import annotations

from pathlib import Path

import pytest

from topicsd.commands.serve import serve
from topicsd.entry import plain_flags

PLAIN = [
    ([], {}),
    (["--port", "80"], {"port": "80"}),
    (["--port=80", "--data-dir", "/x y"], {"port": "80", "data_dir": "/x y"}),
    (["--data-dir="], {"data_dir": ""}),
    (["--data-dir", ""], {"data_dir": ""}),
    (["--data-dir", "a=b"], {"data_dir": "a=b"}),
    (["--data-dir=a=b"], {"data_dir": "a=b"}),
    (["--port", "80", "--port", "81"], {"port": "81"}),
    (["--port", "no number"], {"port": "no number"}),
    (["--config", "/proc/none.toml"], {"config": "/proc/none.toml"}),
]
NOT_PLAIN = [
    ["--help"],
    ["--port"],
    ["--port", "--help"],
    ["--porto", "80"],
    ["--api-keys", "k"],
    ["80"],
    ["--"],
]


@pytest.mark.parametrize(("words", "found"), PLAIN)
def test_flags_with_values_are_understood_as_click_does(words: list[str], found: dict[str, str]) -> None:
    assert plain_flags(words) == found
    by_click = serve.make_context("serve", list(words)).params
    by_click["config"] = by_click.pop("config_file")
    assert {name: value for name, value in by_click.items() if value is not None} == found


@pytest.mark.parametrize("words", NOT_PLAIN)
def test_everything_else_is_left_to_click(words: list[str]) -> None:
    assert plain_flags(words) is None


def test_a_directory_instead_of_a_file_is_left_to_click(tmp_path: Path) -> None:
    assert plain_flags(["--config", str(tmp_path)]) is None
