"""A module that is loaded late is the real one to whoever uses it."""

from __future__ import annotations

import subprocess
import sys

import pytest

START = """
import sys
from shared.io.late_modules import load_late, lighten_trio
lighten_trio()
import trio, ssl, hmac
assert "_ssl" not in sys.modules and "_hashlib" not in sys.modules
assert "shutil" not in sys.modules
"""


@pytest.mark.parametrize(
    "use",
    [
        # What trio and others do with it: attributes, names, classes to catch and to inherit from.
        "assert ssl.create_default_context().verify_mode is ssl.CERT_REQUIRED",
        "from ssl import SSLContext, SSLError; assert issubclass(SSLError, OSError)",
        "assert issubclass(ssl.SSLWantReadError, ssl.SSLError)",
        "trio.SSLStream(trio.testing.memory_stream_pair()[0], ssl.create_default_context())",
        "assert hmac.compare_digest(b'a', b'a') and not hmac.compare_digest(b'a', b'b')",
        "assert hmac.new(b'k', b'm', 'sha256').digest() == hmac.digest(b'k', b'm', 'sha256')",
        "import importlib; importlib.reload(hmac)",
        "import platform; before = platform.system(); assert platform.machine() and platform.system() == before",
        "import platform; assert platform.python_implementation() == 'CPython'",
        "import textwrap; assert textwrap.dedent(' a') == 'a'",
        "import tokenize; assert tokenize.open(tokenize.__file__).read(1) == '\"'",
        "import http.client; http.client.HTTPSConnection('localhost')",
        "assert not hasattr(ssl, 'nonsense') and type(ssl) is type(sys)",
        # Threads have names all the same, and libraries are found that others look for.
        "from trio._core import _thread_cache; assert _thread_cache.set_os_thread_name is not None",
        "import ctypes.util; assert ctypes.util.find_library('c').startswith('libc.')",
        "from ctypes.util import find_library as f; assert f('c') and f('pthread') and f('nonsense') is None",
        # Asked for by several threads at once, it is loaded once, and whole.
        "from concurrent.futures import ThreadPoolExecutor as P\n"
        "with P(8) as pool: assert len(set(pool.map(lambda _: ssl.SSLContext, range(64)))) == 1",
        # One that is there already stays.
        "import json; load_late('json'); json.dumps([])",
    ],
)
def test_it_is_the_real_module_when_it_is_used(use: str) -> None:
    code = f"{START}\nimport trio.testing\n{use}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
