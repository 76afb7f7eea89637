"""`python -m perf.routers`: what routers cost the writer, and how fast copies arrive.

One source, and 0, 1, 10 or 100 routers from it to topics on all shards. A writer writes single records at a steady
pace, the same for all, and its ack times are compared: forwarding is off the path of the ack, so they should hardly
differ while the destinations keep up, and whether they do is measured too. The other way round, a backlog is written
in large batches, and copies per second are counted until the last destination has everything. The time from a write to
its copy is taken by a reader that waits at the last destination. Bytes of log per copy come from the workers' metrics.

The sources are up all the time and measured in turns; the load generator is one process on the same machine.
"""

from __future__ import annotations

import argparse
import json
import socket
import time
from dataclasses import dataclass, field
from statistics import median

from perf.fanout_clients import receive_answer
from perf.report import Aim, Row, machine, percentiles, print_machine, print_table, save
from perf.servers import Server, connect, send, topicsd
from perf.shard_bench import scratch

ROUTERS = (0, 1, 10, 100)
_DATA = "x" * 86  # a record of 100 bytes or so
_PER_S = 100  # writes of the steady writer
_BACKLOG = 20_000  # copies in all, whatever the number of routers
_BATCH = 500
_CATCH_UP_S = 60.0


@dataclass(slots=True)
class Measured:
    acks_ms: list[float] = field(default_factory=list)
    arrivals_ms: list[float] = field(default_factory=list)
    copies_per_s: list[float] = field(default_factory=list)
    wal_bytes_per_copy: list[float] = field(default_factory=list)
    lag_at_end: list[int] = field(default_factory=list)


class Fan:
    """One source with its routers."""

    def __init__(self, server: Server, routers: int) -> None:
        self.server = server
        self.routers = routers
        self.source = f"source-{routers}"
        self.dests = [f"dest-{routers}-{number}" for number in range(routers)]
        self.sock = connect(server.port)
        self.reader = connect(server.port)
        send(server, f"/v0/topics/{self.source}", b"{}", "PUT")
        for dest in self.dests:
            body = json.dumps({"source": self.source, "dest": dest}).encode()
            send(server, f"/v0/routers/to-{dest}", body, "PUT")

    def write(self, count: int = 1) -> float:
        """Seconds until the ack."""
        records = [{"data": _DATA}] * count
        return _call(self.sock, f"/v0/topics/{self.source}", {"records": records})[0]

    def lag(self) -> int:
        if not self.routers:
            return 0
        url = f"/v0/routers?page_size=1000&source={self.source}"
        found = json.loads(_get(self.server, url))
        return max(router["lag"] for router in found["routers"])

    def catch_up(self) -> None:
        give_up_at = time.monotonic() + _CATCH_UP_S
        while self.lag():
            if time.monotonic() > give_up_at:
                raise SystemExit(f"{self.routers} routers do not catch up")
            time.sleep(0.002)

    def steady(self, seconds: float, measured: Measured) -> None:
        """Single writes at a pace; a write that is late does not make the next one later."""
        due = time.perf_counter()
        end = due + seconds
        while due < end:
            time.sleep(max(0.0, due - time.perf_counter()))
            measured.acks_ms.append(1000 * self.write())
            due = max(due + 1 / _PER_S, time.perf_counter())
        measured.lag_at_end.append(self.lag())

    def arrivals(self, writes: int, measured: Measured) -> None:
        """From just before a write to its copy in the hands of a reader that waits for it."""
        dest = self.dests[-1]
        head = json.loads(_get(self.server, f"/v0/topics/{dest}"))["head_seq"]
        for _ in range(writes):
            path = f"/v0/topics/{dest}/diff"
            self.reader.sendall(_request(path, {"from_seq": head, "wait_ms": 30_000}))
            time.sleep(0.005)  # the reader is waiting by now
            started = time.perf_counter()
            self.write()
            answer = json.loads(receive_answer(self.reader))
            measured.arrivals_ms.append(1000 * (time.perf_counter() - started))
            head = answer["next_from_seq"]

    def backlog(self, measured: Measured) -> None:
        records = max(1, _BACKLOG // self.routers)
        bytes_before = _wal_bytes(self.server)
        started = time.perf_counter()
        for left in range(records, 0, -_BATCH):
            self.write(min(left, _BATCH))
        self.catch_up()
        copies = records * self.routers
        measured.copies_per_s.append(copies / (time.perf_counter() - started))
        own = records * (len(_DATA) + 48)  # the source's records, which are written with or without routers
        measured.wal_bytes_per_copy.append((_wal_bytes(self.server) - bytes_before - own) / copies)


def _request(path: str, body: object) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def _call(sock: socket.socket, path: str, body: object) -> tuple[float, bytes]:
    request = _request(path, body)
    started = time.perf_counter()
    sock.sendall(request)
    answer = receive_answer(sock)
    return time.perf_counter() - started, answer


def _get(server: Server, path: str) -> bytes:
    return send(server, path, None, "GET")  # type: ignore[arg-type]


def _wal_bytes(server: Server) -> int:
    text = _get(server, "/v0/metrics").decode()
    lines = [line for line in text.splitlines() if line.startswith("topics_wal_bytes_written_total")]
    return int(sum(float(line.rpartition(" ")[2]) for line in lines))


def run(server: Server, rounds: int, seconds: float) -> tuple[list[Row], list[Aim]]:
    fans = [Fan(server, routers) for routers in ROUTERS]
    found = {fan.routers: Measured() for fan in fans}
    for fan in fans:
        fan.write()
        fan.catch_up()
    ratios: dict[int, list[float]] = {routers: [] for routers in ROUTERS}
    for _ in range(rounds):
        acks: dict[int, float] = {}
        for fan in fans:
            measured = Measured()
            fan.steady(seconds, measured)
            fan.catch_up()
            acks[fan.routers] = median(measured.acks_ms)
            found[fan.routers].acks_ms += measured.acks_ms
            found[fan.routers].lag_at_end += measured.lag_at_end
            if fan.routers:
                fan.arrivals(max(5, int(20 * seconds)), found[fan.routers])
                fan.backlog(found[fan.routers])
        for routers in ROUTERS:
            ratios[routers].append(acks[routers] / acks[0])
    rows = [_row(routers, found[routers], median(ratios[routers])) for routers in ROUTERS]
    worst = median(ratios[ROUTERS[-1]])
    aims = [Aim(f"ack with {ROUTERS[-1]} routers / ack with none, medians", round(worst, 3), 1.3)]
    return rows, aims


def _row(routers: int, measured: Measured, ratio: float) -> Row:
    acks = percentiles(measured.acks_ms)
    row: Row = {
        "routers": routers,
        "ack p50 ms": acks["p50"],
        "ack p99 ms": acks["p99"],
        "ratio": round(ratio, 3),
    }
    row["lag at the end"] = max(measured.lag_at_end)
    if routers:
        arrivals = percentiles(measured.arrivals_ms)
        row["copy p50 ms"], row["copy p99 ms"] = arrivals["p50"], arrivals["p99"]
        row["copies/s"] = round(median(measured.copies_per_s))
        row["log bytes/copy"] = round(median(measured.wal_bytes_per_copy), 1)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", help="where the server's files go")
    parser.add_argument("--short", action="store_true", help="see that it works; nothing is saved")
    options = parser.parse_args()
    rounds, seconds = (1, 1.0) if options.short else (5, 4.0)
    with scratch(options.dir) as directory:
        found = machine(directory)
        print_machine(found)
        with topicsd(directory, "--wal-shards", "2") as server:
            rows, aims = run(server, rounds, seconds)
    print_table(
        f"Routers: {_PER_S} writes/s of about 100 bytes, {rounds} rounds of {seconds:g} s in turns", rows
    )
    print_table("Aims", [aim.row() for aim in aims])
    document = {
        "machine": found,
        "rounds": rounds,
        "seconds_per_round": seconds,
        "rows": rows,
        "aims": [aim.row() for aim in aims],
    }
    if options.short:
        print("short run: not saved")
    else:
        print(f"saved as perf/results/{save('routers', document).name}")


if __name__ == "__main__":
    main()
