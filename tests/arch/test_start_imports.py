"""A process that starts loads what it needs, and nothing that it may never need.

Imports are nearly all of the time until the server is ready, and most of the memory of an idle one. Each list
names what somebody might pull in with one careless import at the top of a file.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

FULL_LANE = {
    "quart", "quart_trio", "hypercorn", "werkzeug", "flask", "jinja2", "h2", "h11", "wsproto",
    "gateway.full_lane.app", "gateway.full_lane.pages", "gateway.full_lane.openapi",
    "gateway.full_lane.websocket", "gateway.full_lane.lane",
}  # fmt: skip
HEAVY = FULL_LANE | {
    "asyncio", "multiprocessing", "concurrent", "http.client", "http.server", "email", "urllib.request",
    "importlib.metadata", "argparse", "difflib", "tomllib", "pydoc", "unittest", "xml", "sqlite3", "zipfile",
    "_ssl", "_hashlib", "prometheus_client", "obstore", "pyspark", "pyarrow", "duckdb", "httpx",
    "click", "shutil", "tempfile", "lzma", "bz2", "typing_extensions", "idna", "trio._ssl", "trio._subprocess",
}  # fmt: skip
OFFLINE = {
    "shard_worker.disk.repair", "shard_worker.disk.verify", "shard_worker.disk.survey", "shard_worker.moving",
    "shard_worker.wal_archive",
}  # fmt: skip

STARTS = {
    # What runs before the process that loads the children's code is started, and so holds it up: nearly nothing.
    "topicsd.entry": HEAVY
    | OFFLINE
    | {"trio", "msgspec", "logging", "subprocess", "typing", "shared.settings"},
    # What runs before children are asked for: not even the event loop.
    "topicsd.serving": HEAVY | OFFLINE | {"trio", "attrs", "gateway", "shard_worker", "cbor2", "subprocess"},
    "topicsd.supervisor": HEAVY | OFFLINE | {"shard_worker.engine", "gateway.service", "cbor2", "pyroaring"},
    "gateway.process": HEAVY | {"shard_worker", "topicsd", "pyroaring", "zstandard"},
    "shard_worker.worker": HEAVY | OFFLINE | {"gateway", "topicsd", "httptools"},
}


def loaded_with(*modules: str) -> set[str]:
    """All modules that a new process has after importing these, the way our processes start."""
    late = "from shared.io.late_modules import lighten_trio\nlighten_trio()"
    code = f"{late}\nimport sys, {', '.join(modules)}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", STARTS)
def test_a_process_starts_without(module: str) -> None:
    loaded = loaded_with(module)
    assert module in loaded
    assert not loaded & STARTS[module]


def test_the_lists_can_fail() -> None:
    """Each name is that of a module there is, and it shows when it is imported."""
    assert "asyncio" in loaded_with("asyncio") & HEAVY
    assert (
        loaded_with("gateway.full_lane.lane", "gateway.full_lane.pages", "gateway.full_lane.websocket")
        >= FULL_LANE
    )
    assert loaded_with(*OFFLINE) >= OFFLINE


def test_every_process_puts_openssl_off_before_it_imports_trio() -> None:
    entries = (
        "gateway.__main__",
        "shard_worker.__main__",
        "topicsd.loader",
        "topicsd.serving",
        "topicsd.cli",
    )
    for module in entries:
        assert not loaded_with(module) & {"trio", "_ssl", "_hashlib"}, module


def test_the_settings_file_is_read_without_what_children_do_not_need() -> None:
    """The children share the module with the table, and get their settings ready-made."""
    assert not loaded_with("shared.settings") & {"tomllib", "difflib"}


COMMON_OF_CHILDREN = """
import sys, socket
from topicsd import loader
from shared.io.late_modules import lighten_trio
lighten_trio()
for name in loader.COMMON:
    __import__(name)
print(*sys.modules)
"""


def test_what_all_children_share_is_what_each_of_them_needs() -> None:
    """The process that forks them loads it first, so whatever is among it is in all of them."""
    code = [sys.executable, "-P", "-c", COMMON_OF_CHILDREN]
    common = set(subprocess.run(code, capture_output=True, text=True, check=True).stdout.split())
    assert {"trio", "msgspec", "shared.session"} <= common
    for of_one_kind in ("gateway.process", "shard_worker.worker"):
        not_its_own = common - loaded_with(of_one_kind, "shared.io.logs")
        how_it_is_loaded = {"topicsd.loader", "shared.io.compiled", "shared.io.start_image", "runpy"}
        assert not_its_own <= {"__main__", "topicsd", *how_it_is_loaded}, of_one_kind
