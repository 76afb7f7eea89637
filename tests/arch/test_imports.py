"""Imports point one way, cores stay free of I/O, and one file touches what must survive a crash.

Each rule is a function from a file's place and syntax tree to complaints, and first proves on a bad
snippet that it can complain.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]

# Package -> ours that it may import besides itself.
LAYERS: dict[str, frozenset[str]] = {
    "shared": frozenset(),
    "shard_worker": frozenset({"shared"}),
    "gateway": frozenset({"shared"}),
    "ops": frozenset({"shared"}),
    "topicsd": frozenset({"shared", "shard_worker", "gateway", "ops"}),
}
OURS = frozenset(LAYERS) | {"tests", "perf"}

EFFECTS = frozenset(
    {
        "trio", "os", "socket", "time", "random", "threading", "logging", "subprocess", "select",
        "asyncio", "pathlib",
    }
)  # fmt: skip

DURABLE_CALLS = frozenset({"fsync", "fdatasync", "rename", "renames", "replace", "unlink", "remove"})
DURABLE_OWNER = PurePosixPath("shared/io/durable_fs.py")
# Modules that bring a rename or a removal of their own.
DURABLE_MODULES = frozenset({"pathlib", "shutil"})
# (file, call) -> why it is not about data, e.g. a stale Unix socket. Unused entries fail below.
DURABLE_EXCEPTIONS: dict[tuple[str, str], str] = {
    ("shard_worker/worker.py", "unlink"): "the name of a Unix socket that a killed worker left behind",
}


def without_main_block(tree: ast.Module) -> ast.Module:
    """`if __name__ == "__main__":` is a shell of its own, wherever it stands."""

    def is_main(node: ast.stmt) -> bool:
        return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"

    return ast.Module(body=[node for node in tree.body if not is_main(node)], type_ignores=[])


def imported(path: PurePosixPath, tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Full dotted names of all imports, wherever they stand, with their line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = path.parts[: len(path.parts) - node.level]
                base = ".".join([*package, *([base] if base else [])])
            for alias in node.names:
                yield f"{base}.{alias.name}", node.lineno


def layer_complaints(path: PurePosixPath, tree: ast.Module) -> list[str]:
    package = path.parts[0]
    allowed = LAYERS[package] | {package}
    return [
        f"{path}:{line}: {package} may not import {name}"
        for name, line in imported(path, tree)
        if name.split(".")[0] in OURS - allowed
    ]


def is_sans_io(path: PurePosixPath) -> bool:
    in_shared = path.parts[0] == "shared" and path.parts[1] != "io"
    return in_shared or "core" in path.parts[:-1]


def sans_io_complaints(path: PurePosixPath, tree: ast.Module) -> list[str]:
    if not is_sans_io(path):
        return []
    pure = without_main_block(tree)
    # The I/O half of shared would bring all of it in through the back door.
    return [
        f"{path}:{line}: sans-IO code may not import {name}"
        for name, line in imported(path, pure)
        if name.split(".")[0] in EFFECTS or (name + ".").startswith("shared.io.")
    ]


def durable_uses(path: PurePosixPath, tree: ast.Module) -> Iterator[tuple[str, int]]:
    aliases = {"os"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {alias.asname for alias in node.names if alias.name == "os" and alias.asname}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in aliases and node.attr in DURABLE_CALLS:
                yield node.attr, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module in ("os", "posix"):
            for alias in node.names:
                if alias.name in DURABLE_CALLS:
                    yield alias.name, node.lineno
    for name, line in imported(path, tree):
        if name.split(".")[0] in DURABLE_MODULES:
            yield name.split(".")[0], line


def durable_complaints(path: PurePosixPath, tree: ast.Module) -> list[str]:
    if path.parts[0] not in ("shared", "shard_worker") or path == DURABLE_OWNER:
        return []
    return [
        f"{path}:{line}: only {DURABLE_OWNER} may use {name} (DURABLE_EXCEPTIONS if it is not about data)"
        for name, line in durable_uses(path, tree)
        if (str(path), name) not in DURABLE_EXCEPTIONS
    ]


RULES = [layer_complaints, sans_io_complaints, durable_complaints]
SOURCES = sorted(path for package in LAYERS for path in (ROOT / package).rglob("*.py"))


def parse(source: str) -> ast.Module:
    return ast.parse(source)


@pytest.mark.parametrize(
    ("rule", "place", "snippet"),
    [
        (layer_complaints, "shared/x.py", "import gateway.edge"),
        (layer_complaints, "shared/io/x.py", "from topicsd import cli"),
        (layer_complaints, "shard_worker/x.py", "from gateway.core import auth"),
        (layer_complaints, "gateway/x.py", "def f():\n    import shard_worker"),
        (layer_complaints, "gateway/x.py", "if TYPE_CHECKING:\n    from shard_worker.core import topic_log"),
        (layer_complaints, "ops/coldstore/x.py", "import shard_worker.disk"),
        (layer_complaints, "topicsd/x.py", "import tests.support"),
        (sans_io_complaints, "shared/x.py", "import os.path"),
        (sans_io_complaints, "shared/x.py", "def f():\n    from time import time"),
        (sans_io_complaints, "shared/deep/x.py", "import trio"),
        (sans_io_complaints, "shared/x.py", "from shared.io.durable_fs import FileSystem"),
        (sans_io_complaints, "shared/x.py", "from .io import durable_fs"),
        (sans_io_complaints, "shared/x.py", "from shared import io"),
        (sans_io_complaints, "gateway/core/x.py", "import logging"),
        (sans_io_complaints, "shard_worker/core/deep/x.py", "import random as r"),
        (sans_io_complaints, "topicsd/core/x.py", "import asyncio, subprocess"),
        (durable_complaints, "shared/x.py", "import os\nos.fsync(3)"),
        (durable_complaints, "shared/io/logs.py", "import os as o\no.replace('a', 'b')"),
        (durable_complaints, "shard_worker/disk/x.py", "from os import unlink"),
        (durable_complaints, "shard_worker/disk/x.py", "import os\ncall = os.rename"),
        (durable_complaints, "shard_worker/disk/x.py", "from pathlib import Path"),
    ],
)
def test_each_rule_can_fail(rule: object, place: str, snippet: str) -> None:
    assert rule in RULES
    (chosen,) = [one for one in RULES if one is rule]
    assert chosen(PurePosixPath(place), parse(snippet))


@pytest.mark.parametrize(
    ("place", "snippet"),
    [
        ("shared/x.py", "from shared.limits import MiB\nimport msgspec"),
        ("shared/x.py", "if __name__ == '__main__':\n    import os, sys"),
        ("shared/io/x.py", "import os, time\nos.open('x', 0)"),
        ("gateway/edge.py", "import trio, socket\nfrom shared import wire\nfrom . import fast_lane"),
        ("shard_worker/disk/x.py", "fs.rename('a', 'b')\n'text'.replace('a', 'b')"),
        ("shared/io/durable_fs.py", "import os\nos.fsync(3)"),
        ("topicsd/cli.py", "import os, gateway, shard_worker\nos.unlink('socket')"),
        ("gateway/core.py", "import time"),
    ],
)
def test_no_rule_complains_about_good_code(place: str, snippet: str) -> None:
    for rule in RULES:
        assert rule(PurePosixPath(place), parse(snippet)) == []


def test_the_sources_were_found() -> None:
    assert ROOT / DURABLE_OWNER in SOURCES


def test_every_source_keeps_every_rule() -> None:
    complaints: list[str] = []
    for source in SOURCES:
        path, tree = PurePosixPath(source.relative_to(ROOT)), parse(source.read_text())
        for rule in RULES:
            complaints += rule(path, tree)
    assert not complaints, "\n".join(complaints)


def test_every_exception_is_still_needed() -> None:
    for place, name in DURABLE_EXCEPTIONS:
        tree = parse((ROOT / place).read_text())
        assert name in {used for used, _ in durable_uses(PurePosixPath(place), tree)}, (place, name)
