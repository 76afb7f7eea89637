"""The code of a start in a few files, instead of one for each module.

`import` looks for a module in several directories, opens a file for it and checks that, mostly in Python: for the 300
modules of a start this takes a tenth of its time. Another tenth goes into code that attrs and dataclasses write and
compile for each class. `topicsd compile` puts all of it together (`topicsd/record_start.py`), in parts that are
opened one after the other as a start goes on.

A module is taken from here only if its source has the size and the time of change that it had then, as with any `.pyc`,
and generated code only for the very same text. A part is used only by the same Python with the same places to look for
modules. Whatever does not fit is imported as ever. This is the first code that `topicsd serve` runs, so it imports
nothing but what every Python has loaded by then.
"""

from __future__ import annotations

import builtins
import gc
import marshal
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import BuiltinImporter, ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType

PACKAGE = "topicsd_compiled"
"""Beside the compiled modules, which the same command makes."""

# Modules that compile what they have written themselves, and the built-in functions by which they do.
GENERATORS: Mapping[str, Sequence[str]] = {"attr._make": ("compile", "hash"), "dataclasses": ("exec",)}

# Of a module, by its name: its source, when that was changed, its size, the place of its `.pyc`, is it a package, where
# its code is, how long.
Entry = tuple[str, int, int, str | None, bool, int, int]
# By text and file name, which is an invented one.
Generated = dict[tuple[str, str], CodeType]
# A file begins with the length of its index. Behind that comes the code of modules, one after the other.
LENGTH_BYTES = 8
# Objects made while modules are imported; usually it is 700.
_COLLECT_AFTER = 10_000


def image_path(directory: str, part: str) -> str:
    return os.path.join(directory, f"start-{part}.image")


def image_key() -> tuple[object, ...]:
    """Of the Python and the installation that an image is for."""
    # The first place is where the server happens to be started, or where its script lies.
    places = sys.path if sys.flags.safe_path else sys.path[1:]
    return (sys.implementation.cache_tag, sys.version, sys.flags.optimize, *places)


class StartImage:
    """Finds the modules of one part, in front of all others."""

    def __init__(self) -> None:
        self.generated: Generated = {}
        self._modules: dict[str, Entry] = {}
        self._fd: int | None = None
        self._codes_at = 0

    def open(self, directory: str, part: str) -> None:
        """Nothing is found if there is no such part, or if it is for somebody else."""
        try:
            self._fd = os.open(image_path(directory, part), os.O_RDONLY | os.O_CLOEXEC)
            length = int.from_bytes(os.read(self._fd, LENGTH_BYTES), "big")
            length = min(length, os.fstat(self._fd).st_size)
            key, modules, generated = marshal.loads(os.read(self._fd, length))  # noqa: S302 - as safe as a .pyc
            self._codes_at = LENGTH_BYTES + length
        except Exception:  # there is none, or one with damage, which may look like anything
            return
        if key == image_key():
            self._modules, self.generated = modules, generated

    def close(self) -> None:
        self._modules, self.generated = {}, {}
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        entry = self._modules.get(fullname)
        if entry is None:
            return None
        file, _, _, cached, is_package, at, length = entry
        directory = os.path.dirname(file)
        if path is not None and (os.path.dirname(directory) if is_package else directory) not in path:
            return None  # in a package that has come from somewhere else
        if not _is_unchanged(entry):
            return None
        loader = ImageLoader(fullname, file, self, (at, length))
        spec = ModuleSpec(fullname, loader, origin=file, is_package=is_package)
        spec.has_location = True
        spec.cached = cached  # else it would be put together from the name of the source, for each module
        if is_package:
            spec.submodule_search_locations = [directory]
        return spec

    def is_current(self) -> bool:
        """Is it there, for this Python, and of the sources that are there now?"""
        return bool(self._modules) and all(map(_is_unchanged, self._modules.values()))

    def code_at(self, at: int, length: int) -> CodeType | None:
        """None: that part is closed, or damaged there."""
        if self._fd is None:
            return None
        try:
            code = marshal.loads(os.pread(self._fd, length, self._codes_at + at))  # noqa: S302
        except Exception:  # damage may look like anything
            return None
        return code if isinstance(code, CodeType) else None

    def compile(self, text: str, filename: str, mode: str) -> CodeType:
        """In the place of the built-in function in modules that write code."""
        return self.generated.pop((text, filename), None) or builtins.compile(text, filename, mode)

    def hash(self, value: object) -> int:
        """In the same way: attrs writes the number of a name into the text, where it tells classes apart.

        The usual one is another in every process, and the text would never be the same."""
        if type(value) is not str:
            return builtins.hash(value)
        return int.from_bytes(value.encode(), "big") % sys.hash_info.modulus

    def exec(self, text: str, names: dict[str, object], local_names: dict[str, object]) -> None:
        """In the same way."""
        exec(self.compile(text, "<string>", "exec"), names, local_names)  # noqa: S102 - as the caller does


def _is_unchanged(entry: Entry) -> bool:
    file, changed_ns, size, *_ = entry
    try:
        now = os.stat(file)
    except OSError:
        return False
    return (now.st_mtime_ns, now.st_size) == (changed_ns, size)


class ImageLoader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, image: StartImage, where: tuple[int, int] | None) -> None:
        """`where` its code is in the image; None: not there."""
        super().__init__(fullname, path)
        self._image = image
        self._where = where

    def get_code(self, fullname: str) -> CodeType | None:
        code = None if self._where is None else self._image.code_at(*self._where)
        return super().get_code(fullname) if code is None else code

    def exec_module(self, module: ModuleType) -> None:
        for builtin in GENERATORS.get(module.__name__, ()):
            module.__dict__[builtin] = getattr(self._image, builtin)
        super().exec_module(module)


_image = StartImage()


@contextmanager
def start_image(part: str) -> Iterator[None]:
    """While modules of this part are imported. One at a time.

    With few collections of garbage: each looks at all that is new, and nearly all of that stays. With none at all the
    rest would take 2 MB for good."""
    thresholds = gc.get_threshold()
    gc.set_threshold(_COLLECT_AFTER)
    # Behind our other finders, which are pickier.
    sys.meta_path.insert(sys.meta_path.index(BuiltinImporter), _image)
    # Not by importing that package: it has a table that only those need who run what is compiled.
    for place in sys.path:
        if place.endswith("-packages"):
            _image.open(os.path.join(place, PACKAGE), part)
            break
    try:
        yield
    finally:
        _image.close()
        sys.meta_path.remove(_image)
        gc.freeze()  # it stays for good: no collection need look at it again
        gc.set_threshold(*thresholds)
