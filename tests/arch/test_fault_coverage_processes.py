"""docs/fault-coverage-processes.md names a test for every fault of processes and clients, and only tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "fault-coverage-processes.md"
ROWS = {"P": 9, "H": 6}
WANTED = {f"{letter}{number}" for letter, count in ROWS.items() for number in range(1, count + 1)}
# The clock belongs to the engine: its tests have names of their own.
BORROWED = {"P9"}

_TEST = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)
_ID = re.compile(r"test_([a-z])(\d\d)_")
_ROW = re.compile(r"^\| ([A-Z])(\d+) \|.*\|$", re.MULTILINE)


def existing_tests() -> set[str]:
    files = (ROOT / "tests").rglob("test_*.py")
    return {name for path in files for name in _TEST.findall(path.read_text())}


def found_by_id() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name in existing_tests():
        if (id_ := _ID.match(name)) and id_[1].upper() in ROWS:
            found.setdefault(f"{id_[1].upper()}{int(id_[2])}", set()).add(name)
    return found


def named_tests() -> dict[str, set[str]]:
    """What the page says, by id."""
    return {
        f"{row[1]}{row[2]}": set(re.findall(r"`(test_\w+)`", row[0]))
        for row in _ROW.finditer(PAGE.read_text())
    }


def test_every_fault_has_a_row_with_tests() -> None:
    named = named_tests()
    assert named.keys() == WANTED
    assert all(named.values())


def test_the_page_names_every_test_of_its_rows_and_no_other() -> None:
    by_id = found_by_id()
    for row, names in named_tests().items():
        if row not in BORROWED:
            assert names == by_id.get(row, set()), (
                f"docs/fault-coverage-processes.md is not up to date: {row}"
            )


def test_every_named_test_exists() -> None:
    named = set().union(*named_tests().values())
    assert sorted(named - existing_tests()) == []
