"""`topics bench`: a small load generator that says what it measured."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial

import click
import msgspec
import trio

from topicsd.client.api import topic_path
from topicsd.client.errors import Exit, Refused, Usage
from topicsd.client.load import PERCENTILES, LoadResult, NextRequest, percentile, run_load
from topicsd.client.options import Session, client_command
from topicsd.client.output import Progress, count, note, size

WARM_UP_S = 0.5
FILL_BATCH = 1000


@client_command("bench", json_help="The result as one JSON object.")
@click.argument("what", type=click.Choice(["append", "read"]))
@click.option(
    "-c", "--connections", type=click.IntRange(1, 1000), default=8, show_default=True, help="Clients at once."
)
@click.option(
    "-s", "--seconds", type=click.FloatRange(0.1, 3600), default=5.0, show_default=True, help="How long."
)
@click.option(
    "--batch", type=click.IntRange(1, 1000), default=1, show_default=True, help="Records per request."
)
@click.option("--size", "record_bytes", type=click.IntRange(2, 1_000_000), default=100, show_default=True,
              help="Bytes of data per record.")  # fmt: skip
@click.option("--durability", type=click.Choice(["ephemeral", "memory", "disk", "fsync"]), default="disk",
              show_default=True, help="Of the topic that is measured.")  # fmt: skip
@click.option("--records", "filled", type=click.IntRange(1), default=20_000, show_default=True,
              help="For read: so many records are written first.")  # fmt: skip
@click.option("--keep", is_flag=True, help="Do not delete the topic afterwards.")
def command(
    session: Session,
    what: str,
    connections: int,
    seconds: float,
    batch: int,
    record_bytes: int,
    durability: str,
    filled: int,
    keep: bool,
) -> Exit:
    """Measure appends or reads on a topic of its own, which is deleted afterwards.

    A closed loop: each connection sends its next request when the last one is answered. Run it on another machine, or
    know that client and server share the processors.
    """
    address = session.server.address
    if address.tls:
        raise Usage("bench speaks http:// only; measure the server without its TLS proxy")
    topic = f"bench-{secrets.token_hex(6)}"
    session.server.call("PUT", topic_path(topic), {"durability": durability})
    progress = Progress()
    try:
        make: Callable[[int], NextRequest]
        if what == "append":
            make = partial(_appends, session, topic, _body(batch, record_bytes))
        else:
            _fill(session, topic, filled, record_bytes)
            make = partial(_reads, session, topic, filled, batch)

        def tick(requests: int, passed_s: float) -> None:
            progress.show(f"{count(requests)} requests in {passed_s:.1f} s of {seconds:.0f} s")

        load = partial(run_load, address, connections, seconds, make, warm_up_s=WARM_UP_S, on_tick=tick)
        try:
            result = trio.run(load)
        except BaseExceptionGroup as group:
            if group.subgroup(KeyboardInterrupt):
                raise KeyboardInterrupt from None
            raise
    finally:
        progress.clear()
        if not keep:
            session.server.call("DELETE", topic_path(topic))
    report = summary(
        result,
        what=what,
        connections=connections,
        batch=batch,
        record_bytes=record_bytes,
        durability=durability,
    )
    if session.as_json:
        session.out.json(report)
    else:
        _print(session, report)
    if result.refused:
        raise _refusal(session, result)
    if result.client_cpu > 0.9:
        note("the client kept a whole core busy: these are its limits, not the server's; run several of them")
    return Exit.OK


# --- requests ---------------------------------------------------------------------------------------------


def _body(batch: int, record_bytes: int) -> bytes:
    record = b'{"data":"%b"}' % (b"x" * (record_bytes - 2))
    return b'{"records":[%b]}' % b",".join([record] * batch)


def _appends(session: Session, topic: str, body: bytes, _number: int) -> NextRequest:
    request = session.server.request_bytes("POST", topic_path(topic), body, query={"return_seqs": "false"})
    return lambda: request


def _reads(session: Session, topic: str, filled: int, batch: int, number: int) -> NextRequest:
    """Each connection pages through the whole topic, from a place of its own."""
    at = number * 7919 % filled

    def make() -> bytes:
        nonlocal at
        at = at + batch if at + batch < filled else 0
        body = msgspec.json.encode({"from_seq": at, "limit": batch, "max_bytes": 8 * 1024 * 1024})
        return session.server.request_bytes("POST", topic_path(topic, "diff"), body)

    return make


def _fill(session: Session, topic: str, records: int, record_bytes: int) -> None:
    for first in range(0, records, FILL_BATCH):
        body = _body(min(FILL_BATCH, records - first), record_bytes)
        session.server.call("POST", topic_path(topic), body, query={"return_seqs": "false"})


# --- results ----------------------------------------------------------------------------------------------


def summary(
    result: LoadResult, *, what: str, connections: int, batch: int, record_bytes: int, durability: str
) -> dict[str, object]:
    found = sorted(result.latencies_s)
    requests = len(found)
    latency = (
        {f"p{percent:g}": round(1000 * percentile(found, percent), 3) for percent in PERCENTILES}
        if found
        else {}
    )
    if found:
        latency["max"] = round(1000 * found[-1], 3)
    return {
        "what": what,
        "connections": connections,
        "batch": batch,
        "record_bytes": record_bytes,
        "durability": durability,
        "seconds": round(result.took_s, 3),
        "requests": requests,
        "refused": sum(result.refused.values()),
        "requests_per_s": round(requests / result.took_s, 1),
        "records_per_s": round(requests * batch / result.took_s, 1),
        "bytes_per_s": round(requests * batch * record_bytes / result.took_s),
        "latency_ms": latency,
        "client_cores": round(result.client_cpu, 2),
    }


def _print(session: Session, report: dict[str, object]) -> None:
    def number(name: str) -> float:
        value = report[name]
        assert isinstance(value, int | float)
        return value

    latency = report["latency_ms"]
    assert isinstance(latency, dict)
    session.out.pairs(
        [
            (
                "measured",
                f"{report['what']} of {report['batch']} x {report['record_bytes']} B, {report['durability']}",
            ),
            ("load", f"{report['connections']} connections, closed loop, {report['seconds']} s"),
            ("requests", f"{count(number('requests'))} answered, {count(number('refused'))} refused"),
            (
                "rate",
                f"{count(number('requests_per_s'))} requests/s, {count(number('records_per_s'))} records/s",
            ),
            ("data", f"{size(number('bytes_per_s'))}/s"),
            ("latency", "  ".join(f"{name} {value:.2f} ms" for name, value in latency.items()) or "-"),
            ("client", f"{report['client_cores']} cores busy in this process"),
        ]
    )


def _refusal(session: Session, result: LoadResult) -> Refused:
    status, times = max(result.refused.items(), key=lambda item: item[1])
    refused = session.server.refusal(status, result.first_refusal)
    hint = f"{count(times)} requests were refused; the figures count only those that were not"
    return refused.with_hint(hint) if isinstance(refused, Refused) else Refused(status, "unknown", hint)
