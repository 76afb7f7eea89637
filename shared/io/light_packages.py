"""Packages without the parts that a server does not use: other modules that they import, and some of their own.

`import trio` brings everything at once, and TLS, DTLS, subprocesses, files and paths are a fifth of it. A server has
none of them until a client comes in by the full lane. So while trio is imported, stand-ins are in the places of these
modules; behind it they are taken out again, and trio gets a `__getattr__` that imports the real ones. `idna`, for names
of hosts that are not ASCII, is used by trio's own functions: for them its stand-in stays, and asks the real one.

msgspec takes from `typing_extensions`, if that is installed, what `typing` has as well. It is 1.3 MB in each process.
Its own views of types and schemas are only for OpenAPI.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

_PARTS_OF_TRIO = (
    "trio._dtls",
    "trio._file_io",
    "trio._highlevel_open_tcp_stream",
    "trio._highlevel_open_unix_stream",
    "trio._highlevel_ssl_helpers",
    "trio._path",
    "trio._ssl",
    "trio._subprocess",
)
_PARTS_OF_MSGSPEC = ("msgspec._json_schema", "msgspec.inspect", "msgspec.toml", "msgspec.yaml")
# Where their names are: `trio.lowlevel` has one, too.
_SHOWN_IN = {"trio": ("trio", "trio.lowlevel"), "msgspec": ("msgspec", "msgspec.json")}


def lighten_packages() -> None:
    """To be called before they are imported."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """For the packages themselves; whatever is in them is found as ever."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        loader = _LOADERS.get(fullname)
        if loader is None:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = loader(fullname, spec.loader.path)
        return spec


class _LightLoader(SourceFileLoader):
    def stand_ins(self) -> Mapping[str, ModuleType | None]:
        """By name, for as long as the package is imported; None: the import fails."""
        return {}

    def exec_module(self, module: ModuleType) -> None:
        package = module.__name__
        try:
            self._execute_with_stand_ins(module)
        except Exception:
            # One that uses such a part while it is imported: then with all of them.
            for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
                del sys.modules[name]
            super().exec_module(module)
            return
        for shown_in in _SHOWN_IN[package]:
            _import_on_demand(sys.modules[shown_in])

    def _execute_with_stand_ins(self, module: ModuleType) -> None:
        stand_ins = self.stand_ins()
        late = stand_ins.keys() - sys.modules.keys()
        places: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]
        places.update({name: stand_ins[name] for name in late})
        try:
            super().exec_module(module)
        finally:
            for name in late:
                del sys.modules[name]


class _LightMsgspec(_LightLoader):
    def stand_ins(self) -> Mapping[str, ModuleType | None]:
        return {"typing_extensions": None, **{name: _StandIn(name) for name in _PARTS_OF_MSGSPEC}}


class _LightTrio(_LightLoader):
    def stand_ins(self) -> Mapping[str, ModuleType | None]:
        return {"idna": _Forwarder("idna"), **{name: _StandIn(name) for name in _PARTS_OF_TRIO}}


_LOADERS: Mapping[str, type[_LightLoader]] = {"trio": _LightTrio, "msgspec": _LightMsgspec}


class _Forwarder(ModuleType):
    def __getattr__(self, name: str) -> object:
        return getattr(importlib.import_module(self.__name__), name)


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


def _import_on_demand(module: ModuleType) -> None:
    names = {name: value.module for name, value in vars(module).items() if isinstance(value, _Name)}
    parts = {name: value.__name__ for name, value in vars(module).items() if isinstance(value, _StandIn)}
    for name in (*names, *parts):
        delattr(module, name)
    otherwise: Callable[[str], object] | None = vars(module).get("__getattr__")

    def find(name: str) -> object:
        if name in names:
            value = getattr(importlib.import_module(names[name]), name)
            setattr(module, name, value)
            return value
        if name in parts:
            return importlib.import_module(parts[name])
        if otherwise is not None:
            return otherwise(name)
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    module.__dict__["__getattr__"] = find
