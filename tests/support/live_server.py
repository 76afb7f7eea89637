"""The whole server as an operator runs it (`topicsd serve`), in processes of its own.

Times that take long in production (how soon a silent worker is taken for hung, or a dead one is started again) can be
shortened with `silence` and `restart`; then the same server is started through the supervisor's test entry, with the
real gateway and the real workers.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from shared.io.child_channel import socket_path
from tests.support.api_client import ApiClient, Lane
from tests.support.server_process import ServerProcess, wait_for
from tests.support.slow_disk_worker import SLOW_DISK

REAL_CHILDREN = {"worker_module": "shard_worker", "gateway_module": "gateway"}


class LiveServer(ServerProcess):
    def __init__(
        self,
        data_dir: Path,
        *,
        shards: int = 2,
        env: Mapping[str, str] | None = None,
        silence: Mapping[str, float] | None = None,
        restart: Mapping[str, float] | None = None,
        listener: socket.socket | None = None,
        inside: Sequence[str] = (),
        worker_module: str | None = None,
    ) -> None:
        """`inside`: arguments of a Python program that becomes the server."""
        self.data_dir = data_dir
        self.port_file = data_dir.parent / f"{data_dir.name}.port"
        self.shards = shards
        # A stale one would name the port of the predecessor until the new server has removed it.
        self.port_file.unlink(missing_ok=True)
        settings = {
            "TOPICS_DATA_DIR": str(data_dir),
            "TOPICS_PORT": "0",
            "TOPICS_PORT_FILE": str(self.port_file),
            "TOPICS_WAL_SHARDS": str(shards),
        }
        command = ["-m", "topicsd", "serve"]
        if silence is not None or restart is not None or worker_module is not None:
            worker = {} if worker_module is None else {"worker_module": worker_module}
            plan = {
                "plan": REAL_CHILDREN | worker | {"heartbeat_s": 0.1},
                "silence": dict(silence or {}),
                "restart": dict(restart or {}),
            }
            command = ["-m", "tests.support.server_process", json.dumps(plan)]
        self._launch([*inside, *command], settings | dict(env or {}), listener)

    def __exit__(self, *_: object) -> None:
        """Ends what is left of it at once. Tests that care how it stops call `stop` before."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        for line in self.log:
            if line["event"] == "child.started" and is_child(line["child_pid"]):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(line["child_pid"], signal.SIGKILL)
        super().__exit__()

    # --- its processes ------------------------------------------------------------------------

    def child_pid(self, child: str) -> int:
        """The one that runs, or ran last: "gateway", "shard-0" …"""
        self.wait_log("child.started", child=child)
        started = [e for e in self.log if (e["event"], e.get("child")) == ("child.started", child)]
        pid: int = started[-1]["child_pid"]
        return pid

    def kill_child(self, child: str) -> int:
        """SIGKILL; returns its pid."""
        pid = self.child_pid(child)
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait_child_ready(self, child: str, *, count: int) -> None:
        self.wait_log("child.ready", child=child, count=count)

    def socket_path(self, shard: int) -> str:
        return socket_path(str(self.data_dir / "run"), shard)

    def resident_bytes(self, child: str) -> int:
        pages = Path(f"/proc/{self.child_pid(child)}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def gateway_usage(self) -> tuple[int, int]:
        """Open descriptors and resident bytes of the gateway."""
        process = Path(f"/proc/{self.child_pid('gateway')}")
        return len(list((process / "fd").iterdir())), self.resident_bytes("gateway")

    def failures(self) -> list[dict[str, object]]:
        """What a server in good health never logs."""
        return [e for e in self.log if e.get("level") in ("error", "critical") or e["event"] == "plain"]

    # --- its clients --------------------------------------------------------------------------

    def client(self, lane: Lane = "http1", *, token: str | None = None) -> ApiClient:
        return ApiClient(self.port, lane, token=token)

    def wait_serving(self) -> LiveServer:
        """Until every shard answers through the gateway."""
        self.wait_ready()
        with self.client() as client:
            wait_for(lambda: client.send("GET", "/v0/ready").status_code == 200)
        return self


def is_child(pid: int) -> bool:
    """Is this pid (still) a child of a server? One that was given to someone else has another command line."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return b"--status-fd" in words and bool({b"gateway", b"shard_worker", SLOW_DISK.encode()} & set(words))
