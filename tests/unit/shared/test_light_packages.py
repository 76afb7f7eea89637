"""What a server does not use of a package is not there, and whoever asks for it gets the real thing."""

from __future__ import annotations

import subprocess
import sys

import pytest

START = """
import sys
from shared.io.late_modules import lighten_trio
lighten_trio()
import trio
late = ["_dtls", "_file_io", "_highlevel_open_tcp_stream", "_highlevel_open_unix_stream", "_highlevel_ssl_helpers"]
late += ["_path", "_ssl", "_subprocess"]
assert not {f"trio.{name}" for name in late} & set(sys.modules)
assert not {"subprocess", "pathlib", "idna"} & set(sys.modules)
"""
WHOLE = "import trio; print(*sorted(n for n in dir(trio) if n[0] != '_'), *dir(trio.lowlevel))"


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "use",
    [
        "from trio._ssl import SSLStream; assert trio.SSLStream is SSLStream",
        "from trio import DTLSEndpoint, Path, open_file; assert Path is sys.modules['trio._path'].Path",
        "assert trio.open_unix_socket is trio.open_unix_socket",
        "assert trio.run(trio.run_process, ['true']).returncode == 0",
        "assert trio.run(trio.Path('/').exists)",
        "assert trio.lowlevel.open_process is sys.modules['trio._subprocess'].open_process",
        "from trio._socket import _idna; assert _idna.encode('bücher') == b'xn--bcher-kva'; import idna.core",
        "import idna; assert idna.encode('bücher') == b'xn--bcher-kva' and type(idna) is type(sys)",
        "from trio._socket import _idna; import idna; assert issubclass(_idna.IDNAError, UnicodeError)",
        "import trio.testing; assert trio.SSLListener and not hasattr(trio, 'nonsense')",
        "assert not hasattr(trio.lowlevel, 'nonsense')",
        # Called again, as a process does that was forked from one which has trio, it changes nothing.
        "lighten_trio(); import trio; assert trio.SSLStream",
        "from importlib import reload; reload(trio); assert trio.SSLStream and trio.run",
        "from concurrent.futures import ThreadPoolExecutor as P\n"
        "with P(8) as pool: assert len(set(pool.map(lambda _: trio.SSLStream, range(64)))) == 1",
    ],
)
def test_a_part_is_the_real_one_when_it_is_used(use: str) -> None:
    assert run(f"{START}\n{use}") == ""


def test_every_public_name_is_there_all_the_same() -> None:
    names = run(WHOLE).split()
    assert {"run", "SSLStream", "open_process"} <= set(names)
    run(f"{START}\nfor name in {names!r}: assert hasattr(trio, name) or hasattr(trio.lowlevel, name), name")


def test_msgspec_does_without_what_typing_has_as_well() -> None:
    use = """
import msgspec
from typing import Generic, NotRequired, TypedDict, TypeVar
assert "typing_extensions" not in sys.modules
T = TypeVar("T")
class Given(TypedDict):
    a: int
    b: NotRequired[str]
class Box(msgspec.Struct, Generic[T]):
    x: T
assert msgspec.convert({"a": 1}, Given) == {"a": 1}
assert msgspec.json.decode(b'{"x":[1]}', type=Box[list[int]]).x == [1]
import typing_extensions
assert typing_extensions.TypedDict
"""
    assert run(f"{START}\n{use}") == ""


@pytest.mark.parametrize(
    "use",
    [
        "assert msgspec.json.schema(int) == {'type': 'integer'} and msgspec.json.schema_components([int])",
        "assert type(msgspec.inspect.type_info(int)).__name__ == 'IntType'",
        "import msgspec.inspect; assert msgspec.inspect is sys.modules['msgspec.inspect']",
        "from msgspec import toml, yaml; assert toml.decode(b'a = 1') == {'a': 1}",
        "assert not hasattr(msgspec, 'nonsense') and not hasattr(msgspec.json, 'nonsense')",
    ],
)
def test_schemas_and_types_of_msgspec_are_there_when_they_are_used(use: str) -> None:
    absent = "assert not {'msgspec.inspect', 'msgspec._json_schema', 'msgspec.toml'} & set(sys.modules)"
    assert run(f"{START}\nimport msgspec\n{absent}\n{use}") == ""


def test_a_trio_that_needs_such_a_part_at_once_gets_all_of_them() -> None:
    told = run(
        "import sys; from shared.io import light_packages as light\n"
        "light._PARTS_OF_TRIO += ('trio._abc',)  # whose classes others derive from\n"
        "light.lighten_packages(); import trio, trio._ssl\n"
        "print(trio.SSLStream is trio._ssl.SSLStream, issubclass(trio.SSLStream, trio.abc.Stream))\n"
        "print(trio.run(trio.sleep, 0), 'trio._subprocess' in sys.modules)"
    )
    assert told.split() == ["True", "True", "None", "True"]
