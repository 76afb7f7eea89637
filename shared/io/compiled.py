"""Compiled modules, if this installation has them: `topicsd compile` made them from the very sources that are here.

They live in a package of their own, `topicsd_compiled`, beside the other installed ones, so the tree of sources stays
as it is. Its table names each compiled module, the file that holds it and the checksum of the source it was made from.
Modules call each other's compiled code directly, so they are used all together or, if only one source has changed
since, not at all: a process then runs the sources, only slower.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType
from typing import Final

from xxhash import xxh3_64_hexdigest

PACKAGE: Final = "topicsd_compiled"
SWITCH: Final = "TOPICSD_COMPILED"
"""In the environment: 0 = run the sources even if compiled modules are there."""

_ROOT: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class CompiledFinder:
    """Finds compiled modules by name, in front of their sources."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(fullname)
        if file is None:
            return None
        return spec_from_file_location(fullname, file, loader=ExtensionFileLoader(fullname, file))


def use_compiled() -> bool:
    """Let later imports find compiled modules. Call it before the first of them is imported."""
    if any(isinstance(finder, CompiledFinder) for finder in sys.meta_path):
        return True
    if os.environ.get(SWITCH) == "0":
        return False
    try:
        table = importlib.import_module(PACKAGE)
    except ImportError:
        return False
    sources: dict[str, str] = table.SOURCES
    if any(source_digest(module) != digest for module, digest in sources.items()):
        return False
    directory = os.path.dirname(table.__file__ or "")
    files = {module: os.path.join(directory, name) for module, name in table.FILES.items()}
    sys.meta_path.insert(0, CompiledFinder(files))
    return True


def source_path(module: str) -> str:
    return os.path.join(_ROOT, *module.split(".")) + ".py"


def source_digest(module: str) -> str | None:
    """None: there is no such source."""
    try:
        with open(source_path(module), "rb") as source:
            return xxh3_64_hexdigest(source.read())
    except FileNotFoundError:
        return None
