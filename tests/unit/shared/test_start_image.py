"""Modules of the start image are the real ones, and a source that has changed since is read itself."""

from __future__ import annotations

import marshal
import os
import subprocess
import sys
from pathlib import Path
from types import CodeType

import pytest

from ops.compiled.image import PARTS
from shared.io.start_image import LENGTH_BYTES, PACKAGE, image_path

ROOT = Path(__file__).parents[3]
MODULE = """
from dataclasses import dataclass
@dataclass
class Point:
    x: int = 1
import attrs
@attrs.frozen
class Place:
    name: str
@attrs.frozen
class Person:
    name: str
WORD = "as recorded"
"""
# What `topicsd.record_start` does with the modules of a server, for a package of the test's own.
RECORD = """
import sys
from topicsd import record_start as recording
import collections.abc
def load(): import inside.module
recording._STEPS = {"all": load}
recording._WAYS = ()
recording.main(sys.argv[1])
"""
USE = """
from shared.io.start_image import start_image
import gc, sys
usual = gc.get_threshold()
with start_image("all"):
    import inside.module
import inside.module as m
assert m.Point(2) == m.Point(2) and repr(m.Point()) == "Point(x=1)"
assert gc.get_threshold() == usual and not any(type(f).__name__ == "StartImage" for f in sys.meta_path)
print(m.WORD, "|", type(m.__loader__).__name__, m.__file__, inside.__path__[0])
"""


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """Where modules are looked for; the image is beside them."""
    site = tmp_path / "site-packages"
    (site / "inside").mkdir(parents=True)
    (site / "inside" / "__init__.py").write_text("")
    (site / "inside" / "module.py").write_text(MODULE)
    (site / PACKAGE).mkdir()
    run(site, RECORD, str(site / PACKAGE))
    assert Path(image_path(str(site / PACKAGE), "all")).stat().st_size > 1000
    return site


def run(site: Path, code: str, *words: str, more: str = "", optimize: str = "") -> str:
    path = os.pathsep.join(filter(None, [str(site), str(ROOT), more]))
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *words],
        env={**os.environ, "PYTHONPATH": path, "PYTHONOPTIMIZE": optimize, "PYTHONHASHSEED": "random"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def told(site: Path, word: str, loader: str) -> str:
    return f"{word} | {loader} {site / 'inside' / 'module.py'} {site / 'inside'}"


def test_a_module_comes_from_the_image_and_is_the_same(places: Path) -> None:
    assert run(places, USE) == told(places, "as recorded", "ImageLoader")


def test_a_source_that_has_changed_since_is_read_itself(places: Path) -> None:
    source = places / "inside" / "module.py"
    source.write_text(MODULE.replace("as recorded", "as changed!"))  # of the same size
    assert run(places, USE) == told(places, "as changed!", "SourceFileLoader")


@pytest.mark.parametrize("other", [{"more": "/elsewhere"}, {"optimize": "1"}])
def test_another_python_or_other_places_do_without(places: Path, other: dict[str, str]) -> None:
    assert run(places, USE, **other) == told(places, "as recorded", "SourceFileLoader")


@pytest.mark.parametrize("damage", [b"", b"\0" * 7, b"\0" * 64, b"\xff" * 4096])
def test_without_an_image_that_can_be_read_modules_are_imported_as_ever(places: Path, damage: bytes) -> None:
    Path(image_path(str(places / PACKAGE), "all")).write_bytes(damage)
    assert run(places, USE) == told(places, "as recorded", "SourceFileLoader")
    Path(image_path(str(places / PACKAGE), "all")).unlink()
    assert run(places, USE) == told(places, "as recorded", "SourceFileLoader")


def damage_code(image: Path, module: str, damage: bytes | None) -> bytes:
    """Behind an index that stays good. Returns what is left in the place of that code; None: the file ends there."""
    data = image.read_bytes()
    codes_at = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "big")
    *_, at, length = marshal.loads(data[LENGTH_BYTES:codes_at])[1][module]
    begin = codes_at + at
    assert isinstance(marshal.loads(data[begin : begin + length]), CodeType)
    if damage is None:
        image.write_bytes(data[:begin])
    else:
        image.write_bytes(data[:begin] + damage.ljust(length, b"\0")[:length] + data[begin + length :])
    return image.read_bytes()[begin : begin + length]


@pytest.mark.parametrize(
    ("damage", "shows_as"),
    [
        (None, EOFError),
        (b"s\xff\xff\xff\x7f", EOFError),
        (b"\xff" * 64, ValueError),
        (b"(\1\0\0\0" + b"0", TypeError),
        (b"T", None),  # can be read, but is no code
    ],
    ids=["cut off", "too long", "no such type", "nothing inside", "no code"],
)
def test_code_that_is_damaged_is_read_from_its_source(
    places: Path, damage: bytes | None, shows_as: type[Exception] | None
) -> None:
    left = damage_code(Path(image_path(str(places / PACKAGE), "all")), "inside.module", damage)
    if shows_as is None:
        assert not isinstance(marshal.loads(left), CodeType)
    else:
        with pytest.raises(shows_as):
            marshal.loads(left)
    # The index was good, so it was the image that was asked.
    assert run(places, USE) == told(places, "as recorded", "ImageLoader")


def test_generated_code_is_found_by_its_text(places: Path) -> None:
    use = (
        "from shared.io.start_image import start_image, _image\n"
        "with start_image('all'):\n"
        "    n = len(_image.generated); import inside.module; print(n > 0, n > len(_image.generated))\n"
        "from dataclasses import make_dataclass; print(make_dataclass('Other', ['y'])(3).y)"
    )
    assert run(places, use).split() == ["True", "True", "3"]


def test_generated_code_with_a_hash_in_it_is_found_in_another_process(places: Path) -> None:
    """attrs writes the hash of a name into `__hash__`, and hashes of text are others in every process."""
    use = (
        "from shared.io.start_image import start_image, _image\n"
        "def left(): return sum('hash' in text and 'inside' in name for text, name in _image.generated)\n"
        "with start_image('all'):\n"
        "    print(left()); import inside.module as m; print(left())\n"
        "print(hash(m.Place('a')) == hash(m.Place('a')), hash(m.Place('a')) == hash(m.Person('a')))"
    )
    assert run(places, use).split() == ["2", "0", "True", "False"]


def test_every_part_of_a_start_is_recorded(tmp_path: Path) -> None:
    run(
        tmp_path,
        "import runpy; runpy.run_module('topicsd.record_start', run_name='__main__')",
        str(tmp_path),
    )
    assert all(Path(image_path(str(tmp_path), part)).exists() for part in PARTS)
