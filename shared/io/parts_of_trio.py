"""trio without the parts that a server does not use: they are imported when somebody asks for one of their names.

`import trio` brings everything at once, and TLS, DTLS, subprocesses, files and paths are a fifth of it. A server has
none of them until a client comes in by the full lane. So while trio is imported, stand-ins are in the places of these
modules; behind it they are taken out again, and trio gets a `__getattr__` that imports the real ones.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

_LATE = (
    "trio._dtls",
    "trio._file_io",
    "trio._highlevel_open_tcp_stream",
    "trio._highlevel_open_unix_stream",
    "trio._highlevel_ssl_helpers",
    "trio._path",
    "trio._ssl",
    "trio._subprocess",
)
# Where their names are: `trio.lowlevel` has one, too.
_SHOWN_IN = ("trio", "trio.lowlevel")


class _Name:
    """In the place of whatever has this name in a module that is not there yet."""

    def __init__(self, module: str) -> None:
        self.module = module


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> object:
        # Names like __path__ are asked for by the import system itself.
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(self.__name__)


class _LightLoader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        late = [name for name in _LATE if name not in sys.modules]
        sys.modules.update({name: _StandIn(name) for name in late})
        try:
            super().exec_module(module)
        finally:
            for name in late:
                del sys.modules[name]
        for shown_in in _SHOWN_IN:
            _import_on_demand(sys.modules[shown_in])


class _Finder:
    """Once: for trio itself, whose parts are found as ever."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "trio":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _LightLoader(fullname, spec.loader.path)
        return spec


def import_parts_on_demand() -> None:
    """To be called before trio is imported."""
    if "trio" not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _import_on_demand(module: ModuleType) -> None:
    names = {name: value.module for name, value in vars(module).items() if isinstance(value, _Name)}
    for name in names:
        delattr(module, name)
    otherwise: Callable[[str], object] | None = vars(module).get("__getattr__")

    def find(name: str) -> object:
        if name in names:
            value = getattr(importlib.import_module(names[name]), name)
            setattr(module, name, value)
            return value
        if otherwise is not None:
            return otherwise(name)
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    module.__dict__["__getattr__"] = find
