"""docs/fault-coverage.md names a test for every row of the fault catalogue, and only tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "fault-coverage.md"
ROWS = {"W": 22, "S": 6, "G": 8, "D": 7, "C": 8}
COVERED = {*ROWS}  # the parts of the catalogue that the page is about
WANTED = {f"{letter}{number}" for letter, count in ROWS.items() for number in range(1, count + 1)}

_TEST = re.compile(r"^def (test_([a-z])(\d\d)_\w+)\(", re.MULTILINE)
_ROW = re.compile(r"^\| ([A-Z])(\d+) \|.*\|$", re.MULTILINE)


def existing_tests() -> dict[str, set[str]]:
    """Tests of the catalogue by id."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests" / "crash").glob("test_*_faults.py")):
        for name, letter, number in _TEST.findall(path.read_text()):
            if letter.upper() not in COVERED:
                continue
            found.setdefault(f"{letter.upper()}{int(number)}", set()).add(name)
    return found


def named_tests() -> dict[str, set[str]]:
    """What the page says, by id."""
    return {
        f"{row[1]}{row[2]}": set(re.findall(r"`(test_\w+)`", row[0]))
        for row in _ROW.finditer(PAGE.read_text())
    }


def test_every_row_of_the_catalogue_has_a_test() -> None:
    assert sorted(WANTED - existing_tests().keys()) == []


def test_the_page_and_the_tests_agree() -> None:
    assert named_tests() == existing_tests(), "docs/fault-coverage.md is not up to date"


def test_a_test_stands_in_the_row_that_its_name_says() -> None:
    for row, names in named_tests().items():
        start = f"test_{row[0].lower()}{int(row[1:]):02d}_"
        assert names and all(name.startswith(start) for name in names), row
