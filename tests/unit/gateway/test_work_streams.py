"""Streams of jobs and late claims, with shards that answer when the test says so and a clock that it sets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.exchange import StreamHead
from gateway.io.shard_link import OnReply, Reply
from gateway.work_streams import WorkStreams
from shared.api_keys import KeyRing, parse_api_keys
from shared.errors import ShardUnavailable, TopicNotFound
from shared.limits import QUEUE_SEQS_MAX, WATCH_HEARTBEAT_MS, WATCH_RETRY_MS
from shared.wire import Answer, Op, Options, Request
from tests.support.recorded_exchange import RecordedExchange, RecordedStream
from tests.unit.gateway.api_harness import ApiHarness, ScriptedShards, document

Json = dict[str, Any]
DOWN = ShardUnavailable(shard=0, reason="it is starting")


class LateShards:
    """Keeps every request until it is answered."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, Json]] = []
        self.waiting: list[tuple[int, OnReply]] = []
        self.cancelled: list[int] = []

    def request(self, op: int, topic: str, body: bytes, options: Options | None, on_reply: OnReply) -> int:
        self.asked.append((op, json.loads(body)))
        self.waiting.append((op, on_reply))
        return len(self.asked)

    def cancel(self, topic: str, id_: int) -> None:
        self.cancelled.append(id_)

    def answer(self, op: int, reply: Reply) -> None:
        """To the oldest request of this kind."""
        place = next(place for place, (asked, _) in enumerate(self.waiting) if asked == op)
        _, on_reply = self.waiting.pop(place)
        on_reply(reply, None)

    def take(self, op: int) -> list[Json]:
        """What was asked of this kind since the last look."""
        found = [body for asked, body in self.asked if asked == op]
        self.asked = [entry for entry in self.asked if entry[0] != op]
        return found


@dataclass
class Bench:
    shards: LateShards = field(default_factory=LateShards)
    now: float = 1_000_000.0
    ended: int = 0

    def __post_init__(self) -> None:
        # The wall clock is an hour ahead, and only differences may count.
        self.hub = WorkStreams(self.shards, clock_ms=lambda: self.now, wall_ms=lambda: self.now + 3_600_000)

    def open(self, *, most: int = 1, node: str = "w", **more: Any) -> RecordedStream:
        stream = RecordedStream(StreamHead())

        def on_end() -> None:
            self.ended += 1

        given = {"key": None, "lease_ms": None, **more}
        self.hub.open(stream, topic="jobs", node=node, most=most, on_end=on_end, **given)
        return stream

    def jobs(self, *seqs: int, lease_ms: int = 30_000, token: str = "lease_") -> Answer:
        deadline = int(self.now + 3_600_000 + lease_ms)
        claimed = [
            {"$seq": seq, "$ts": 1, "deliveries": 1, "lease_id": f"{token}{seq}", "deadline": deadline, "data": 0}
            for seq in seqs
        ]  # fmt: skip
        body = json.dumps({"topic": "jobs", "claimed": claimed, "count": len(seqs), "ready": 5})
        return Answer(1, 200, body[:-1].encode())

    def deliver(self, *seqs: int, lease_ms: int = 30_000) -> None:
        self.shards.answer(Op.CLAIM, self.jobs(*seqs, lease_ms=lease_ms))

    def pass_time(self, ms: float) -> None:
        self.now += ms
        self.hub.tick()

    def acked(self, *seqs: int, lease_ids: list[str] | None = None, node: str = "w") -> None:
        body: Json = {"node": node, "seqs": list(seqs)}
        if lease_ids is not None:
            body["lease_ids"] = lease_ids
        self.hub.decided("jobs", json.dumps(body).encode())


@pytest.fixture
def bench() -> Bench:
    return Bench()


def lose(stream: RecordedStream) -> None:
    stream.gone = True
    for callback in stream.gone_callbacks:
        callback()


def sent_seqs(stream: RecordedStream) -> list[int]:
    text = b"".join(stream.frames).decode()
    return [int(line.removeprefix("id: ")) for line in text.split("\n") if line.startswith("id: ")]


def test_a_stream_claims_for_as_much_as_it_has_room(bench: Bench) -> None:
    stream = bench.open(most=3, lease_ms=500)
    assert stream.frames == [b"retry: 2000\n\n"]
    assert bench.shards.take(Op.CLAIM) == [{"node": "w", "max": 3, "wait_ms": 30_000, "lease_ms": 500}]
    bench.deliver(1, 2)
    assert sent_seqs(stream) == [1, 2]
    assert [claim["max"] for claim in bench.shards.take(Op.CLAIM)] == [1]
    bench.deliver(3)
    assert bench.shards.take(Op.CLAIM) == []
    bench.acked(1, 3)
    assert [claim["max"] for claim in bench.shards.take(Op.CLAIM)] == [2]
    bench.acked(2)
    assert bench.shards.take(Op.CLAIM) == [], "one claim at a time"
    bench.deliver(4, 5)
    assert [claim["max"] for claim in bench.shards.take(Op.CLAIM)] == [1]


def test_only_its_own_leases_count(bench: Bench) -> None:
    bench.open()
    bench.deliver(1)
    bench.shards.take(Op.CLAIM)
    bench.acked(1, node="other")
    bench.acked(1, lease_ids=["lease_of_another_time"])
    bench.acked(2)
    assert bench.shards.take(Op.CLAIM) == []
    bench.acked(1, lease_ids=["lease_1"])
    assert len(bench.shards.take(Op.CLAIM)) == 1


def test_a_lease_that_runs_out_makes_room(bench: Bench) -> None:
    bench.open()
    bench.deliver(1, lease_ms=5000)
    bench.shards.take(Op.CLAIM)
    bench.pass_time(4900)
    assert bench.shards.take(Op.CLAIM) == []
    bench.pass_time(200)
    assert len(bench.shards.take(Op.CLAIM)) == 1


def test_an_extended_lease_runs_out_later_and_a_skipped_one_is_over(bench: Bench) -> None:
    bench.open(most=2)
    bench.deliver(1, 2, lease_ms=5000)
    bench.shards.take(Op.CLAIM)
    body = json.dumps({"node": "w", "seqs": [1, 2], "lease_ms": 60_000}).encode()
    deadline = int(bench.now + 3_600_000 + 60_000)
    bench.hub.extended("jobs", body, b'{"extended":1,"skipped":1,"deadlines":{"1":%d}' % deadline)
    assert [claim["max"] for claim in bench.shards.take(Op.CLAIM)] == [1]
    bench.shards.answer(Op.CLAIM, bench.jobs())
    bench.shards.take(Op.CLAIM)
    bench.pass_time(20_000)
    bench.shards.answer(Op.CLAIM, bench.jobs())
    assert [claim["max"] for claim in bench.shards.take(Op.CLAIM)] == [1]
    bench.pass_time(50_000)
    bench.shards.answer(Op.CLAIM, bench.jobs())
    assert [claim["max"] for claim in bench.shards.take(Op.CLAIM)] == [2]


def test_a_client_that_leaves_gives_back_what_it_holds(bench: Bench) -> None:
    stream = bench.open(most=3)
    bench.deliver(1, 2)
    bench.acked(1)
    lose(stream)
    assert bench.shards.take(Op.NACK) == [{"node": "w", "seqs": [2], "lease_ids": ["lease_2"]}]
    assert (bench.ended, len(bench.hub), bench.hub.follows("jobs")) == (1, 0, False)


def test_a_claim_under_way_is_cancelled_and_given_back_if_it_crossed(bench: Bench) -> None:
    stream = bench.open(most=2)
    lose(stream)
    assert bench.shards.cancelled == [1]
    bench.deliver(7, 8)
    assert bench.shards.take(Op.NACK) == [{"node": "w", "seqs": [7, 8], "lease_ids": ["lease_7", "lease_8"]}]
    assert stream.frames == [b"retry: 2000\n\n"]


def test_a_cancelled_claim_says_nothing(bench: Bench) -> None:
    stream = bench.open()
    lose(stream)
    bench.shards.answer(Op.CLAIM, Answer(1, 499, b""))
    assert bench.shards.take(Op.NACK) == []


def test_very_many_leases_go_back_in_pieces(bench: Bench) -> None:
    stream = bench.open(most=5000)
    bench.deliver(*range(1, QUEUE_SEQS_MAX + 2))
    lose(stream)
    assert [len(nack["seqs"]) for nack in bench.shards.take(Op.NACK)] == [QUEUE_SEQS_MAX, 1]


def test_giving_back_is_repeated_until_it_arrives_or_the_lease_is_over(bench: Bench) -> None:
    stream = bench.open()
    bench.deliver(1, lease_ms=int(1.5 * WATCH_RETRY_MS))
    lose(stream)
    for _ in range(3):
        assert len(bench.shards.take(Op.NACK)) == 1
        bench.shards.answer(Op.NACK, DOWN)
        bench.pass_time(WATCH_RETRY_MS + 50)
    assert bench.shards.take(Op.NACK) == []


def test_a_shard_that_is_away_is_told_once_and_asked_again(bench: Bench) -> None:
    stream = bench.open()
    for _ in range(3):
        bench.shards.answer(Op.CLAIM, DOWN)
        bench.shards.take(Op.CLAIM)
        bench.pass_time(WATCH_RETRY_MS / 2)
        assert bench.shards.take(Op.CLAIM) == []
        bench.pass_time(WATCH_RETRY_MS)
        assert len(bench.shards.take(Op.CLAIM)) == 1
    assert len(stream.frames) == 2 and b'"code":503,"error":"shard_unavailable"' in stream.frames[1]
    bench.deliver(1)
    bench.acked(1)
    bench.shards.answer(Op.CLAIM, DOWN)
    assert len(stream.frames) == 4, "the next time is told again"


def test_a_refused_claim_ends_the_stream_in_the_words_of_the_worker(bench: Bench) -> None:
    stream = bench.open()
    status, body, _ = TopicNotFound(topic="jobs").to_wire()
    bench.shards.answer(Op.CLAIM, Answer(1, status, body))
    assert stream.ended and bench.ended == 1
    name, data = stream.frames[1].decode().strip().split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: ")) == {
        "code": 404,
        "error": "topic_not_found",
        "message": "topic jobs does not exist",
        "detail": {"topic": "jobs"},
    }


def test_an_idle_stream_has_heartbeats(bench: Bench) -> None:
    stream = bench.open()
    for beats in range(1, 4):
        bench.pass_time(WATCH_HEARTBEAT_MS - 100)
        assert len(stream.frames) == beats
        bench.pass_time(200)
        assert stream.frames[-1] == b": hb %d\n\n" % int(bench.now + 3_600_000)
    bench.deliver(1)
    bench.pass_time(WATCH_HEARTBEAT_MS - 100)
    assert sent_seqs(stream) == [1] and not stream.frames[-1].startswith(b": hb")


def test_a_slow_connection_gets_its_jobs_when_it_can_and_none_that_are_over(bench: Bench) -> None:
    stream = bench.open(most=4)
    stream.blocked = True
    bench.shards.answer(Op.CLAIM, bench.jobs(1, lease_ms=1000))
    bench.shards.take(Op.CLAIM)
    assert bench.shards.waiting == [], "nothing more is claimed for it"
    bench.pass_time(1100)
    stream.blocked = False
    assert stream.writable_callback is not None
    stream.writable_callback()
    assert sent_seqs(stream) == []
    bench.deliver(2)
    assert sent_seqs(stream) == [2]


def test_at_shutdown_every_stream_is_told_and_its_jobs_go_back(bench: Bench) -> None:
    streams = [bench.open(node="a"), bench.open(node="b")]
    bench.deliver(1)
    bench.deliver(2)
    bench.hub.drain()
    assert all(stream.ended and b"server_shutting_down" in stream.frames[-1] for stream in streams)
    assert [nack["seqs"] for nack in bench.shards.take(Op.NACK)] == [[1], [2]]
    assert bench.ended == 2


def test_streams_of_a_key_that_is_gone_end(bench: Bench) -> None:
    old, new = (parse_api_keys(text, key="k", source="test") for text in ("one,two", "two"))
    kept, gone = bench.open(key=old[1]), bench.open(key=old[0])
    bench.hub.keys_replaced(KeyRing(new))
    assert (kept.ended, gone.ended) == (False, True)
    assert b"key_revoked" in gone.frames[-1]


# --- claims whose client left ---------------------------------------------------------------------------------

EMPTY = b'{"topic":"jobs","claimed":[],"count":0,"ready":%d'


@dataclass
class LateClaim:
    harness: ApiHarness
    exchange: RecordedExchange
    answer: Callable[[Reply], None]


@pytest.fixture
def late_claim() -> Iterator[LateClaim]:
    shards = ScriptedShards(answer=lambda request: None)
    harness = ApiHarness(shards)
    exchange = harness.start("POST", "/v0/topics/jobs/claim", b'{"node":"w","max":2,"wait_ms":1000}')
    yield LateClaim(harness, exchange, lambda reply: shards.waiting.pop(1)(reply, None))


def nacks(asked: list[Request]) -> list[Json]:
    return [json.loads(request.body) for request in asked if request.op == Op.NACK]


def test_jobs_for_a_client_that_sends_no_more_go_back_and_it_is_told_so(
    bench: Bench, late_claim: LateClaim
) -> None:
    late_claim.exchange.half_closed = True
    late_claim.answer(bench.jobs(1, 2))
    assert nacks(late_claim.harness.shards.asked) == [
        {"node": "w", "seqs": [1, 2], "lease_ids": ["lease_1", "lease_2"]}
    ]
    assert late_claim.exchange.response is not None
    told = document(late_claim.exchange.response)
    assert (told["claimed"], told["count"], told["ready"]) == ([], 0, 7)


def test_a_claim_that_was_cancelled_is_answered_empty(late_claim: LateClaim) -> None:
    late_claim.exchange.half_closed = True
    late_claim.answer(Answer(1, 499, b""))
    assert late_claim.exchange.response is not None
    assert late_claim.exchange.response.status == 200
    assert document(late_claim.exchange.response)["claimed"] == []


def test_an_error_stays_an_error_for_a_client_that_sends_no_more(late_claim: LateClaim) -> None:
    late_claim.exchange.half_closed = True
    late_claim.answer(DOWN)
    assert late_claim.exchange.response is not None
    assert late_claim.exchange.response.status == 503
    assert nacks(late_claim.harness.shards.asked) == []
