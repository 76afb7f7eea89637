"""What mypyc 2.4 compiles wrongly must not stand in a hot module: it evaluates the bounds of a slice twice, so a call
in one would happen twice (a `send`, say, with its bytes on the wire two times)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ops.compiled.hot_modules import GROUPS
from ops.compiled.layout import HOT_FUNCTIONS, defined
from shared.io.compiled import source_path

ROOT = Path(__file__).parents[2]
PURE = frozenset({"len", "min", "max"})


def calls_in_slices(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Slice):
            for part in ast.walk(node):
                pure = not isinstance(part, ast.Call | ast.NamedExpr | ast.Await)
                if not pure and not (isinstance(part, ast.Call) and ast.unparse(part.func) in PURE):
                    yield f"{part.lineno}: {ast.unparse(part)}"


def test_the_rule_can_fail() -> None:
    assert list(calls_in_slices("rest = rest[sock.send(rest) :]"))
    assert not list(calls_in_slices("rest = rest[: len(rest) - 4]"))


def test_no_slice_of_a_hot_module_calls_anything_that_matters() -> None:
    modules = [module for group in GROUPS.values() for module in group]
    found = [
        f"{module}:{call}"
        for module in modules
        for call in calls_in_slices(Path(source_path(module)).read_text())
    ]
    assert not found, "\n".join(found)


def classes_of(source: str) -> Iterator[tuple[str, list[str]]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            yield node.name, [ast.unparse(base).partition("[")[0] for base in node.bases]


def test_no_class_of_a_hot_module_is_derived_from_elsewhere() -> None:
    """Compiled classes have no room for what an interpreted subclass adds: making one raises, at run time only."""
    hot = {module for group in GROUPS.values() for module in group}
    compiled = {name for module in hot for name, _ in classes_of(Path(source_path(module)).read_text())}
    assert "PendingAppend" in compiled
    found = []
    for package in ("topicsd", "shard_worker", "gateway", "shared", "ops"):
        for path in (ROOT / package).rglob("*.py"):
            if ".".join(path.relative_to(ROOT).with_suffix("").parts) in hot:
                continue
            found += [
                f"{path.relative_to(ROOT)}: {name} derives from {base}"
                for name, bases in classes_of(path.read_text())
                for base in bases
                if base in compiled
            ]
    assert not found, "\n".join(found)


BEFORE_ANY_IS_COMPILED = """
import sys, topicsd.entry, topicsd.loader_start, gateway.__main__, shard_worker.__main__
from topicsd.loader import load_what_all_share
load_what_all_share()
print(*sys.modules)
"""


def test_no_hot_module_is_loaded_before_compiled_ones_are_looked_for() -> None:
    """Compiled modules call each other's functions directly. One that has come from its source has set nothing up for
    that: the first call of a function of it that uses a constant ends the process."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", BEFORE_ANY_IS_COMPILED], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "shared.names" in loaded
    assert not loaded & {module for group in GROUPS.values() for module in group}


def test_every_hot_function_is_there_to_be_compiled() -> None:
    """A name that no longer means anything is no error to the compiler: its function would quietly lie far away."""
    names = HOT_FUNCTIONS.read_text().split()
    assert len(names) > 200
    gone = set(names) - set(defined())
    assert not gone, f"run `python -m perf.hot_functions`, or take out: {sorted(gone)}"
