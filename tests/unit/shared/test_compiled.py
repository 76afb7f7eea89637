"""Compiled modules are used all together, or, if one source has changed since, not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ops.compiled.hot_modules import GROUPS
from shared.io import compiled

HOT = [module for modules in GROUPS.values() for module in modules]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A `topicsd_compiled` that claims to hold one module, made of the source as it is."""
    directory = tmp_path / compiled.PACKAGE
    directory.mkdir()
    (directory / "names.so").write_bytes(b"no library at all")
    digest = compiled.source_digest("shared.names")
    (directory / "__init__.py").write_text(
        f"SOURCES = {{'shared.names': {digest!r}}}\nFILES = {{'shared.names': 'names.so'}}\n"
    )
    return directory


def found_by_a_new_process(path: Path, **environment: str) -> str:
    """Where a process would load shared.names from."""
    code = (
        "from shared.io.compiled import use_compiled; import importlib.util;"
        "used = use_compiled(); print(used, importlib.util.find_spec('shared.names').origin)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{path}:{Path(__file__).parents[3]}", "TOPICSD_COMPILED": "", **environment},
        capture_output=True,
        text=True,
        check=True,
    )  # fmt: skip
    return done.stdout.strip()


def test_a_module_compiled_from_this_source_is_found_before_the_source(package: Path) -> None:
    assert found_by_a_new_process(package.parent) == f"True {package / 'names.so'}"


def test_a_source_that_has_changed_since_switches_all_of_them_off(package: Path) -> None:
    table = package / "__init__.py"
    table.write_text(table.read_text().replace("'shared.names': '", "'shared.names': '0", 1))
    used, origin = found_by_a_new_process(package.parent).split()
    assert used == "False" and origin.endswith("shared/names.py")


def test_the_environment_switches_them_off(package: Path) -> None:
    used, origin = found_by_a_new_process(package.parent, TOPICSD_COMPILED="0").split()
    assert used == "False" and origin.endswith("shared/names.py")


def test_every_hot_module_exists() -> None:
    missing = [module for module in HOT if compiled.source_digest(module) is None]
    assert HOT and not missing
