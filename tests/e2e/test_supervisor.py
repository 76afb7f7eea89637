"""The supervisor with real processes. Its children are stand-ins: what they do, they do on cue."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.server_process import ROOT, ServerProcess, cue, environment, is_fake, wait_for


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


def run_cli(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "topicsd", *args],
        env=environment(env),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
    )


# --- start ------------------------------------------------------------------------------------


def test_a_start_prepares_the_directory_opens_the_port_and_brings_every_child_up(data_dir: Path) -> None:
    with ServerProcess(data_dir) as server:
        server.wait_ready()
        store = json.loads((data_dir / "store.json").read_text())
        assert len(store.pop("id")) == 16
        assert store == {"format": 1, "shards": 2}
        assert (data_dir / "run").stat().st_mode & 0o777 == 0o700
        assert data_dir.stat().st_mode & 0o777 == 0o700
        with socket.create_connection(("127.0.0.1", server.port), timeout=5):
            pass
        for shard in range(2):
            server.wait_event(event="shard", shard=shard, state="ready")
        assert server.stop() == 0
        assert server.output() == f"topicsd is listening on http://127.0.0.1:{server.port}\n"


def test_the_log_tells_the_settings_and_warns_that_auth_is_off(data_dir: Path) -> None:
    with ServerProcess(data_dir) as server:
        server.wait_ready()
        assert server.wait_log("server.starting")["data_dir"] == str(data_dir)
        assert server.wait_log("auth.off")["level"] == "warning"


def test_the_gateway_hears_how_far_a_replay_has_come(data_dir: Path) -> None:
    hold = cue(data_dir, "hold-1")
    with ServerProcess(data_dir) as server:
        server.wait_event(shard=0, state="ready")
        assert server.wait_event(shard=1, state="replaying", progress=0.4)
        assert not [line for line in server.log if line["event"] == "server.ready"]
        hold.unlink()
        server.wait_ready()
        server.wait_event(shard=1, state="ready")


def test_keys_reach_the_gateway_alone_and_nobody_by_the_environment(data_dir: Path) -> None:
    with ServerProcess(data_dir, env={"TOPICS_API_KEYS": "s3cret,other:r"}) as server:
        server.wait_ready()
        started = {entry["who"]: entry for entry in server.journal() if entry["step"] == "started"}
        assert {who: entry["keys"] for who, entry in started.items()} == {
            "gateway": 2,
            "shard-0": 0,
            "shard-1": 0,
        }
        assert not any(entry["secret_in_env"] for entry in started.values())
        assert "s3cret" not in json.dumps(server.log)
        for entry in started.values():
            assert b"s3cret" not in Path(f"/proc/{entry['pid']}/environ").read_bytes()
            assert b"s3cret" not in Path(f"/proc/{entry['pid']}/cmdline").read_bytes()


def test_a_path_too_long_for_sockets_moves_them_to_a_private_directory(tmp_path: Path) -> None:
    data_dir = tmp_path / ("d" * 100)
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as scratch,
        ServerProcess(data_dir, env={"TMPDIR": scratch}) as server,
    ):
        server.wait_ready()
        (sockets,) = Path(scratch).glob("topicsd-*")
        assert sockets.stat().st_mode & 0o777 == 0o700
        assert sorted(path.name for path in sockets.iterdir()) == ["shard-0000.sock", "shard-0001.sock"]


def test_no_place_for_sockets_is_refused(tmp_path: Path) -> None:
    scratch = tmp_path / ("t" * 100)
    scratch.mkdir()
    data_dir = str(tmp_path / ("d" * 100))
    done = run_cli(
        "serve", "--data-dir", data_dir, "--port", "0", TMPDIR=str(scratch), TOPICS_LOG_LEVEL="error"
    )
    assert done.returncode == 2
    assert "use a shorter data_dir or TMPDIR" in done.stderr


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "env", "named"),
    [
        ([], {"TOPICS_PORT": "many"}, "TOPICS_PORT (environment)"),
        (["--wal-shards", "0"], {}, "--wal-shards (flag)"),
        ([], {"TOPICS_DATADIR": "x"}, "TOPICS_DATADIR (environment)"),
        (["--config", "/nonexistent.toml"], {}, "--config (flag)"),
        (["--host", "0.0.0.0"], {}, "--host (flag)"),
        (["--api-keys-file", "/nonexistent"], {}, "api_keys_file (key file)"),
        (["--data-dir", "/proc/nowhere"], {}, "data_dir"),
    ],
)
def test_bad_settings_are_refused_by_name(args: list[str], env: dict[str, str], named: str) -> None:
    done = run_cli("serve", *args, **({"TOPICS_LOG_LEVEL": "error"} | env))
    assert done.returncode == 2
    assert done.stderr.startswith(f"topicsd: {named}")
    assert done.stderr.count("\n") == 1


def test_a_locked_directory_is_refused(data_dir: Path) -> None:
    with ServerProcess(data_dir) as server:
        server.wait_ready()
        done = run_cli("serve", "--data-dir", str(data_dir), "--port", "0", TOPICS_LOG_LEVEL="error")
        assert done.returncode == 3
        assert f"in use by process {server.pid}" in done.stderr
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        ('{"format":2,"shards":"other"}', 4, "format version 2"),
        ('{"format":1', 4, "damaged"),
        ('{"format":1,"shards":0}', 4, "damaged"),
        (None, 4, "store.json is missing"),
    ],
)
def test_a_store_that_cannot_be_served_is_refused(
    data_dir: Path, content: str | None, code: int, words: str
) -> None:
    (data_dir / "shard-0000").mkdir(parents=True)
    if content is not None:
        (data_dir / "store.json").write_text(content)
    done = run_cli(
        "serve", "--data-dir", str(data_dir), "--port", "0", "--wal-shards", "2", TOPICS_LOG_LEVEL="error"
    )
    assert done.returncode == code
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_port_in_use_is_refused_with_its_own_code(data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run_cli("serve", "--data-dir", str(data_dir), "--port", port, TOPICS_LOG_LEVEL="error")
    assert done.returncode == 5
    assert f"port {port}" in done.stderr


# --- children that die ------------------------------------------------------------------------


def test_p01_a_killed_worker_comes_back_while_the_others_stay(data_dir: Path) -> None:
    with ServerProcess(data_dir) as server:
        server.wait_ready()
        victim, other = server.worker_pid(0), server.worker_pid(1)
        os.kill(victim, signal.SIGKILL)
        assert server.wait_log("child.died", child="shard-0")["reason"] == "it was killed by SIGKILL"
        server.wait_log("child.ready", child="shard-0", count=2)
        assert server.worker_pid(0) != victim
        assert server.worker_pid(1) == other
        server.wait_event(shard=0, state="down", reason="it was killed by SIGKILL")
        assert [e["state"] for e in server.events() if e["shard"] == 1].count("down") == 0


def test_restarts_leak_no_descriptors(data_dir: Path) -> None:
    with ServerProcess(data_dir) as server:
        server.wait_ready()
        fds = Path(f"/proc/{server.pid}/fd")
        before = len(list(fds.iterdir()))
        for restarts in range(1, 4):
            os.kill(server.worker_pid(0), signal.SIGKILL)
            server.wait_log("child.ready", child="shard-0", count=1 + restarts)
        assert len(list(fds.iterdir())) == before


def test_p02_a_killed_gateway_keeps_its_port_and_is_told_everything_again(data_dir: Path) -> None:
    with ServerProcess(data_dir) as server:
        server.wait_ready()
        port = server.port
        first = next(e["pid"] for e in server.journal() if e["who"] == "gateway")
        os.kill(first, signal.SIGKILL)
        server.wait_log("child.ready", child="gateway", count=2)
        # The listener never closed: a client that came meanwhile waits instead of being refused.
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
        for shard in range(2):
            server.wait_journal(
                lambda e, shard=shard: (  # type: ignore[misc]
                    e["pid"] != first
                    and e["step"] == "event"
                    and e["event"] == {"event": "shard", "shard": shard, "state": "ready"}
                )
            )


def test_p03_a_killed_supervisor_leaves_no_orphans_and_the_next_start_works(data_dir: Path) -> None:
    with ServerProcess(data_dir) as server:
        server.wait_ready()
        children = {entry["pid"] for entry in server.journal()}
        assert all(is_fake(pid) for pid in children)
        port = server.port
        server.signal(signal.SIGKILL)
        # At once, on the same port: the old gateway may not have noticed yet.
        with ServerProcess(data_dir, env={"TOPICS_PORT": str(port)}) as successor:
            successor.wait_ready()
            wait_for(lambda: not any(is_fake(pid) for pid in children))
            assert successor.stop() == 0


def test_p04_a_stopped_worker_is_killed_and_replaced(data_dir: Path) -> None:
    with ServerProcess(data_dir, silence={"hang_s": 0.5}) as server:
        server.wait_ready()
        victim = server.worker_pid(1)
        os.kill(victim, signal.SIGSTOP)
        assert server.wait_log("child.died", child="shard-1")["reason"] == "no heartbeat for 0.5 s"
        server.wait_log("child.ready", child="shard-1", count=2)
        assert not is_fake(victim)


def test_a_stopped_supervisor_does_not_take_its_children_for_hung(data_dir: Path) -> None:
    with ServerProcess(data_dir, silence={"hang_s": 0.4}) as server:
        server.wait_ready()
        before = server.worker_pid(0)
        server.signal(signal.SIGSTOP)
        time.sleep(0.8)  # the point is that this much time passes for it unseen
        server.signal(signal.SIGCONT)
        assert server.stop() == 0
        assert server.worker_pid(0) == before


def test_p06_a_crash_loop_is_slowed_down_and_its_reason_is_told(data_dir: Path) -> None:
    crash = cue(data_dir, "crash-0")
    with ServerProcess(data_dir, restart={"loop_after": 3, "loop_delay_s": 0.3}) as server:
        line = server.wait_log("child.crash_loop", child="shard-0")
        assert (line["quick_deaths"], line["restart_in_s"], line["level"]) == (3, 0.3, "error")
        delays = [entry["restart_in_s"] for entry in server.log if entry["event"] == "child.died"]
        assert delays == [0.02, 0.04]
        reason = server.wait_event(shard=0, state="failed")["reason"]
        assert reason == "crash loop: it died 3 times in a row, the last time: it exited with code 7"
        server.wait_event(shard=1, state="ready")
        # Down is not for ever.
        crash.unlink()
        server.wait_ready()
        server.wait_event(shard=0, state="ready")


def test_a_worker_that_says_a_restart_is_pointless_stays_down_with_its_reason(data_dir: Path) -> None:
    cue(data_dir, "fail-0", json.dumps({"reason": "the log needs version 9", "retry": False}))
    with ServerProcess(data_dir) as server:
        assert server.wait_log("child.failed", child="shard-0")["reason"] == "the log needs version 9"
        assert server.wait_event(shard=0, state="failed")["reason"] == "the log needs version 9"
        server.wait_event(shard=1, state="ready")
        assert server.stop() == 0
        assert server.steps().count(("shard-0", "started")) == 1


# --- signals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_gateway_first_and_then_the_workers(data_dir: Path, number: int) -> None:
    with ServerProcess(data_dir) as server:
        server.wait_ready()
        server.signal(number)
        assert server.wait_exit() == 0
        ending = [entry for entry in server.steps() if entry[1] in ("draining", "gone")]
        assert ending[:2] == [("gateway", "draining"), ("gateway", "gone")]
        assert sorted(ending[2:]) == sorted(
            (f"shard-{shard}", step) for shard in range(2) for step in ("draining", "gone")
        )


def test_children_do_not_follow_signals_meant_for_the_supervisor(data_dir: Path) -> None:
    with ServerProcess(data_dir) as server:
        server.wait_ready()
        pid = server.worker_pid(0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid, number)
        assert server.stop() == 0
        assert server.worker_pid(0) == pid
        assert ("shard-0", "gone") in server.steps()


def test_a_drain_that_takes_too_long_is_cut_and_told(data_dir: Path) -> None:
    cue(data_dir, "stuck-0")
    cue(data_dir, "stuck-gateway")
    with ServerProcess(data_dir, env={"TOPICS_DRAIN_TIMEOUT_MS": "400"}) as server:
        server.wait_ready()
        began = time.monotonic()
        assert server.stop() == 1
        assert time.monotonic() - began < 2.5
        for child in ("gateway", "shard-0"):
            server.wait_log("child.drain.overdue", child=child)
        assert ("shard-1", "gone") in server.steps()


def test_a_second_signal_ends_everything_at_once(data_dir: Path) -> None:
    cue(data_dir, "stuck-gateway")
    with ServerProcess(data_dir, env={"TOPICS_DRAIN_TIMEOUT_MS": "60000"}) as server:
        server.wait_ready()
        children = {entry["pid"] for entry in server.journal()}
        server.signal(signal.SIGTERM)
        server.wait_journal(lambda entry: (entry["who"], entry["step"]) == ("gateway", "draining"))
        server.signal(signal.SIGTERM)
        assert server.wait_exit() == 1
        assert not any(is_fake(pid) for pid in children)


def test_a_signal_during_the_start_is_a_clean_stop(data_dir: Path) -> None:
    cue(data_dir, "hold-0")
    with ServerProcess(data_dir) as server:
        server.wait_event(shard=0, state="replaying", progress=0.4)
        assert server.stop() == 0


def test_sighup_reads_the_keys_again_and_a_bad_file_changes_nothing(data_dir: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first\n")
    with ServerProcess(data_dir, env={"TOPICS_API_KEYS_FILE": str(keys)}) as server:
        server.wait_ready()
        keys.write_text("# rotated\nsecond:r\nthird\n")
        server.signal(signal.SIGHUP)
        assert server.wait_log("keys.reloaded")["keys"] == 2
        event = server.wait_event(event="keys")
        assert [sorted(key["scopes"]) for key in event["keys"]] == [
            ["read"],
            ["admin", "delete", "read", "write"],
        ]
        keys.write_text("fourth:nonsense")
        server.signal(signal.SIGHUP)
        assert "entry 1" in server.wait_log("keys.not_reloaded", level="error")["reason"]
        # A gateway that starts now gets the last good ones.
        os.kill(next(e["pid"] for e in server.journal() if e["who"] == "gateway"), signal.SIGKILL)
        server.wait_log("child.ready", child="gateway", count=2)
        started = [
            entry for entry in server.journal() if (entry["who"], entry["step"]) == ("gateway", "started")
        ]
        assert [entry["keys"] for entry in started] == [1, 2]
        assert len([event for event in server.events() if event["event"] == "keys"]) == 1
        assert "nonsense" not in json.dumps(server.log)


def test_sighup_without_a_key_file_is_harmless(data_dir: Path) -> None:
    with ServerProcess(data_dir) as server:
        server.wait_ready()
        server.signal(signal.SIGHUP)
        server.wait_log("keys.not_reloaded")
        assert server.stop() == 0


# --- files ------------------------------------------------------------------------------------


def test_a_stale_port_file_is_gone_before_the_new_port_is_known(data_dir: Path) -> None:
    with ServerProcess(data_dir) as server:
        server.wait_ready()
        first = server.port
        assert server.stop() == 0
    with socket.create_server(("127.0.0.1", first)), ServerProcess(data_dir) as server:
        server.wait_ready()
        assert server.port != first


def test_a_stored_directory_opens_again(data_dir: Path) -> None:
    for _ in range(2):
        with ServerProcess(data_dir) as server:
            server.wait_ready()
            assert server.stop() == 0


def test_the_version_and_the_settings_can_be_asked_for() -> None:
    assert run_cli("--version").stdout.startswith("topicsd, version ")
    done = run_cli("config", "--port", "81", TOPICS_API_KEYS="s3cret")
    assert "port = 81\n" in done.stdout
    assert "# api_keys: 1\n" in done.stdout
    assert "s3cret" not in done.stdout


# --- with the real gateway --------------------------------------------------------------------


def get(server: ServerProcess, path: str, token: str | None = None) -> tuple[int, Any]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    answer = httpx.get(f"http://127.0.0.1:{server.port}{path}", headers=headers, timeout=5)
    is_json = answer.headers["content-type"].startswith("application/json")
    return answer.status_code, answer.json() if is_json else None


def test_p06_the_gateway_serves_at_once_and_says_which_shard_is_missing_and_why(data_dir: Path) -> None:
    crash = cue(data_dir, "crash-1")
    with ServerProcess(
        data_dir, plan={"gateway_module": "gateway"}, restart={"loop_after": 2, "loop_delay_s": 0.5}
    ) as server:
        server.wait_log("child.ready", child="gateway")
        server.wait_log("child.crash_loop", child="shard-1")
        wait_for(lambda: get(server, "/v0/ready")[1]["error"]["detail"]["shards"][0]["ready"])
        assert get(server, "/v0/health")[0] == 200
        status, body = get(server, "/v0/ready")
        assert (status, body["error"]["code"]) == (503, "not_ready")
        good, bad = body["error"]["detail"]["shards"]
        assert (good["ready"], bad["ready"]) == (True, False)
        assert bad["reason"].startswith("crash loop: it died")
        crash.unlink()
        wait_for(lambda: get(server, "/v0/ready")[0] == 200)
        assert server.stop() == 0


def test_rotated_keys_are_in_force_without_a_restart(data_dir: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first")
    env = {"TOPICS_API_KEYS_FILE": str(keys)}
    with ServerProcess(data_dir, env=env, plan={"gateway_module": "gateway"}) as server:
        server.wait_ready()
        assert get(server, "/v0/metrics", "first")[0] == 200
        keys.write_text("second")
        server.signal(signal.SIGHUP)
        wait_for(lambda: get(server, "/v0/metrics", "second")[0] == 200)
        assert get(server, "/v0/metrics", "first")[0] == 401
        assert server.stop() == 0
