"""`python -m perf.hot_functions`: which compiled functions do ordinary requests run through?

Asks a server what most users ask, for half a minute, while `perf record` looks ten thousand times a second where its
processes are: writes of one record and of many, synced and not, reads, reads that wait, jobs from production to ack.
Every function seen is written to `ops/compiled/hot_functions.txt`; `topicsd compile` puts these next to each other
(ops/compiled/layout.py). Run it again when the way of a request has changed.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

from ops.compiled.layout import HOT_FUNCTIONS, defined, listed
from perf.queue_clients import http_request
from perf.servers import Server, connect, need, send, topicsd
from perf.shard_bench import write_body

_SECONDS = 30.0
_RECORD_BYTES = 100
_LEAST_SAMPLES = 2  # one may be maintenance, which passes by
_OURS = re.compile(r"^CPy(?:Def|Py)_(?:gateway|shard_worker|shared)___\w+")


def main() -> None:
    need(["perf"])
    with tempfile.TemporaryDirectory() as directory, topicsd(directory) as server:
        send(server, "/v0/topics/synced", b'{"durability":"fsync"}', "PUT")
        send(server, "/v0/topics/jobs", b'{"type":"queue"}', "PUT")
        _ask(server, 1.0)  # what only the first requests do is not what they all do
        samples = f"{directory}/samples"
        command = ["perf", "record", "--quiet", "--event=cpu-clock", "--freq=10000", f"--output={samples}"]
        recorder = subprocess.Popen([*command, f"--pid={','.join(map(str, server.pids()))}"])
        _ask(server, _SECONDS)
        recorder.terminate()
        recorder.wait(60)
        seen = subprocess.run(
            ["perf", "script", f"--input={samples}", "--fields=ip,sym"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    counts = Counter(listed(found.group()) for found in map(_OURS.match, seen.split()) if found)
    hot = sorted(name for name in defined() if counts[name] >= _LEAST_SAMPLES)
    HOT_FUNCTIONS.write_text("".join(f"{name}\n" for name in hot))
    print(f"{len(hot)} functions in {sum(counts.values()):,} samples, written to {Path(HOT_FUNCTIONS).name}")


def _ask(server: Server, seconds: float) -> None:
    """The same round over and over, at first one call after the other, then with pauses."""
    one, many = write_body(1, _RECORD_BYTES), write_body(100, _RECORD_BYTES)
    ends_at = time.monotonic() + seconds
    with connect(server.port) as sock, connect(server.port) as reader:

        def call(path: str, body: bytes | None) -> bytes:
            sock.sendall(http_request(f"/v0/topics/{path}", body or b"", "POST" if body else "GET"))
            return sock.recv(1 << 20)

        number = 0
        while (left := ends_at - time.monotonic()) > 0:
            number += 1
            head = json.loads(call("plain", one).partition(b"\r\n\r\n")[2])["head_seq"]
            reader.sendall(http_request("/v0/topics/plain/diff", b'{"from_seq":%d,"wait_ms":20000}' % head))
            time.sleep(0.0005 if left > seconds / 2 else 0.005)  # it waits by now
            call("plain", one)
            reader.recv(1 << 20)
            call("plain", many)
            call("synced", one)
            call(f"other-{number % 7000}", one)
            call(f"plain/records?from_seq={head}&limit=10", None)
            call("jobs", one)
            claimed = json.loads(call("jobs/claim", b'{"node":"n","max":8}').partition(b"\r\n\r\n")[2])
            seqs = [job["$seq"] for job in claimed["claimed"]]
            call("jobs/ack", json.dumps({"node": "n", "seqs": seqs}).encode())


if __name__ == "__main__":
    main()
