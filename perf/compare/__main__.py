"""`python -m perf.compare`: topicsd as shipped, next to Redis 7 and NATS JetStream, on this machine, in one run.

All servers are up all the time and take their turns, A B C A B C …; a ratio is taken within each round, and the median
of the rounds is shown. Payloads are 100 bytes. wrk and redis-benchmark make the load (both compiled, one thread);
NATS has no such program in Debian, so a Python process makes its load, and its rates are a lower bound.

Not measured: networks (all is on loopback), more than one machine, replication, larger records, TLS, and hours of
steady load. The generators share the cores with the servers. On two cores our three processes and the generator want
more than there is, a single-threaded rival does not; CPU seconds per million records stand beside the rates for that
reason. NATS syncs its files every two minutes by default, Redis `everysec` each second, topicsd `disk` five times.
"""

from __future__ import annotations

from shared.io.compiled import use_compiled

use_compiled()  # for what is measured in this process; before anything that may be compiled is imported

# ruff: noqa: E402
import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

from perf.compare import growth, latency, recovery, served_growth
from perf.compare.contest import OURS, Contest, Outcome, hold
from perf.compare.generators import NATS_STREAM, NATS_SUBJECT, PAYLOAD, RedisBenchmark, nats_publishes, wrk
from perf.compare.picture import save_picture
from perf.engine import flatness
from perf.queue import nats_make
from perf.report import Aim, Row, machine, print_machine, print_table, save
from perf.servers import Server, connect, nats, need, redis, send, topicsd
from perf.shard_bench import scratch, write_body

_READ = 1000
_TOPICS = 5000


class Arena:
    """The servers, prepared for all contests."""

    def __init__(self, stack: ExitStack, directory: str) -> None:
        self._directory = Path(directory)
        self.ours = stack.enter_context(topicsd(self._own("topicsd")))
        self.redis = stack.enter_context(redis(self._own("redis")))
        self.careful_redis = stack.enter_context(redis(self._own("redis-always"), appendfsync="always"))
        self.nats = stack.enter_context(nats(self._own("nats")))
        self.one = self._body(1)
        self.hundred = self._body(100)
        send(self.ours, "/v0/topics/synced", b'{"durability":"fsync"}', "PUT")
        for _ in range(_READ // 100):
            send(self.ours, "/v0/topics/read", write_body(100, len(PAYLOAD)))
        fill = ["XADD", "read", "*", "d", PAYLOAD.decode()]
        RedisBenchmark(self.redis, fill, 1, _READ / 20_000)()
        with connect(self.nats.port) as sock:
            sock.sendall(b'CONNECT {"verbose":false}\r\nSUB made 1\r\n')
            stream = {"name": NATS_STREAM, "subjects": [NATS_SUBJECT], "storage": "file"}
            nats_make(sock, f"$JS.API.STREAM.CREATE.{NATS_STREAM}", stream)

    def _own(self, name: str) -> str:
        path = self._directory / name
        path.mkdir()
        return str(path)

    def _body(self, records: int) -> Path:
        path = self._directory / f"body-{records}"
        path.write_bytes(write_body(records, len(PAYLOAD)))
        return path

    # --- contests -----------------------------------------------------------------------------------------

    def contests(self, seconds: float, calls: int) -> list[Contest]:
        return [
            self._append_one(seconds),
            self._append_hundred(seconds),
            self._append_synced(seconds),
            self._read(seconds),
            self._idle_append(calls),
            self._tail(calls),
            self._many_topics(seconds),
        ]

    def _xadd(self, server: Server, connections: int, seconds: float, pipeline: int = 1) -> RedisBenchmark:
        command = ["XADD", "stream", "*", "d", PAYLOAD.decode()]
        return RedisBenchmark(server, command, connections, seconds, pipeline=pipeline)

    def _append_one(self, seconds: float) -> Contest:
        return Contest(
            "append 1 per request, 64 connections",
            "records/s",
            {
                OURS: lambda: wrk(self.ours, "/v0/topics/one", self.one, 64, seconds, 1),
                "Redis everysec": self._xadd(self.redis, 64, seconds),
                "NATS JetStream": lambda: nats_publishes(self.nats, 64, 1, seconds),
            },
            aim=0.6,
        )

    def _append_hundred(self, seconds: float) -> Contest:
        return Contest(
            "append 100 per request, 16 connections",
            "records/s",
            {
                OURS: lambda: wrk(self.ours, "/v0/topics/hundred", self.hundred, 16, seconds, 100),
                "Redis everysec": self._xadd(self.redis, 16, seconds, pipeline=100),
                "NATS JetStream": lambda: nats_publishes(self.nats, 16, 100, seconds),
            },
            aim=3,
            note="Redis: 100 XADDs pipelined; NATS: 100 publishes under way",
        )

    def _append_synced(self, seconds: float) -> Contest:
        return Contest(
            "append 1, acked after sync, 64 connections",
            "records/s",
            {
                OURS: lambda: wrk(self.ours, "/v0/topics/synced", self.one, 64, seconds, 1),
                "Redis always": self._xadd(self.careful_redis, 64, seconds),
            },
            aim=1.0,
            note="NATS of this version cannot sync before it acks",
        )

    def _read(self, seconds: float) -> Contest:
        path = f"/v0/topics/read/records?from_seq=0&limit={_READ}"
        command = ["XRANGE", "read", "-", "+", "COUNT", str(_READ)]
        return Contest(
            f"read {_READ} per request, 16 connections",
            "records/s",
            {
                OURS: lambda: wrk(self.ours, path, None, 16, seconds, _READ),
                "Redis everysec": RedisBenchmark(self.redis, command, 16, seconds, records=_READ),
            },
            aim=5,
            note="NATS has no read of a range",
        )

    def _idle_append(self, calls: int) -> Contest:
        return Contest(
            "one append on an idle server, median",
            "ms",
            {
                OURS: lambda: latency.append_ours(self.ours, calls),
                "Redis everysec": lambda: latency.append_redis(self.redis, calls),
                "NATS JetStream": lambda: latency.append_nats(self.nats, calls),
            },
            aim=2.5,
            lower_is_better=True,
        )

    def _tail(self, calls: int) -> Contest:
        return Contest(
            "write to waiting reader, median",
            "ms",
            {
                OURS: lambda: latency.tail_ours(self.ours, calls),
                "Redis everysec": lambda: latency.tail_redis(self.redis, calls),
            },
            aim=2,
            lower_is_better=True,
            note="long poll; XREAD BLOCK",
        )

    def _many_topics(self, seconds: float) -> Contest:
        command = ["XADD", "many-__rand_int__", "*", "d", PAYLOAD.decode()]
        return Contest(
            f"{_TOPICS:,} topics, 100 per request, 32 connections",
            "records/s",
            {
                OURS: lambda: wrk(self.ours, "/v0/topics/many-", self.hundred, 32, seconds, 100, _TOPICS),
                "Redis everysec": RedisBenchmark(
                    self.redis, command, 32, seconds, pipeline=100, topics=_TOPICS
                ),
            },
            aim=1.5,
            note="Redis: each of the 100 to a stream of its own choice",
        )


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _show(outcome: Outcome) -> list[Row]:
    """One line per system, for people."""
    row = outcome.row()
    shown = []
    for name, found in row["systems"].items():
        own = name == OURS
        shown.append(
            {
                "work": row["work"] if own else "",
                "system": name,
                "value": found["value"],
                "unit": row["unit"],
                "spread": found["spread"],
                **{point: found.get(f"{point}_ms") for point in ("p50", "p90", "p99")},
                "cpu_s_per_M": found.get("cpu_s_per_million"),
                "rss_mib": found.get("rss_mib"),
                "ratio": row["ratio"] if own else None,
                "aim": _aim(row) if own else None,
                "met": {True: "yes", False: "NO", None: ""}[row["met"]] if own else None,
            }
        )
    return shown


def _aim(row: Row) -> str | None:
    if row["aim"] is None:
        return None
    return f"{'≤' if row['lower_is_better'] else '≥'} {row['aim']:g}"


def _recoveries(parent: str | None, sizes: list[int]) -> list[Outcome]:
    outcomes = []
    for size in sizes:
        with ExitStack() as stack:
            directory = Path(stack.enter_context(scratch(parent)))
            for name in ("topicsd", "redis"):
                (directory / name).mkdir()
            ours = stack.enter_context(topicsd(str(directory / "topicsd")))
            rival = stack.enter_context(redis(str(directory / "redis")))
            _tell(f"  filling two servers with {size:,} records each")
            recovery.fill_ours(ours, size)
            recovery.fill_redis(rival, size)
            outcomes += [hold(contest, 1, _tell) for contest in recovery.contests(ours, rival, size)]
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m perf.compare", description=__doc__)
    parser.add_argument("--short", action="store_true", help="at most three minutes; not saved")
    parser.add_argument("--dir", help="a directory on the file system to measure; default: the temporary one")
    options = parser.parse_args()
    need(["wrk", "redis-server", "redis-benchmark", "nats-server"])
    rounds, seconds, calls = (5, 1.0, 60) if options.short else (9, 2.0, 150)
    sizes = [200_000] if options.short else [1_000_000, 10_000_000]
    with ExitStack() as stack:
        directory = stack.enter_context(scratch(options.dir))
        found = machine(directory)
        print_machine(found)
        arena = Arena(stack, directory)
        outcomes = [hold(contest, rounds, _tell) for contest in arena.contests(seconds, calls)]
    outcomes += _recoveries(options.dir, sizes)
    _tell("  cost growth")
    topics = (1000, 10_000 if options.short else 100_000)
    grown, aims = growth.run(options.dir, 3 if options.short else 7, topics)
    served, served_aims = served_growth.run(options.dir, 3 if options.short else 5, seconds, topics)
    aims = [*served_aims, *aims]
    deep: tuple[list[Row], list[Aim]] = ([], [])
    if not options.short:
        deep = flatness.run(options.dir, 5, (10_000, 100_000, 1_000_000, 10_000_000))
    rows = [outcome.row() for outcome in outcomes]
    print_table(
        f"Records of 100 bytes; medians of {rounds} rounds in turns; ratio: topicsd / best rival",
        [line for outcome in outcomes for line in _show(outcome)],
    )
    print_table("CPU per request of the whole server against the number of topics", served)
    print_table("Cost per call of the engine against the number of topics", grown)
    columns = ("records", "append_us", "read_newest_us", "read_oldest_us", "ready_ms")
    if deep[0]:
        print_table("Cost per call against the records of one topic", deep[0], columns)
    print_table("Aims on growth", [aim.row() for aim in (*aims, *deep[1])])
    print("\n" + "\n".join(f"  {row['work']}: {row['note']}" for row in rows if row["note"]))
    if options.short:
        print("\nshort run: not saved")
        return
    document = {
        "machine": found,
        "payload_bytes": len(PAYLOAD),
        "rounds": rounds,
        "seconds_per_round": seconds,
        "rows": rows,
        "topics_served": served,
        "topics": grown,
        "records_per_topic": [{name: row[name] for name in columns} for row in deep[0]],
        "aims_on_growth": [aim.row() for aim in (*aims, *deep[1])],
        "not_measured": " ".join((__doc__ or "").partition("Not measured: ")[2].split()),
    }
    path = save("compare", document)
    subtitle = f"{found['cores']} cores, {found['date'][:10]}; right of 1: ahead; dashed: the aim"
    print(f"\nsaved as perf/results/{path.name} and docs/images/{save_picture(rows, subtitle).name}")


if __name__ == "__main__":
    main()
