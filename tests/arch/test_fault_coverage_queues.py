"""docs/fault-coverage-queues.md names a test for every row about queues and routers, and only tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "fault-coverage-queues.md"
CRASH = ROOT / "tests" / "crash"
SOURCE = "".join((CRASH / name).read_text() for name in ("test_queue_faults.py", "test_router_faults.py"))
WANTED = {1, 2, 3, 4, 5, 6}

_TEST = re.compile(r"^def (test_q(\d\d)_\w+)\(", re.MULTILINE)
_ROW = re.compile(r"^\| Q(\d+) \|.*\|$", re.MULTILINE)


def existing_tests(source: str) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for name, number in _TEST.findall(source):
        found.setdefault(int(number), set()).add(name)
    return found


def named_tests(page: str) -> dict[int, set[str]]:
    return {int(row[1]): set(re.findall(r"`(test_\w+)`", row[0])) for row in _ROW.finditer(page)}


def test_every_row_has_a_test() -> None:
    assert existing_tests(SOURCE).keys() >= WANTED


def test_the_page_and_the_tests_agree() -> None:
    assert named_tests(PAGE.read_text()) == existing_tests(SOURCE)


def test_a_test_stands_in_the_row_that_its_name_says() -> None:
    for number, names in named_tests(PAGE.read_text()).items():
        assert names and all(name.startswith(f"test_q{number:02d}_") for name in names), number


def test_a_missing_or_misplaced_test_would_be_seen() -> None:
    page = PAGE.read_text()
    name = min(existing_tests(SOURCE)[2])
    assert named_tests(page.replace(f"`{name}`", "")) != existing_tests(SOURCE)
    assert named_tests(page.replace("| Q2 |", "| Q9 |")).keys() != named_tests(page).keys()
