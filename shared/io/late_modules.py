"""Modules of the standard library that are imported at start and, by most processes, never used.

trio imports `ssl` and `hmac` for streams that we do not have: the gateway speaks plain HTTP behind a proxy. With them
comes OpenSSL, which is 5 MB in each process. `load_late` puts a module in their place that becomes the real one when it
is first asked for anything. (`importlib.util.LazyLoader` would do it at the second import already.)
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from types import ModuleType

_lock = threading.RLock()


class _LateModule(ModuleType):
    def __getattr__(self, name: str) -> object:
        # Names like __path__ are asked for by the import system itself.
        if name.startswith("__"):
            raise AttributeError(name)
        with _lock:
            if type(self) is _LateModule and not self.__dict__.get("_loading"):
                self._loading = True
                assert self.__spec__ is not None and self.__spec__.loader is not None
                self.__spec__.loader.exec_module(self)
                del self._loading
                self.__class__ = ModuleType  # type: ignore[assignment]
        return ModuleType.__getattribute__(self, name)


def load_late(*names: str) -> None:
    """Modules without submodules; those that are loaded already stay as they are."""
    for name in names:
        if name in sys.modules:
            continue
        spec = importlib.util.find_spec(name)
        assert spec is not None, name
        module = _LateModule(name, None)
        module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, spec.origin
        sys.modules[name] = module


def load_openssl_late() -> None:
    """To be called before trio is imported."""
    load_late("ssl", "hmac")
