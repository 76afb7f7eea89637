"""Modules that are imported at start and, by most processes, never used: trio wants them for what we do not do.

`ssl` and `hmac` are for streams that we do not have: the gateway speaks plain HTTP behind a proxy. With them comes
OpenSSL, which is 5 MB in each process. `load_late` puts a module in their place that becomes the real one when it is
first asked for anything. (`importlib.util.LazyLoader` would do it at the second import already.) And `ctypes.util` is
asked where the library of threads is, to give them names: it would run a program, ldconfig, to find what has the same
name everywhere, and brings several formats of compression with it. `platform` is asked by two libraries for what is
known here, and compiles patterns for all other questions; so do `textwrap` and `tokenize`, which nobody asks anything.
What trio has of its own for such things stays away, too: `shared/io/light_packages.py`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import threading
from functools import partial
from types import ModuleType

from shared.io.light_packages import lighten_packages

_lock = threading.RLock()


class _LateModule(ModuleType):
    def __getattr__(self, name: str) -> object:
        # Names like __path__ are asked for by the import system itself.
        if name.startswith("__"):
            raise AttributeError(name)
        _load(self)
        return ModuleType.__getattribute__(self, name)


def _load(module: ModuleType) -> None:
    with _lock:
        if type(module) is _LateModule and not module.__dict__.get("_loading"):
            module.__dict__["_loading"] = True
            assert module.__spec__ is not None and module.__spec__.loader is not None
            module.__spec__.loader.exec_module(module)
            del module.__dict__["_loading"]
            module.__class__ = ModuleType  # type: ignore[assignment]


def load_late(*names: str) -> None:
    """Modules without submodules; those that are loaded already stay as they are."""
    for name in names:
        if name in sys.modules:
            continue
        spec = importlib.util.find_spec(name)
        assert spec is not None, name
        module = _LateModule(name, None)
        module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, spec.origin
        module.__package__ = spec.parent
        sys.modules[name] = module


def lighten_trio() -> None:
    """To be called before trio is imported, and msgspec."""
    lighten_packages()
    load_late("ssl", "hmac", "ctypes.util", "platform", "textwrap", "tokenize")
    platform = sys.modules["platform"]
    if isinstance(platform, _LateModule):
        # They are those of the module itself, once it is loaded.
        platform.__dict__["python_implementation"] = lambda: {"cpython": "CPython"}.get(
            sys.implementation.name, ""
        )
        platform.__dict__["system"] = lambda: os.uname().sysname
    util = sys.modules["ctypes.util"]
    if isinstance(util, _LateModule):
        util.__dict__["find_library"] = partial(_find_library, util)
        ctypes.__dict__["util"] = util  # as an import of it would have done


def _find_library(util: ModuleType, name: str) -> object:
    if name == "pthread":
        return "libpthread.so.0"
    _load(util)
    return util.__dict__["find_library"](name)
