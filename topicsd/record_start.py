"""Writes the parts of the start image (`shared/io/start_image.py`) into the directory that it is told.

What belongs to a part is not listed anywhere: this process imports what those of a server do, in the order in which
they do, and what is new in it after a step is that part. So it is a process of its own: `ops/compiled/image.py`.
"""

from __future__ import annotations

import marshal
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from shared.io.start_image import (
    GENERATORS,
    LENGTH_BYTES,
    Entry,
    Generated,
    ImageLoader,
    StartImage,
    image_key,
    image_path,
)


class _Recorder(StartImage):
    """An image without modules, which keeps what is compiled instead."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in GENERATORS:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = ImageLoader(fullname, spec.loader.path, self, None)
        return spec

    def compile(self, text: str, filename: str, mode: str) -> CodeType:
        code = self.generated[text, filename] = compile(text, filename, mode)
        return code


def _load_for_all() -> None:
    from topicsd.loader import load_what_all_share

    load_what_all_share()


def _load_for_supervisor() -> None:
    import topicsd.serving
    import topicsd.settings_in_force
    import topicsd.supervisor  # noqa: F401 - whatever they bring


def _load_for_children() -> None:
    from topicsd.loader import load_what_children_share

    load_what_children_share()


def _load_for_gateway() -> None:
    import gateway.process  # noqa: F401 - whatever it brings


def _load_for_worker() -> None:
    import shard_worker.worker  # noqa: F401 - whatever it brings


_STEPS: Mapping[str, Callable[[], None]] = {
    "all": _load_for_all,
    "supervisor": _load_for_supervisor,
    "children": _load_for_children,
    "gateway": _load_for_gateway,
    "worker": _load_for_worker,
}
# A process goes through one of these, behind what is for all.
_WAYS = (("supervisor",), ("children", "gateway"), ("children", "worker"))


def main(directory: str) -> None:
    recorder = _Recorder()
    sys.meta_path.insert(0, recorder)
    had = set(sys.modules)  # hardly more than Python itself has before it runs any code of ours
    had |= _record(recorder, directory, "all", had)
    for way in _WAYS:
        pid = os.fork()
        if pid == 0:
            for part in way:
                had |= _record(recorder, directory, part, had)
            os._exit(0)
        if os.waitpid(pid, 0)[1] != 0:
            sys.exit(f"the code of {way[-1]} does not load")


def _record(recorder: _Recorder, directory: str, part: str, had: set[str]) -> set[str]:
    """Returns the names of the modules that are there now."""
    recorder.generated = {}
    _STEPS[part]()
    found = {name: module for name, module in sys.modules.items() if name not in had}
    _write(image_path(directory, part), found, recorder.generated)
    return set(sys.modules)


def _write(path: str, modules: Mapping[str, ModuleType], generated: Generated) -> None:
    entries: dict[str, Entry] = {}
    codes: list[bytes] = []
    at = 0
    for name, module in modules.items():
        # Neither what is only to be imported later, nor extensions, nor what has a loader of its own.
        spec = module.__spec__ if type(module) is ModuleType else None
        if spec is None or type(spec.loader) not in (SourceFileLoader, ImageLoader):
            continue
        assert isinstance(spec.loader, SourceFileLoader)
        source = spec.loader.path
        stat = os.stat(source)
        code = marshal.dumps(spec.loader.get_code(name))
        is_package = spec.submodule_search_locations is not None
        entries[name] = (source, stat.st_mtime_ns, stat.st_size, spec.cached, is_package, at, len(code))
        codes.append(code)
        at += len(code)
    index = marshal.dumps((image_key(), entries, generated))  # type: ignore[arg-type]  # keys may be tuples
    with open(path, "wb") as file:
        file.writelines([len(index).to_bytes(LENGTH_BYTES, "big"), index, *codes])


if __name__ == "__main__":
    main(sys.argv[1])
