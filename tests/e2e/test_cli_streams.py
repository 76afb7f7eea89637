"""`topics watch`, and the worker of `topics claim`: commands that go on while the world around them breaks."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api_client import ApiClient, fresh
from tests.support.live_server import LiveServer
from tests.support.server_process import wait_for
from tests.support.tcp_relay import TcpRelay
from tests.support.topics_cli import Following, TopicsCli
from topicsd.client.worker import WAIT_MS


@pytest.fixture(scope="module")
def cli(server: LiveServer) -> TopicsCli:
    return TopicsCli(server.port)


# --- watch ---


def test_watch_shows_topics_and_prefixes_also_those_created_later(
    cli: TopicsCli, plain_client: ApiClient
) -> None:
    topic, prefix = fresh("cli"), fresh("cli-room") + ":"
    plain_client.append(topic, 1, 2, 3)
    with Following(cli, "watch", f"{topic}@1", f"{prefix}*", "--events") as watch:
        assert [row["data"] for row in watch.rows(3)[:2]] == [2, 3]
        assert watch.rows(3)[2] == {"$event": "caught-up", "topic": topic, "head_seq": 3}
        plain_client.write(f"{prefix}a", {"data": "hello", "tag": "t"})
        watch.wait(lambda: any('"hello"' in line for line in watch.lines))
        (row,) = [row for row in watch.rows(4) if row.get("$topic") == f"{prefix}a"]
        assert (row["$seq"], row["$tag"], row["data"]) == (1, "t", "hello")
        assert watch.end(signal.SIGINT) == 130


def test_watch_ends_when_its_topics_are_gone(cli: TopicsCli, plain_client: ApiClient) -> None:
    topic = fresh("cli")
    plain_client.put(topic, cap_records=1)
    plain_client.append(topic, 1)
    plain_client.append(topic, 2)
    with Following(cli, "watch", topic, "--from-start", "--data") as watch:
        watch.wait_note("seq 1 is lost")
        watch.wait(lambda: watch.lines == ["2"])
        plain_client.ok("DELETE", f"/v0/topics/{topic}")
        assert watch.end() == 0
        watch.wait_note(f"{topic} was deleted")
    assert "topics create" in cli.fails(1, "watch", fresh("cli"))


def test_a_watch_resumes_after_its_connection_broke(server: LiveServer, plain_client: ApiClient) -> None:
    topic, prefix = fresh("cli"), fresh("cli-room") + ":"
    plain_client.append(topic, 1)
    with TcpRelay(server.port) as relay:
        cli = TopicsCli(relay.port)
        with Following(cli, "watch", f"{topic}@0", f"{prefix}*", "--data") as watch:
            watch.wait(lambda: watch.lines == ["1"])
            relay.cut()
            watch.wait_note("reconnecting")
            plain_client.append(topic, 2)
            plain_client.append(f"{prefix}new", 3)
            relay.restore()
            watch.wait(lambda: sorted(watch.lines) == ["1", "2", "3"])
            plain_client.append(topic, 4)
            watch.wait(lambda: watch.lines[-1] == "4")
            assert sorted(watch.lines) == ["1", "2", "3", "4"]


KEY = "s3cret-of-the-cli"


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with an API key, whose gateway is replaced at once when it dies."""
    data = tmp_path_factory.mktemp("keyed") / "data"
    with LiveServer(data, env={"TOPICS_API_KEYS": KEY}, restart={"first_delay_s": 0.02}) as running:
        yield running.wait_serving()


def test_a_wrong_key_says_which_variable_to_check(keyed: LiveServer) -> None:
    assert "set TOPICS_TOKEN" in TopicsCli(keyed.port).fails(1, "ls")
    assert "check TOPICS_TOKEN" in TopicsCli(keyed.port, TOPICS_TOKEN="wrong").fails(1, "ls")
    assert "line breaks" in TopicsCli(keyed.port, TOPICS_TOKEN="wr\nong").fails(2, "ls")
    TopicsCli(keyed.port, TOPICS_TOKEN=KEY).ok("ls")


def test_a_watch_goes_on_without_a_gap_when_the_server_forgot_its_session(keyed: LiveServer) -> None:
    topic, prefix = fresh("cli"), fresh("cli-room") + ":"
    with keyed.client(token=KEY) as api, TcpRelay(keyed.port) as relay:
        api.append(topic, 1)
        api.append(f"{prefix}old", "before")
        cli = TopicsCli(relay.port, TOPICS_TOKEN=KEY)
        with Following(cli, "watch", f"{topic}@0", f"{prefix}*", "--data") as watch:
            watch.wait(lambda: watch.lines == ["1"])
            api.append(f"{prefix}old", 2)
            watch.wait(lambda: watch.lines == ["1", "2"])
            relay.cut()
            started = sum(e["event"] == "child.ready" and e["child"] == "gateway" for e in keyed.log)
            keyed.kill_child("gateway")
            keyed.wait_child_ready("gateway", count=started + 1)
            with keyed.client(token=KEY) as again:
                wait_for(lambda: again.send("GET", "/v0/ready").status_code == 200)
                again.append(topic, 3)
                again.append(f"{prefix}old", 4)
                again.append(f"{prefix}new", 5)
                relay.restore()
                watch.wait(lambda: sorted(watch.lines) == ["1", "2", "3", "4", "5"])
                again.append(topic, 6)
                watch.wait(lambda: watch.lines[-1] == "6")
            assert sorted(watch.lines) == ["1", "2", "3", "4", "5", "6"]


# --- jobs ---


def test_jobs_are_claimed_acked_and_given_back(cli: TopicsCli, plain_client: ApiClient) -> None:
    queue = fresh("cli-jobs")
    cli.ok("create", queue, "--queue")
    cli.ok("append", queue, "a", "b", "c", "--raw")
    claimed = cli.ok("claim", queue, "-n", 2)
    assert claimed.datas == ["a", "b"]
    assert cli.ok("ack", queue, stdin=claimed.out.splitlines()[0]).out == "acked 1 of 1\n"
    assert cli.ok("nack", queue, 2, "--delay", "1h").out == "nacked 1 of 1\n"
    assert plain_client.state(queue)["queue"] == {
        "ready": 1,
        "in_flight": 0,
        "delayed": 1,
        "dead_lettered": 0,
    }
    # What was settled already, or belongs to somebody else, is said and is no success.
    skipped = cli.run("ack", queue, stdin=claimed.out)
    assert (skipped.code, skipped.out) == (1, "acked 0 of 2\n") and "2 skipped" in skipped.err
    assert "line 2" in cli.fails(4, "ack", queue, stdin="1\nx\n")
    assert cli.ok("claim", queue).datas == ["c"]
    assert cli.ok("claim", queue).out == ""
    log = fresh("cli")
    cli.ok("append", log, "1")
    assert "--queue" in cli.fails(1, "claim", log)


def test_a_worker_acks_what_succeeds_and_gives_back_what_fails(
    cli: TopicsCli, plain_client: ApiClient, tmp_path: Path
) -> None:
    queue = fresh("cli-jobs")
    plain_client.put(queue, type="queue")
    plain_client.append(queue, "good", "bad", "fine")
    script = f'read -r text; echo "$TOPICS_JOB_SEQ $TOPICS_JOB_DELIVERIES $text" >> {tmp_path}/ran; test "$text" != bad'
    ran = cli.run("claim", queue, "--exec", script, "--raw", "--drain", "--nack-delay", "1h", "-P", 2)
    assert ran.code == 5
    assert "job 2: the command ended with exit 1" in ran.err and "2 jobs done, 1 failed" in ran.err
    assert sorted((tmp_path / "ran").read_text().splitlines()) == ["1 1 good", "2 1 bad", "3 1 fine"]
    assert plain_client.state(queue)["queue"] == {
        "ready": 0,
        "in_flight": 0,
        "delayed": 1,
        "dead_lettered": 0,
    }


def test_a_worker_keeps_its_lease_while_the_command_runs(
    cli: TopicsCli, plain_client: ApiClient, tmp_path: Path
) -> None:
    queue = fresh("cli-jobs")
    plain_client.put(queue, type="queue")
    plain_client.append(queue, "slow")
    lease_ms = 1500
    script = f"touch {tmp_path}/began; until test -e {tmp_path}/go-on; do sleep 0.02; done"
    with Following(cli, "claim", queue, "--exec", script, "--lease", lease_ms, "-n", 1) as worker:
        wait_for((tmp_path / "began").exists)
        (lease,) = plain_client.ok("GET", f"/v0/topics/{queue}/leases")["leases"]

        def much_later() -> bool:
            leases = plain_client.ok("GET", f"/v0/topics/{queue}/leases")["leases"]
            # The same lease, beyond its first deadline: without extensions it would have run out.
            return [one["lease_id"] for one in leases] == [lease["lease_id"]] and leases[0][
                "age_ms"
            ] > lease_ms

        wait_for(much_later)
        (tmp_path / "go-on").touch()
        assert worker.end() == 0
        worker.wait_note("1 jobs done, 0 failed")
    assert plain_client.state(queue)["count"] == 0


def test_a_worker_finishes_its_job_at_the_first_signal_and_gives_it_back_at_the_second(
    cli: TopicsCli, plain_client: ApiClient, tmp_path: Path
) -> None:
    queue = fresh("cli-jobs")
    plain_client.put(queue, type="queue")
    plain_client.append(queue, 1, 2)
    script = f"touch {tmp_path}/$TOPICS_JOB_SEQ; until test -e {tmp_path}/go-on; do sleep 0.02; done"
    with Following(cli, "claim", queue, "--exec", script) as worker:
        wait_for((tmp_path / "1").exists)
        worker.process.send_signal(signal.SIGTERM)
        worker.wait_note("once more")
        (tmp_path / "go-on").touch()
        assert worker.end() == 130
    assert plain_client.values(queue) == [2]
    (tmp_path / "go-on").unlink()
    with Following(cli, "claim", queue, "--exec", script) as worker:
        wait_for((tmp_path / "2").exists)
        worker.process.send_signal(signal.SIGINT)
        worker.wait_note("once more")
        assert worker.end(signal.SIGINT) == 130
    assert plain_client.state(queue)["queue"]["ready"] == 1
    # Nobody is at work: a signal ends the wait for jobs at once.
    plain_client.delete_records(queue, before_seq=100)
    with Following(cli, "claim", queue, "--exec", "true") as idle:
        wait_for(lambda: waiting_claims(plain_client) > 0)
        idle.process.send_signal(signal.SIGTERM)
        assert idle.process.wait(WAIT_MS / 1000 / 2) == 130  # the server would answer much later


def waiting_claims(client: ApiClient) -> int:
    metrics = client.ok("GET", "/v0/metrics", headers={"Accept": "application/json"})
    return sum(shard["gauges"]["waiting_claims"] for shard in metrics["shards"])
