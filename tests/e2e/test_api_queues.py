"""Queues over HTTP on both lanes: claims, leases and what ends them, order, delays, dead letters, redrive."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from h2.connection import H2Connection

from shared.limits import QUEUE_SEQS_MAX
from tests.support.api_client import ApiClient, Json, fresh, fresh_on
from tests.support.live_server import LiveServer
from tests.support.queue_client import WAIT_MS, Background, Queue, waiting_claims
from tests.support.server_process import wait_for

SHARDS = 3  # of the shared server


@pytest.fixture
def queue(client: ApiClient) -> Queue:
    return Queue(client)


def now_ms() -> int:
    return int(time.time() * 1000)


# --- claim, ack, nack, extend ---------------------------------------------------------------------------------


def test_a_claim_shows_jobs_with_their_leases(client: ApiClient, queue: Queue) -> None:
    client.ok(
        "POST",
        queue.path,
        raw=b'{"records":[{"data":{"b":1.0, "a":[ ]},"tag":"t","node":"writer","key":"k","meta":{"m": 1}},'
        b'{"data":null},{"data":3}]}',
    )
    before = now_ms()
    answer = client.send("POST", f"{queue.path}/claim", {"node": "a", "max": 2, "lease_ms": 5000})
    document = answer.json()
    assert (document["topic"], document["count"], document["ready"]) == (queue.name, 2, 1)
    first, second = document["claimed"]
    assert before + 5000 <= first["deadline"] <= now_ms() + 5000
    assert first.pop("$ts") == second.pop("$ts") >= before - 60_000
    assert (first["$seq"], first["$tag"], first["deliveries"], first["meta"]) == (1, "t", 1, {"m": 1})
    assert b'"data":{"b":1.0, "a":[ ]}' in answer.content and b'"meta":{"m": 1}' in answer.content
    assert second.keys() == {"$seq", "deliveries", "lease_id", "deadline", "data"}
    assert first["lease_id"].startswith("lease_") and first["lease_id"] != second["lease_id"]
    assert queue.counts() == (1, 2, 0)


def test_a_claim_gets_one_job_unless_it_asks_for_more_and_never_more_than_there_are(queue: Queue) -> None:
    queue.write(*range(5))
    assert queue.values() == [0]
    assert queue.values(max=0) == [1]
    assert queue.values(max=100_000) == [2, 3, 4]
    assert queue.claim_answer()["claimed"] == []


def test_the_lease_of_the_queue_is_the_default_and_lengths_are_clamped(client: ApiClient) -> None:
    queue = Queue(client, lease_ms=7000)
    queue.write(1, 2, 3)
    for asked, given in ((None, 7000), (1, 100), (10**12, 86_400_000)):
        before = now_ms()
        request: Json = {} if asked is None else {"lease_ms": asked}
        (job,) = queue.claim("a", **request)
        assert before + given <= job["deadline"] <= now_ms() + given


def test_an_ack_removes_the_job_for_good(client: ApiClient, queue: Queue) -> None:
    queue.write("x", "y")
    jobs = queue.claim(max=2)
    assert {k: v for k, v in queue.ack(jobs[0]).items() if k != "performance"} == {
        "acked": 1,
        "skipped": 0,
        "ready": 0,
        "in_flight": 1,
    }
    assert client.values(queue.name) == ["y"]
    assert queue.ack(jobs[0])["skipped"] == 1
    assert queue.counts() == (0, 1, 0)


def test_only_the_holder_decides_and_others_are_skipped(queue: Queue) -> None:
    queue.write("x")
    (job,) = queue.claim("a")
    for decide in (queue.ack, queue.nack):
        answer = decide(job, node="b", fenced=False)
        assert (answer["skipped"], answer["in_flight"]) == (1, 1)
    assert queue.extend(job, node="b", lease_ms=1000, fenced=False)["deadlines"] == {}
    unknown = {**job, "$seq": 99}
    assert queue.ack(job, unknown, node="a", fenced=False)["acked"] == 1


def test_q03_a_stale_lease_decides_nothing(queue: Queue) -> None:
    queue.write("x")
    (old,) = queue.claim("a", lease_ms=100)
    new = queue.take("a")
    assert new["$seq"] == old["$seq"] and new["deliveries"] == 2
    assert queue.ack(old)["skipped"] == 1
    assert queue.nack(old)["skipped"] == 1
    assert queue.extend(old, lease_ms=60_000)["skipped"] == 1
    assert queue.counts() == (0, 1, 0)
    assert queue.ack(new)["acked"] == 1


def test_a_lease_that_ran_out_cannot_be_acked_even_if_nobody_else_has_the_job(queue: Queue) -> None:
    queue.write("x")
    (job,) = queue.claim(lease_ms=100)
    wait_for(lambda: queue.counts() == (1, 0, 0))
    assert queue.ack(job)["skipped"] == 1


def test_a_job_that_comes_back_goes_before_fresh_ones(queue: Queue) -> None:
    queue.write("first")
    queue.claim(lease_ms=100)
    queue.write("second")
    wait_for(lambda: queue.counts() == (2, 0, 0))
    assert [(job["data"], job["deliveries"]) for job in queue.claim(max=2)] == [("first", 2), ("second", 1)]


def test_a_nack_gives_the_job_back_at_once(queue: Queue) -> None:
    queue.write("x")
    (job,) = queue.claim()
    answer = queue.nack(job)
    assert (answer["nacked"], answer["skipped"], answer["ready"], answer["in_flight"]) == (1, 0, 1, 0)
    assert queue.claim("b")[0]["deliveries"] == 2


def test_a_nack_with_delay_is_neither_ready_nor_in_flight_until_due(queue: Queue) -> None:
    queue.write("x")
    (job,) = queue.claim()
    began = time.monotonic()
    queue.nack(job, delay_ms=300)
    assert queue.counts() == (0, 0, 1)
    assert queue.claim() == []
    assert queue.take()["deliveries"] == 2
    assert time.monotonic() - began >= 0.29


def test_an_extend_moves_the_deadline_both_ways(queue: Queue) -> None:
    queue.write("x")
    (job,) = queue.claim(lease_ms=200)
    before = now_ms()
    answer = queue.extend(job, lease_ms=60_000)
    assert (answer["extended"], answer["skipped"]) == (1, 0)
    assert before + 60_000 <= answer["deadlines"]["1"] <= now_ms() + 60_000
    assert queue.leases()["leases"][0]["deadline"] == answer["deadlines"]["1"]
    # Well past the first deadline it is still ours.
    wait_for(lambda: now_ms() > job["deadline"] + 50)
    assert queue.counts() == (0, 1, 0)
    queue.extend(job, lease_ms=1)
    wait_for(lambda: queue.counts() == (1, 0, 0))


def test_decisions_take_a_thousand_seqs_and_no_more(client: ApiClient, queue: Queue) -> None:
    queue.write(*range(QUEUE_SEQS_MAX))
    jobs = queue.claim(max=1000)
    seqs = [job["$seq"] for job in jobs]
    for verb in ("ack", "nack", "extend"):
        body = {"node": "a", "seqs": [*seqs, 1], "lease_ms": 1000}
        error = client.fails(400, "batch_too_large", "POST", f"{queue.path}/{verb}", body)
        assert error["detail"] == {"max": QUEUE_SEQS_MAX}
    assert queue.ack(*jobs)["acked"] == QUEUE_SEQS_MAX


def test_a_claim_of_large_jobs_hands_out_what_fits_into_one_answer(queue: Queue) -> None:
    large = "x" * 900_000
    for _ in range(12):
        queue.write(large)
    first = queue.claim(max=100)
    assert 8 <= len(first) < 12
    second = queue.claim(max=100)
    assert len(first) + len(second) == 12
    assert queue.ack(*first, *second)["acked"] == 12


# --- errors ---------------------------------------------------------------------------------------------------

CALLS: list[tuple[str, str, Json | None]] = [
    ("POST", "claim", {"node": "a"}),
    ("POST", "ack", {"node": "a", "seqs": [1]}),
    ("POST", "nack", {"node": "a", "seqs": [1]}),
    ("POST", "extend", {"node": "a", "seqs": [1], "lease_ms": 1000}),
    ("GET", "leases", None),
    ("POST", "redrive", {"from": "some-dead-letters"}),
    ("GET", "work?node=a", None),
]


@pytest.mark.parametrize(("method", "verb", "body"), CALLS)
def test_what_is_not_a_queue_says_so(client: ApiClient, method: str, verb: str, body: Json | None) -> None:
    absent, plain = fresh("absent"), fresh("log")
    error = client.fails(404, "topic_not_found", method, f"/v0/topics/{absent}/{verb}", body)
    assert error["detail"] == {"topic": absent}
    client.append(plain, 1)
    error = client.fails(409, "not_a_queue", method, f"/v0/topics/{plain}/{verb}", body)
    assert error["detail"] == {"topic": plain}
    client.fails(400, "invalid_request", method, f"/v0/topics/-/{verb}", body)


@pytest.mark.parametrize(("method", "verb", "body"), CALLS)
def test_other_methods_are_refused(client: ApiClient, method: str, verb: str, body: Json | None) -> None:
    path = f"/v0/topics/any/{verb.partition('?')[0]}"
    answer = client.send("DELETE", path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == ("GET, HEAD" if method == "GET" else "POST")


@pytest.mark.parametrize(
    ("verb", "raw"),
    [
        *[(verb, raw) for verb in ("claim", "ack", "nack", "extend", "redrive") for raw in (b"", b"[]", b"{", b"{}")],
        ("claim", b'{"node":""}'),
        ("claim", b'{"node":1}'),
        ("claim", b'{"node":"a","max":-1}'),
        ("claim", b'{"node":"a","wait_ms":"long"}'),
        ("claim", b'{"node":"a","lease_ms":-5}'),
        ("claim", b'{"node":"\xff"}'),
        ("ack", b'{"node":"a","seqs":"1"}'),
        ("ack", b'{"node":"a","seqs":[-1]}'),
        ("ack", b'{"node":"a","seqs":[1,2],"lease_ids":["lease_x"]}'),
        ("nack", b'{"node":"a","seqs":[1],"delay_ms":-1}'),
        ("extend", b'{"node":"a","seqs":[1]}'),
        ("redrive", b'{"from":"../x"}'),
        ("redrive", b'{"from":7}'),
        ("redrive", b'{"from":"x","match":["tag","Like","x"]}'),
    ],
)  # fmt: skip
def test_malformed_requests_change_nothing(client: ApiClient, queue: Queue, verb: str, raw: bytes) -> None:
    queue.write(1)
    client.append("x", 1)
    client.fails(400, "invalid_request", "POST", f"{queue.path}/{verb}", raw=raw)
    assert queue.counts() == (1, 0, 0)


@pytest.mark.parametrize("verb", ["claim", "ack", "nack", "extend", "redrive"])
def test_a_body_must_be_declared_as_json(client: ApiClient, queue: Queue, verb: str) -> None:
    client.fails(
        415,
        "unsupported_media_type",
        "POST",
        f"{queue.path}/{verb}",
        raw=b'{"node":"a"}',
        headers={"Content-Type": "text/plain"},
    )


def test_a_queue_cannot_be_redriven_from_itself(client: ApiClient, queue: Queue) -> None:
    client.fails(400, "invalid_request", "POST", f"{queue.path}/redrive", {"from": queue.name})


# --- waiting --------------------------------------------------------------------------------------------------


def test_a_waiting_claim_gets_the_job_that_comes(server: LiveServer, client: ApiClient, queue: Queue) -> None:
    with server.client(client.lane) as other:
        waiting = Background(lambda: Queue(other, queue.name).take("a"))
        wait_for(lambda: waiting_claims(client) >= 1)
        queue.write("late")
        assert waiting.result()["data"] == "late"


def test_a_waiting_claim_ends_empty_when_its_time_is_over(queue: Queue) -> None:
    began = time.monotonic()
    assert queue.claim(wait_ms=150) == []
    assert 0.14 <= time.monotonic() - began < 5


@pytest.mark.parametrize("way", ["nack", "lease runs out", "delay is over", "group is free"])
def test_a_waiting_claim_gets_the_job_that_becomes_free(
    server: LiveServer, client: ApiClient, queue: Queue, way: str
) -> None:
    grouped = {"group": "g"} if way == "group is free" else {}
    if way == "delay is over":
        queue.write("x", delay_ms=300)
        job: Json = {}
    else:
        queue.write("x", **grouped)
        (job,) = queue.claim("holder", lease_ms=300 if way == "lease runs out" else 60_000)
    if grouped:
        queue.write("next", **grouped)
    with server.client(client.lane) as other:
        waiting = Background(lambda: Queue(other, queue.name).take("a"))
        wait_for(lambda: waiting_claims(client) >= 1)
        if way == "nack":
            queue.nack(job, node="holder")
        elif way == "group is free":
            queue.ack(job, node="holder")
        # Looking at a queue must not take the wake-up away from whoever waits.
        for _ in range(50):
            queue.counts()
        assert waiting.result()["data"] == ("next" if grouped else "x")


def test_a_waiting_claim_is_told_when_its_queue_is_deleted(
    server: LiveServer, client: ApiClient, queue: Queue
) -> None:
    with server.client(client.lane) as other:
        body = {"node": "a", "wait_ms": WAIT_MS}
        waiting = Background(lambda: other.send("POST", f"{queue.path}/claim", body))
        wait_for(lambda: waiting_claims(client) >= 1)
        client.ok("DELETE", queue.path)
        assert waiting.result().json()["error"]["code"] == "topic_not_found"


def raw_claim(server: LiveServer, queue: Queue, **request: object) -> socket.socket:
    body = json.dumps({"node": "ghost", **request}).encode()
    sock = socket.create_connection(("127.0.0.1", server.port))
    sock.settimeout(10)
    head = f"POST {queue.path}/claim HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return sock


@pytest.mark.parametrize("how", ["close", "half close", "reset"])
def test_h05_a_waiting_claim_whose_client_vanishes_takes_no_job(
    server: LiveServer, plain_client: ApiClient, how: str
) -> None:
    queue = Queue(plain_client)
    ghost = raw_claim(server, queue, wait_ms=WAIT_MS)
    wait_for(lambda: waiting_claims(plain_client) == 1)
    if how == "reset":
        ghost.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    if how == "half close":
        ghost.shutdown(socket.SHUT_WR)
    else:
        ghost.close()
    wait_for(lambda: waiting_claims(plain_client) == 0)
    if how == "half close":
        # It may still read, and is told that it got nothing.
        assert b'"claimed":[],"count":0,' in ghost.recv(65536)
        ghost.close()
    queue.write("x")
    assert queue.claim("b")[0]["deliveries"] == 1


def test_h05_a_job_reaches_the_client_that_leaves_or_goes_back_at_once(
    server: LiveServer, plain_client: ApiClient
) -> None:
    """Request, answer and leaving cross each other; nobody has to wait for a lease to run out."""
    queue = Queue(plain_client, lease_ms=86_400_000)
    for _ in range(30):
        (seq,) = queue.write("x")
        ghost = raw_claim(server, queue)
        ghost.shutdown(socket.SHUT_WR)
        told = ghost.recv(65536)
        ghost.close()
        if b'"count":1' in told:
            assert queue.ack({"$seq": seq}, node="ghost", fenced=False)["acked"] == 1
        else:
            assert queue.ack(queue.take())["acked"] == 1


@pytest.mark.parametrize("how", ["close", "reset the stream"])
def test_h05_an_http2_client_that_vanishes_takes_no_job(
    server: LiveServer, plain_client: ApiClient, how: str
) -> None:
    queue = Queue(plain_client)
    link = H2Connection()
    link.initiate_connection()
    headers = {":method": "POST", ":scheme": "http", ":authority": "x", ":path": f"{queue.path}/claim"}
    link.send_headers(1, [*headers.items(), ("content-type", "application/json")])
    link.send_data(1, json.dumps({"node": "ghost", "wait_ms": WAIT_MS}).encode(), end_stream=True)
    with socket.create_connection(("127.0.0.1", server.port)) as ghost:
        ghost.sendall(link.data_to_send())
        wait_for(lambda: waiting_claims(plain_client) == 1)
        if how == "reset the stream":
            link.reset_stream(1)
            ghost.sendall(link.data_to_send())
            wait_for(lambda: waiting_claims(plain_client) == 0)
    wait_for(lambda: waiting_claims(plain_client) == 0)
    queue.write("x")
    assert queue.claim("b")[0]["deliveries"] == 1


# --- division over a cohort -----------------------------------------------------------------------------------


def claim_in_background(
    stack: ExitStack, server: LiveServer, queue: Queue, node: str, **request: object
) -> Background[list[Json]]:
    own = Queue(stack.enter_context(server.client(queue.client.lane)), queue.name)
    return Background(lambda: own.claim(node, **request))


def test_claims_within_the_window_share_evenly(server: LiveServer, client: ApiClient) -> None:
    queue = Queue(client, claim_jitter_ms=800)
    queue.write(*range(9))
    with ExitStack() as stack:
        claims = [claim_in_background(stack, server, queue, f"w{n}", max=9) for n in range(3)]
        shares = [claim.result() for claim in claims]
    assert [len(share) for share in shares] == [3, 3, 3]
    assert sorted(job["data"] for share in shares for job in share) == list(range(9))
    assert all(share == sorted(share, key=lambda job: job["$seq"]) for share in shares)


def test_what_one_claim_does_not_want_goes_to_the_others(server: LiveServer, client: ApiClient) -> None:
    queue = Queue(client, claim_jitter_ms=800)
    queue.write(*range(10))
    with ExitStack() as stack:
        claims = [claim_in_background(stack, server, queue, f"w{most}", max=most) for most in (1, 100, 4)]
        assert [len(claim.result()) for claim in claims] == [1, 5, 4]


def test_claims_that_wait_share_what_comes_whenever_they_came(server: LiveServer, client: ApiClient) -> None:
    queue = Queue(client, claim_jitter_ms=50)
    with ExitStack() as stack:
        claims = []
        for n in range(3):
            claims.append(claim_in_background(stack, server, queue, f"w{n}", max=9, wait_ms=WAIT_MS))
            wait_for(lambda: waiting_claims(client) >= len(claims))
            time.sleep(0.06)  # one window after the other
        queue.write(*range(9))
        assert [len(claim.result()) for claim in claims] == [3, 3, 3]


def test_a_lone_claim_waits_for_its_window_only(client: ApiClient) -> None:
    queue = Queue(client, claim_jitter_ms=100)
    queue.write("x")
    began = time.monotonic()
    assert queue.values() == ["x"]
    assert 0.09 <= time.monotonic() - began < 5
    assert queue.values() == []


# --- order ----------------------------------------------------------------------------------------------------


def test_delayed_jobs_are_delivered_when_they_are_due(client: ApiClient, queue: Queue) -> None:
    at = now_ms() + 300
    queue.write("at", deliver_at=at)
    queue.write("after", delay_ms=400)
    queue.write("past", deliver_at=1)
    assert queue.counts() == (1, 0, 2)
    assert client.values(queue.name) == ["at", "after", "past"], "readers see them at once"
    assert queue.take()["data"] == "past"
    assert queue.take()["data"] == "at" and now_ms() >= at
    assert queue.take()["data"] == "after" and now_ms() >= at + 90


def test_higher_priority_goes_first_and_order_of_writing_decides_between_equals(queue: Queue) -> None:
    queue.write("low", priority=-5)
    queue.write("a")
    queue.write("high", priority=60)
    queue.write("b")
    queue.write("higher", priority=61)
    order = [queue.values()[0] for _ in range(5)]
    assert order == ["higher", "high", "a", "b", "low"]


def test_one_answer_is_ascending_by_seq_whatever_the_priorities(queue: Queue) -> None:
    queue.write("a")
    queue.write("b", priority=10)
    queue.write("c", priority=20)
    assert queue.values(max=2) == ["b", "c"]
    assert queue.values(max=2) == ["a"]


def test_waiting_outweighs_priority_a_second_per_point(queue: Queue) -> None:
    queue.write("old")
    (old,) = queue.client.diff(queue.name)["records"]
    wait_for(lambda: now_ms() > old["$ts"] + 1000)
    queue.write("one point", priority=1)
    queue.write("ten points", priority=10)
    assert [queue.values()[0] for _ in range(3)] == ["ten points", "old", "one point"]


def test_a_group_is_first_in_first_out_and_groups_run_in_parallel(queue: Queue) -> None:
    for value in ("a1", "a2", "b1", "a3", "b2"):
        queue.write(value, group=value[0])
    queue.write("free")
    first = queue.claim(max=10)
    assert [job["data"] for job in first] == ["a1", "b1", "free"]
    assert queue.claim(max=10) == []
    a1, b1, _ = first
    queue.nack(a1)
    assert queue.values(max=10) == ["a1"], "the one that came back is still the next"
    queue.ack(b1)
    assert queue.values(max=10) == ["b2"]
    queue.ack({"$seq": a1["$seq"]}, fenced=False)
    assert queue.values(max=10) == ["a2"]


def test_a_delayed_job_holds_its_group_back(queue: Queue) -> None:
    queue.write("first", group="g", delay_ms=300)
    queue.write("second", group="g")
    assert queue.claim(max=2) == []
    assert queue.take()["data"] == "first"


def test_a_deleted_job_lets_its_group_go_on(client: ApiClient, queue: Queue) -> None:
    queue.write("first", group="g", tag="bad")
    queue.write("second", group="g")
    (job,) = queue.claim()
    client.delete_records(queue.name, match="bad")
    assert queue.values() == ["second"]
    assert queue.ack(job)["skipped"] == 1


@pytest.mark.parametrize(
    "fields",
    [{"deliver_at": -1}, {"delay_ms": "soon"}, {"priority": 1.5}, {"group": "x" * 257}, {"group": 7}],
)
def test_malformed_wishes_are_refused(client: ApiClient, queue: Queue, fields: Json) -> None:
    body = {"records": [{"data": 1, **fields}]}
    client.fails(400, "invalid_request", "POST", queue.path, body)
    assert queue.counts() == (0, 0, 0)


# --- leases, listed -------------------------------------------------------------------------------------------


def test_leases_are_listed_page_by_page(queue: Queue) -> None:
    queue.write(*range(7))
    jobs = [*queue.claim("a", max=3, lease_ms=60_000), *queue.claim("b", max=2)]
    page = queue.leases()
    assert (page["topic"], page["in_flight"], "next_cursor" in page) == (queue.name, 5, False)
    for job, lease in zip(jobs, page["leases"], strict=True):
        assert 0 <= lease.pop("age_ms") < 60_000
        assert lease == {
            "seq": job["$seq"],
            "node": "a" if job["$seq"] <= 3 else "b",
            "lease_id": job["lease_id"],
            "deliveries": 1,
            "deadline": job["deadline"],
        }
    seen: list[int] = []
    cursor: str | None = ""
    while cursor is not None:
        page = queue.leases(f"?page_size=2&cursor={cursor}")
        assert len(page["leases"]) <= 2 and page["in_flight"] == 5
        seen += [lease["seq"] for lease in page["leases"]]
        cursor = page.get("next_cursor")
        assert cursor is None or not cursor.isdecimal()
    assert seen == [1, 2, 3, 4, 5]


def test_a_page_of_leases_goes_on_behind_the_last_whatever_was_acked_meanwhile(queue: Queue) -> None:
    queue.write(*range(4))
    jobs = queue.claim(max=4)
    cursor = queue.leases("?page_size=2")["next_cursor"]
    queue.ack(*jobs[:3])
    assert [lease["seq"] for lease in queue.leases(f"?cursor={cursor}")["leases"]] == [4]


def test_bad_pages_of_leases_are_refused(client: ApiClient, queue: Queue) -> None:
    topics = client.ok("GET", "/v0/topics?page_size=1")["next_cursor"]
    for query in ("page_size=0", "page_size=x", "cursor=abc", f"cursor={topics}"):
        client.fails(400, "invalid_request", "GET", f"{queue.path}/leases?{query}")


# --- dead letters ---------------------------------------------------------------------------------------------


def exhaust(queue: Queue, *, deliveries: int) -> None:
    """Deliver everything that is ready as often as it may be."""
    for _ in range(deliveries):
        jobs = queue.claim(max=1000)
        assert jobs
        queue.nack(*jobs)


@pytest.fixture(params=["same shard", "another shard"])
def dead_name(request: pytest.FixtureRequest) -> tuple[str, str]:
    home = 0 if request.param == "same shard" else 1
    return fresh_on(0, SHARDS), fresh_on(home, SHARDS, "dead")


def test_a_job_delivered_too_often_moves_to_the_dead_letters(
    client: ApiClient, dead_name: tuple[str, str]
) -> None:
    name, dead = dead_name
    queue = Queue(client, name, max_deliveries=2, dead_letter=dead)
    client.write(name, {"data": {"n": 1.0}, "tag": "t", "key": "k", "node": "eu", "meta": {"trace": "ab"}})
    queue.write("plain")
    exhaust(queue, deliveries=2)
    assert queue.claim(max=10) == []
    wait_for(lambda: client.send("GET", f"/v0/topics/{dead}").status_code == 200)
    letters = wait_for(lambda: found if len(found := client.everything(dead)) == 2 else None)
    assert queue.counts() == (0, 0, 0)
    assert client.state(name)["queue"]["dead_lettered"] == 2
    assert client.values(name) == []
    for letter in letters:
        letter.pop("$ts")
    origin = {"$dead_letter_from": name, "$dead_letter_deliveries": 2}
    assert letters == [
        {
            "$seq": 1,
            "$tag": "t",
            "$key": "k",
            "$node": "eu",
            "data": {"n": 1.0},
            "meta": {"trace": "ab", **origin, "$dead_letter_src_seq": 1},
        },
        {"$seq": 2, "data": "plain", "meta": {**origin, "$dead_letter_src_seq": 2}},
    ]


def test_without_a_dead_letter_topic_a_job_is_delivered_for_ever(client: ApiClient) -> None:
    queue = Queue(client, max_deliveries=1)
    queue.write("x")
    exhaust(queue, deliveries=3)
    assert queue.claim()[0]["deliveries"] == 4


def test_dead_letters_that_cannot_be_taken_stay_until_they_can(
    client: ApiClient, dead_name: tuple[str, str]
) -> None:
    name, dead = dead_name
    client.put(dead, cap_records=1, discard="reject")
    client.append(dead, "full")
    queue = Queue(client, name, max_deliveries=1, dead_letter=dead)
    queue.write("x")
    exhaust(queue, deliveries=1)
    assert queue.claim() == []
    assert client.state(name)["count"] == 1
    client.delete_records(dead, before_seq=2)
    wait_for(lambda: not queue.claim(wait_ms=200) and client.state(name)["count"] == 0)
    assert client.values(dead) == ["x"]


def test_redrive_moves_dead_letters_back_as_they_were(client: ApiClient, dead_name: tuple[str, str]) -> None:
    name, dead = dead_name
    queue = Queue(client, name, max_deliveries=1, dead_letter=dead)
    jobs = [{"data": n, "tag": f"{'odd' if n % 2 else 'even'}-{n}", "meta": {"n": n}} for n in range(6)]
    client.write(name, *jobs)
    queue.write("bare")
    exhaust(queue, deliveries=1)
    queue.claim()
    wait_for(lambda: client.send("GET", f"/v0/topics/{dead}").status_code == 200)
    wait_for(lambda: client.state(dead)["count"] == 7)
    assert queue.redrive(dead, match=["tag", "Glob", "odd-*"], limit=2) == 2
    assert queue.redrive(dead, match=["tag", "Glob", "odd-*"]) == 1
    assert queue.redrive(dead, match="none") == 0
    assert [job["data"] for job in queue.claim(max=10)] == [1, 3, 5]
    wait_for(lambda: client.values(dead) == [0, 2, 4, "bare"])
    assert queue.redrive(dead) == 4
    again = queue.claim(max=10)
    assert [(job["data"], job.get("$tag"), job.get("meta"), job["deliveries"]) for job in again] == [
        (0, "even-0", {"n": 0}, 1),
        (2, "even-2", {"n": 2}, 1),
        (4, "even-4", {"n": 4}, 1),
        ("bare", None, None, 1),
    ]
    wait_for(lambda: client.state(dead)["count"] == 0)
    assert queue.redrive(dead) == 0


def test_redrive_from_a_topic_that_is_not_there_is_not_found(client: ApiClient, queue: Queue) -> None:
    absent = fresh("absent")
    error = client.fails(404, "topic_not_found", "POST", f"{queue.path}/redrive", {"from": absent})
    assert error["detail"] == {"topic": absent}


# --- records that go while they are leased --------------------------------------------------------------------


def test_a_leased_job_that_is_deleted_is_gone(client: ApiClient, queue: Queue) -> None:
    queue.write(*range(4))
    jobs = queue.claim(max=3)
    assert client.delete_records(queue.name, before_seq=3)["deleted"] == 2
    assert queue.counts() == (1, 1, 0)
    answer = queue.ack(*jobs)
    assert (answer["acked"], answer["skipped"]) == (1, 2)
    assert queue.leases()["leases"] == []


def test_a_cap_evicts_the_oldest_job_leased_or_not(client: ApiClient) -> None:
    queue = Queue(client, cap_records=2)
    queue.write("a", "b")
    jobs = queue.claim(max=2)
    queue.write("c")
    assert queue.counts() == (1, 1, 0)
    assert queue.ack(*jobs)["acked"] == 1
    assert queue.values(max=5) == ["c"]


def test_an_expired_job_is_not_delivered_and_cannot_be_acked(client: ApiClient, queue: Queue) -> None:
    queue.write("leased", "ready", "delayed")
    jobs = queue.claim(max=3)
    queue.nack(jobs[1])
    queue.nack(jobs[2], delay_ms=60_000)
    client.put(queue.name, ttl_ms=1)
    wait_for(lambda: queue.counts() == (0, 0, 0))
    assert queue.claim(max=3) == []
    assert queue.ack(jobs[0])["skipped"] == 1


def test_a_queue_that_is_made_anew_has_none_of_the_old_leases(client: ApiClient, queue: Queue) -> None:
    queue.write("old")
    (old,) = queue.claim()
    client.ok("DELETE", queue.path)
    anew = Queue(client, queue.name)
    anew.write("new")
    assert anew.counts() == (1, 0, 0)
    assert anew.ack(old)["skipped"] == 1
    assert anew.values() == ["new"]


def test_reading_a_queue_does_not_touch_its_leases(client: ApiClient, queue: Queue) -> None:
    queue.write("x", "y")
    queue.claim()
    assert client.values(queue.name) == ["x", "y"]
    assert [record["data"] for record in client.diff(queue.name, from_seq=1)["records"]] == ["y"]
    assert queue.counts() == (1, 1, 0)


# --- numbers --------------------------------------------------------------------------------------------------


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[LiveServer]:
    with LiveServer(tmp_path / "data", shards=2) as server:
        yield server.wait_serving()
        assert server.failures() == []


def test_the_metrics_count_jobs(own_server: LiveServer) -> None:
    with own_server.client() as client:
        queue = Queue(client, "jobs", max_deliveries=1, dead_letter="dead")
        queue.write(*range(6))
        queue.write("later", delay_ms=60_000)
        jobs = queue.claim(max=4)
        queue.ack(jobs[0])
        queue.nack(jobs[1])
        queue.claim(max=1)
        wait_for(lambda: client.state("jobs")["queue"]["dead_lettered"] == 1)
        wait_for(lambda: now_ms() > jobs[0]["$ts"] + 20)
        text = client.send("GET", "/v0/metrics").text
        numbers = client.ok("GET", "/v0/metrics", headers={"Accept": "application/json"})
    shards = numbers["shards"]

    def total(section: str, name: str) -> int:
        return sum(shard[section][name] for shard in shards)

    assert total("gauges", "queue_ready") == 1
    assert total("gauges", "queue_in_flight") == 3
    assert total("gauges", "queue_delayed") == 1
    assert total("gauges", "queue_dead_lettered") == 1
    assert total("counters", "jobs_claimed_total") == 5
    assert total("counters", "jobs_acked_total") == 1
    assert 20 <= total("gauges", "queue_oldest_ready_age_ms") < 60_000
    (own,) = [shard["per_topic"]["jobs"] for shard in shards if "jobs" in shard["per_topic"]]
    assert (own["queue_ready"], own["queue_in_flight"], own["queue_delayed"]) == (1, 3, 1)
    waits = [shard["histograms"]["queue_wait_ms"] for shard in shards]
    assert sum(wait["count"] for wait in waits) == 5, "a job counts when it is delivered for the first time"
    assert "topics_queue_wait_ms_bucket" in text and 'topics_queue_ready{shard="' in text
