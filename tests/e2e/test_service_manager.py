"""The supervisor under a service manager: what it says on the notify socket, the watchdog, inherited ports, keys."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import httpx
import pytest

from tests.support.live_server import LiveServer
from tests.support.notify_socket import NotifySocket
from tests.support.server_process import WAIT_S, ServerProcess, cue, wait_for


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


# --- start, reload, stop ----------------------------------------------------------------------


def test_ready_is_said_when_every_shard_has_replayed_and_not_before(data_dir: Path, tmp_path: Path) -> None:
    held = cue(data_dir, "hold-1")
    with NotifySocket(tmp_path) as manager, ServerProcess(data_dir, env=manager.env) as server:
        # The other shard and the gateway are up; this one has come to 40 %.
        place = manager.wait("STATUS", "1 of 2 shards ready, 1 replaying (40%)")
        assert int(manager.messages[place]["EXTEND_TIMEOUT_USEC"]) >= 30_000_000
        server.wait_log("child.ready", child="gateway")
        assert not any("READY" in message for message in manager.messages)
        held.unlink()
        ready = manager.wait("READY", "1")
        assert manager.messages[ready]["STATUS"] == "2 of 2 shards ready"
        server.wait_ready()
        assert server.stop() == 0


def test_a_reload_and_a_stop_are_told(data_dir: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first")
    with (
        NotifySocket(tmp_path) as manager,
        ServerProcess(data_dir, env={**manager.env, "TOPICS_API_KEYS_FILE": str(keys)}) as server,
    ):
        ready = manager.wait("READY", "1")
        before_usec = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        server.signal(signal.SIGHUP)
        reloading = manager.wait("RELOADING", "1", after=ready)
        assert int(manager.messages[reloading]["MONOTONIC_USEC"]) >= before_usec
        manager.wait("READY", "1", after=reloading)
        assert server.stop() == 0
        stopping = manager.wait("STOPPING", "1")
        # More than the drain itself may take (5 s here), so that the manager does not cut it short.
        assert int(manager.messages[stopping]["EXTEND_TIMEOUT_USEC"]) > 5_000_000
        assert manager.messages[stopping:][1:] == []


def test_a_shard_that_has_failed_for_good_does_not_keep_the_others_from_being_ready(
    data_dir: Path, tmp_path: Path
) -> None:
    cue(data_dir, "fail-0", '{"reason": "its log needs version 9", "retry": false}')
    with NotifySocket(tmp_path) as manager, ServerProcess(data_dir, env=manager.env) as server:
        ready = manager.wait("READY", "1")
        status = manager.messages[ready]["STATUS"]
        assert status == "1 of 2 shards ready; shard-0 failed: its log needs version 9"
        assert server.stop() == 0


def test_children_inherit_nothing_that_is_meant_for_the_supervisor(data_dir: Path, tmp_path: Path) -> None:
    secrets = tmp_path / "credentials"
    secrets.mkdir()
    with NotifySocket(tmp_path) as manager:
        env = {**manager.env, "WATCHDOG_USEC": "60000000", "CREDENTIALS_DIRECTORY": str(secrets)}
        with ServerProcess(data_dir, env=env) as server:
            server.wait_ready()
            for child in ("gateway", "shard-0"):
                pid = next(e["pid"] for e in server.journal() if e["who"] == child)
                names = {
                    line.partition(b"=")[0] for line in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                }
                assert names.isdisjoint({b"NOTIFY_SOCKET", b"WATCHDOG_USEC", b"CREDENTIALS_DIRECTORY"})


# --- watchdog ---------------------------------------------------------------------------------

PULSE = {"silent_s": 0.5}


def pings(manager: NotifySocket) -> int:
    return sum("WATCHDOG" in message for message in manager.messages)


def watched(manager: NotifySocket) -> dict[str, str]:
    return {**manager.env, "WATCHDOG_USEC": "200000"}  # a ping every 50 ms


def test_pings_end_while_a_worker_is_stopped_and_go_on_with_its_successor(
    data_dir: Path, tmp_path: Path
) -> None:
    # The supervisor replaces it only much later than the pings end.
    silence = {"hang_s": 2.0}
    with (
        NotifySocket(tmp_path) as manager,
        ServerProcess(data_dir, env=watched(manager), pulse=PULSE, silence=silence) as server,
    ):
        server.wait_ready()
        os.kill(server.worker_pid(1), signal.SIGSTOP)
        assert server.wait_log("watchdog.withheld")["reason"] == "shard-1 is silent"
        seen = pings(manager)
        server.wait_log("child.died", child="shard-1")
        assert pings(manager) <= seen + 1  # one may have been on its way
        server.wait_log("watchdog.resumed")
        server.wait_log("child.ready", child="shard-1", count=2)
        wait_for(lambda: pings(manager) > seen + 3)


def test_pings_end_when_a_worker_that_says_it_lives_does_not_answer_the_gateway(
    data_dir: Path, tmp_path: Path
) -> None:
    with (
        NotifySocket(tmp_path) as manager,
        ServerProcess(data_dir, env=watched(manager), pulse=PULSE) as server,
    ):
        server.wait_ready()
        deaf = cue(data_dir, "deaf-0")
        reason = server.wait_log("watchdog.withheld")["reason"]
        assert reason == "shard-0 does not answer the gateway"
        deaf.unlink()
        server.wait_log("watchdog.resumed")


def test_the_real_gateway_asks_the_real_workers(data_dir: Path, tmp_path: Path) -> None:
    with NotifySocket(tmp_path) as manager:
        children = {"worker_module": "shard_worker", "gateway_module": "gateway", "heartbeat_s": 0.1}
        pulse = {"silent_s": 2.0}
        with ServerProcess(data_dir, plan=children, env=watched(manager), pulse=pulse) as server:
            server.wait_ready()
            seen = pings(manager)
            # Longer than a shard may leave the gateway without an answer.
            began = time.monotonic()
            wait_for(lambda: time.monotonic() > began + 2.5)
            assert pings(manager) > seen
            assert not any(line["event"] == "watchdog.withheld" for line in server.log)
            gateway = next(
                e["child_pid"]
                for e in server.log
                if (e["event"], e.get("child")) == ("child.started", "gateway")
            )
            os.kill(gateway, signal.SIGSTOP)
            try:
                assert server.wait_log("watchdog.withheld")["reason"].startswith("gateway is silent")
            finally:
                os.kill(gateway, signal.SIGCONT)
            server.wait_log("watchdog.resumed")
            assert server.stop() == 0


# --- an inherited port ------------------------------------------------------------------------


def test_a_port_that_the_manager_opened_outlives_the_server(data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with LiveServer(data_dir, shards=1, listener=listener) as server:
            server.wait_serving()
            assert server.wait_log("server.listening")["inherited"] is True
            assert server.port == listener.getsockname()[1]
            httpx.post(f"{url}/v0/topics/t", json={"records": [{"data": 1}]}).raise_for_status()
            assert server.stop() == 0
        # Nobody serves it now, and still a client is not refused: it waits for the next start.
        with socket.create_connection(listener.getsockname(), timeout=WAIT_S) as waiting:
            waiting.sendall(b"GET /v0/health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
            with LiveServer(data_dir, shards=1, listener=listener):
                assert waiting.recv(12) == b"HTTP/1.1 200"


def test_an_inherited_port_is_only_taken_by_the_process_it_is_meant_for(data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        env = {"LISTEN_FDS": "1", "LISTEN_PID": "1"}
        with ServerProcess(data_dir, env=env) as server:
            server.wait_ready()
            assert server.port != listener.getsockname()[1]


def test_a_door_that_others_can_reach_is_not_opened_without_keys(data_dir: Path) -> None:
    with (
        socket.create_server(("0.0.0.0", 0)) as listener,
        LiveServer(data_dir, listener=listener) as server,
    ):
        assert server.wait_exit() == 2
        assert "there are no API keys" in server.wait_log("plain")["text"]


def test_a_descriptor_that_does_not_listen_is_refused(data_dir: Path) -> None:
    with socket.socket() as unbound, LiveServer(data_dir, listener=unbound) as server:
        assert server.wait_exit() == 5
        assert "Accept=no" in server.wait_log("plain")["text"]


# --- credentials ------------------------------------------------------------------------------


def test_keys_come_from_the_credentials_directory(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "api_keys").write_text("s3cret\n")
    env = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    with LiveServer(data_dir, shards=1, env=env) as server:
        server.wait_ready()
        metrics = f"http://127.0.0.1:{server.port}/v0/metrics"
        assert httpx.get(metrics).status_code == 401
        assert httpx.get(metrics, headers={"Authorization": "Bearer s3cret"}).status_code == 200
        assert "s3cret" not in str(server.log)


# --- moving topics at start -------------------------------------------------------------------


def test_a_move_of_topics_reports_progress_and_can_be_stopped(data_dir: Path, tmp_path: Path) -> None:
    with LiveServer(data_dir, shards=1) as server:
        server.wait_serving()
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
            for number in range(40):
                client.post(f"/v0/topics/t{number}", json={"records": [{"data": number}]}).raise_for_status()
        assert server.stop() == 0
    with NotifySocket(tmp_path) as manager:
        with LiveServer(data_dir, shards=3, env=manager.env) as server:
            manager.wait("STATUS")
            server.signal(signal.SIGTERM)  # in the move or behind it: a clean stop either way
            assert server.wait_exit() == 0
        with LiveServer(data_dir, shards=3, env=manager.env) as server:
            server.wait_serving()
            with httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
                assert client.get("/v0/ready").json()["topics"] == 40
        moving = [m for m in manager.messages if m.get("STATUS", "").startswith("moving topics")]
        assert moving and all("EXTEND_TIMEOUT_USEC" in message for message in moving)
