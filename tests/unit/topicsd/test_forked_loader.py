"""The process that loads the children's code, as a copy of the supervisor: its children are as if started by argv."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ops.compiled.hot_modules import GROUPS
from topicsd import entry, loader_start
from topicsd.loader_start import MANAGER_ENV, SECRET_ENV

ROOT = Path(__file__).parents[3]
CHILD = """
import json, os, sys
listed = os.listdir("/proc/self/fd")  # and what it took to list them, which is closed again
fds = sorted(int(name) for name in listed if os.path.exists(f"/proc/self/fd/{name}"))
told = {
    "argv": sys.argv[1:], "path": sys.path, "env": dict(os.environ), "pid": os.getpid(), "sid": os.getsid(0),
    "shown": open("/proc/self/cmdline").read().rstrip("\\0").split("\\0"), "fds": fds,
}
os.write(int(sys.argv[2]), json.dumps(told).encode())
os.close(int(sys.argv[2]))
sys.exit(7)
"""
PARENT = """
import os, sys
from topicsd.loader_start import ForkedLoader
loader = ForkedLoader()
if loader.is_copy:
    loader.run()
from topicsd.forerunners import Forerunners
with Forerunners(loader) as forerunners:
    forerunners.start(["forked_child"])
    while forerunners.link is not None:
        forerunners.hear()
    child = forerunners.take("forked_child")
told = open(child.status_fd, "rb").read()
assert child.process.wait() == 7
sys.stdout.buffer.write(told)
"""


def tell(directory: Path, *words: str, python: str = sys.executable, **environment: str) -> dict[str, object]:
    """What a child finds that is forked for a process with these words in its command line."""
    found = directory / "installed"
    found.mkdir()
    (found / "forked_child.py").write_text(CHILD)
    # Not for the child: it lies where the parent happens to have been started.
    (directory / "forked_child.py").write_text("raise SystemExit(3)")
    (directory / "parent.py").write_text(PARENT)
    done = subprocess.run(
        [python, "-m", "parent", *words],
        executable=sys.executable,
        cwd=directory,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": f"{found}:{ROOT}",
            "PYTHONSAFEPATH": "",
            **environment,
        },
        capture_output=True,
        check=True,
    )
    told: dict[str, object] = json.loads(done.stdout)
    return told


def test_a_child_has_nothing_of_the_supervisors(tmp_path: Path) -> None:
    told = tell(tmp_path, "x" * 200, **dict.fromkeys(MANAGER_ENV, "1"), OTHER="stays")
    env = told["env"]
    assert isinstance(env, dict)
    assert not set(MANAGER_ENV) & set(env) and env["OTHER"] == "stays"
    assert told["pid"] == told["sid"]
    assert isinstance(told["path"], list) and str(tmp_path) not in told["path"]
    status_fd = told["argv"][1]  # type: ignore[index]
    assert told["fds"] == [0, 1, 2, int(status_fd)]
    assert told["shown"] == [sys.executable, "-P", "-m", "forked_child", "--status-fd", status_fd]


@pytest.mark.parametrize(
    ("room", "shown"),
    [
        (4, ["python", "-m", "parent", "xxxx"]),  # not even for the name
        (5, ["python", "-m", "forked_child"]),
        (22, ["python", "-P", "-m", "forked_child", "--status-fd", "5"]),
    ],
)
def test_where_the_command_line_is_short_a_child_shows_what_fits(
    tmp_path: Path, room: int, shown: list[str]
) -> None:
    told = tell(tmp_path, "x" * room, python="python")
    assert told["argv"] == ["--status-fd", "5"]
    assert told["shown"] == shown


def test_with_a_secret_in_the_environment_nothing_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, str]] = []
    monkeypatch.setattr(loader_start, "ForkedLoader", lambda: pytest.fail("it would have the secret"))
    monkeypatch.setattr(loader_start, "Loader", lambda *, env: started.append(env))
    for name in SECRET_ENV:
        monkeypatch.setenv(name, "s3cret")
    entry._start_loader()
    assert started and not set(SECRET_ENV) & set(started[0])


def test_where_processes_cannot_be_forked_a_start_goes_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError("too many processes")

    monkeypatch.setattr(loader_start.os, "fork", refuse)
    before = set(os.listdir("/proc/self/fd"))
    for name in SECRET_ENV:
        monkeypatch.delenv(name, raising=False)
    assert entry._start_loader() is None
    assert set(os.listdir("/proc/self/fd")) == before


def test_what_is_loaded_before_the_fork_is_never_compiled() -> None:
    """A module that is there already, as source, would stay that in the children."""
    code = "import sys; from topicsd.loader import load_what_all_share as load; load(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {"trio", "shared.io.child_channel"} <= loaded
    assert not loaded & {module for modules in GROUPS.values() for module in modules}
