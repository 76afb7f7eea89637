"""Who may do what, over the real server and on both lanes: route, scope and prefix, and every wrong key (H6)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.api_client import LANES, ApiClient, Lane, fresh
from tests.support.live_server import LiveServer
from tests.support.server_process import ROOT, environment, wait_for

# Secrets by what they may do. The dots tell them apart from every other word in a log.
SCOPES = {
    "k.all": "read+write+delete+admin",
    "k.read": "read",
    "k.write": "write",
    "k.delete": "delete",
    "k.admin": "admin",
    "k.rw": "read+write",
}
KEYS = "k.all,k.read:r,k.write:w,k.delete:d,k.admin:admin,k.rw:rw,k.ab::ab,k.two:r+w+a:ab:|zz,k.abread:r:ab"
SECRETS = [entry.partition(":")[0] for entry in KEYS.split(",")]


class Call(NamedTuple):
    method: str
    path: str  # {t}: a topic that exists
    body: object
    needs: frozenset[str]


CALLS = [
    Call("GET", "/v0/topics", None, frozenset({"read"})),
    Call("GET", "/v0/topics/{t}", None, frozenset({"read"})),
    Call("GET", "/v0/topics/{t}/records", None, frozenset({"read"})),
    Call("POST", "/v0/topics/{t}/diff", {}, frozenset({"read"})),
    Call("POST", "/v0/topics/{t}", {"records": [{"data": 1}]}, frozenset({"write"})),
    Call("POST", "/v0/topics/{t}/delete", {"before_seq": 1}, frozenset({"delete"})),
    Call("PUT", "/v0/topics/{t}", {}, frozenset({"admin"})),
    Call("DELETE", "/v0/topics/{t}", None, frozenset({"delete"})),
    Call("POST", "/v0/topics/{t}/claim", {"node": "n"}, frozenset({"read", "write"})),
    Call("POST", "/v0/topics/{t}/ack", {"node": "n", "seqs": [1]}, frozenset({"write"})),
    Call("POST", "/v0/topics/{t}/nack", {"node": "n", "seqs": [1]}, frozenset({"write"})),
    Call("POST", "/v0/topics/{t}/extend", {"node": "n", "seqs": [1], "lease_ms": 100}, frozenset({"write"})),
    Call("GET", "/v0/topics/{t}/leases", None, frozenset({"read"})),
    Call("GET", "/v0/metrics", None, frozenset({"read"})),
]
NAMED = [call for call in CALLS if "{t}" in call.path]


def call_id(call: object) -> str:
    return f"{call.method} {call.path}" if isinstance(call, Call) else str(call)


class Keyed:
    """One client per key, and `None` for a caller without."""

    def __init__(self, server: LiveServer, lane: Lane) -> None:
        self.server = server
        self.lane = lane
        self._clients: dict[str | None, ApiClient] = {}

    def __getitem__(self, secret: str | None) -> ApiClient:
        if secret not in self._clients:
            self._clients[secret] = self.server.client(self.lane, token=secret)
        return self._clients[secret]

    def close(self) -> None:
        for client in self._clients.values():
            client.__exit__(None, None, None)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    data_dir = tmp_path_factory.mktemp("guarded") / "data"
    with LiveServer(data_dir, env={"TOPICS_API_KEYS": KEYS}) as server:
        server.wait_serving()
        yield server
        assert server.failures() == []
        assert not any(secret in json.dumps(server.log) for secret in SECRETS), "a key was logged"
        assert server.stop() == 0


@pytest.fixture(scope="module", params=LANES)
def keyed(guarded: LiveServer, request: pytest.FixtureRequest) -> Iterator[Keyed]:
    clients = Keyed(guarded, request.param)
    yield clients
    clients.close()


def a_topic(keyed: Keyed, prefix: str = "t") -> str:
    """A queue, because every route works on one."""
    topic = fresh(prefix)
    keyed["k.all"].append(topic, "value", config={"type": "queue"})
    return topic


# --- scopes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", SCOPES)
@pytest.mark.parametrize("call", CALLS, ids=call_id)
def test_h06_a_route_answers_exactly_the_keys_that_have_its_scope(
    keyed: Keyed, call: Call, secret: str
) -> None:
    path = call.path.replace("{t}", a_topic(keyed))
    if call.needs <= set(SCOPES[secret].split("+")):
        assert keyed[secret].send(call.method, path, call.body).status_code in (200, 201)
    else:
        error = keyed[secret].fails(403, "forbidden", call.method, path, call.body)
        missing = call.needs - set(SCOPES[secret].split("+"))
        assert all(scope in error["message"] for scope in missing)


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "Bearer",
        "Bearer wrong",
        "Bearer k.al",
        "Bearer k.alll",
        "Bearer K.ALL",
        "Bearer k.all,k.read",
        "Bearer k.all:r",
        "Bearer k.all k.all",
        "Basic ay5hbGw6",
        "k.all",
        "Token k.all",
        'Bearer "k.all"',
        "Bearer " + "x" * 4000,
        "Bearer k.\u00e4ll",
    ],
)
@pytest.mark.parametrize("call", CALLS, ids=call_id)
def test_h06_missing_wrong_and_malformed_keys_are_401_on_every_route(
    keyed: Keyed, call: Call, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization.encode("latin-1")}
    answer = keyed[None]._http.request(
        call.method,
        call.path.replace("{t}", "some"),
        headers=headers,
        json=call.body,
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthorized")
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_h06_a_key_in_the_query_is_for_event_streams_only(keyed: Keyed) -> None:
    keyed[None].fails(401, "unauthorized", "GET", "/v0/topics?token=k.all")


def test_the_scheme_is_not_case_sensitive(keyed: Keyed) -> None:
    for scheme in ("bearer", "BEARER"):
        keyed[None].ok("GET", "/v0/topics", headers={"Authorization": f"{scheme} k.read"})


def test_two_authorization_headers_are_no_key(guarded: LiveServer) -> None:
    """Joined by a comma they are not a key: whichever of the two were taken, someone could be fooled."""
    with guarded.client() as client:
        answer = client._http.get(
            "/v0/topics", headers=[("Authorization", "Bearer wrong"), ("Authorization", "Bearer k.all")]
        )
    assert answer.status_code == 401


def test_probes_are_open_and_routes_that_do_not_exist_need_no_key(keyed: Keyed) -> None:
    for path in ("/v0/health", "/healthz", "/v0/ready", "/readyz"):
        assert keyed[None].send("GET", path).status_code == 200
        # A wrong key is no reason to take a healthy server out of service.
        keyed[None].ok("GET", path, headers={"Authorization": "Bearer wrong"})
    keyed[None].fails(404, "not_found", "GET", "/v0/nothing")
    keyed[None].fails(405, "method_not_allowed", "PATCH", "/v0/topics")


# --- prefixes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("call", NAMED, ids=call_id)
@pytest.mark.parametrize(
    ("base", "allowed"), [("ab", True), ("abc", True), ("a", False), ("Ab", False), ("xab", False)]
)
def test_h06_a_prefix_is_compared_from_the_first_byte_on(
    keyed: Keyed, call: Call, base: str, allowed: bool
) -> None:
    topic = a_topic(keyed, base)
    answer = keyed["k.ab"].send(call.method, call.path.replace("{t}", topic), call.body)
    if allowed:
        assert answer.is_success
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
        assert topic not in answer.text
        assert keyed["k.all"].state(topic)["head_seq"] == 1, "nothing happened to it"


@pytest.mark.parametrize("call", NAMED, ids=call_id)
def test_h06_a_forbidden_name_answers_alike_whether_it_exists_or_not(keyed: Keyed, call: Call) -> None:
    there, absent = a_topic(keyed, "secret"), fresh("secret")
    answers = [
        keyed["k.ab"].send(call.method, call.path.replace("{t}", topic), call.body).content
        for topic in (there, absent)
    ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("call", NAMED, ids=call_id)
def test_h06_names_are_compared_after_their_one_decoding(keyed: Keyed, call: Call) -> None:
    allowed, other = a_topic(keyed, "ab"), a_topic(keyed, "xy")
    path = call.path.replace("{t}", allowed.replace("a", "%61", 1))
    assert keyed["k.ab"].send(call.method, path, call.body).is_success
    for trick in (
        f"%78{other[1:]}",
        f"ab%2F..%2F{other}",
        f"ab%2f{other}",
        f"ab/../{other}",
        f"{other}%00ab",
        f"%2561b{other}",
        f"ab%0d%0a{other}",
    ):
        answer = keyed["k.ab"].send(call.method, call.path.replace("{t}", trick), call.body)
        assert answer.status_code in (400, 403, 404, 405), trick
        assert "value" not in answer.text
    assert keyed["k.all"].values(other) == ["value"]


def test_h06_several_prefixes_each_count(keyed: Keyed) -> None:
    for base, allowed in (("ab:", True), ("zz", True), ("zzz", True), ("ab", False), ("z", False)):
        topic = a_topic(keyed, base)
        assert keyed["k.two"].send("GET", f"/v0/topics/{topic}").is_success is allowed, base
        assert keyed["k.two"].send("PUT", f"/v0/topics/{fresh(base)}", {}).is_success is allowed, base


@pytest.mark.parametrize(
    ("raw", "allowed"),
    [
        (b'{"dead_letter":"abx"}', True),
        (b'{"dead_letter":null}', True),
        (b'{"dead_letter":"other"}', False),
        (b'{"dead_letter":"\\u006fther"}', False),
        (b'{"dead_letter":"abx","dead_letter":"other"}', False),
        (b'{"dead_letter":"other","dead_letter":"abx"}', True),
        (b'{"dead_\\u006cetter":"other"}', False),
    ],
)
def test_h06_names_in_bodies_are_held_to_the_prefix(keyed: Keyed, raw: bytes, allowed: bool) -> None:
    put = keyed["k.ab"].send("PUT", f"/v0/topics/{fresh('ab')}", raw=raw)
    write = keyed["k.ab"].send(
        "POST", f"/v0/topics/{fresh('ab')}", raw=b'{"records":[{"data":1}],"config":%b}' % raw
    )
    for answer in (put, write):
        assert answer.status_code == (201 if allowed else 403), answer.text


def test_h06_lists_show_only_allowed_names_on_every_page(keyed: Keyed) -> None:
    base = fresh()
    mine = [f"ab{base}:{n}" for n in range(5)]
    for name in (*mine, f"a{base}", f"b{base}", f"ac{base}"):
        keyed["k.all"].put(name)
    found: list[str] = []
    cursor = ""
    while True:
        page = keyed["k.ab"].ok("GET", f"/v0/topics?page_size=2{cursor}")
        found += [entry["topic"] for entry in page["topics"]]
        if "next_cursor" not in page:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert all(name.startswith("ab") for name in found)
    assert set(mine) <= set(found)
    for prefix, expected in ((f"ab{base}", mine), (f"ac{base}", []), (f"a{base}", [])):
        page = keyed["k.ab"].ok("GET", f"/v0/topics?prefix={prefix}")
        assert [entry["topic"] for entry in page["topics"]] == expected


def test_h06_a_cursor_is_no_way_around_the_prefix(keyed: Keyed) -> None:
    for name in ("aa1", "aa2", "ac1"):
        keyed["k.all"].put(name)
    cursor = keyed["k.all"].ok("GET", "/v0/topics?prefix=aa&page_size=1")["next_cursor"]
    page = keyed["k.ab"].ok("GET", f"/v0/topics?cursor={cursor}&page_size=1000")
    assert all(entry["topic"].startswith("ab") for entry in page["topics"])


def test_h06_metrics_name_only_allowed_topics(keyed: Keyed) -> None:
    mine, other = a_topic(keyed, "ab"), a_topic(keyed, "hidden")
    text = keyed["k.abread"].send("GET", "/v0/metrics").text
    document = keyed["k.abread"].send("GET", "/v0/metrics", headers={"Accept": "application/json"}).text
    for shown in (text, document):
        assert mine in shown and other not in shown
    assert other in keyed["k.all"].send("GET", "/v0/metrics").text


# --- settings -----------------------------------------------------------------------------------


def test_no_child_has_a_key_in_its_environment(guarded: LiveServer) -> None:
    for child in ("gateway", "shard-0", "shard-1"):
        environ = Path(f"/proc/{guarded.child_pid(child)}/environ").read_bytes().split(b"\0")
        # Only ours are looked at (and shown if this fails): the rest is whatever the tests were started with.
        ours = [entry for entry in environ if entry.startswith(b"TOPICS_")]
        assert any(entry.startswith(b"TOPICS_DATA_DIR=") for entry in ours), "this is the right process"
        assert not any(b"API_KEYS" in entry or b"k.all" in entry for entry in ours)


def test_guarded_probes_and_rotating_keys_on_a_public_address(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# first\nf.one\nf.probe:d:zz\n")
    env = {"TOPICS_API_KEYS_FILE": str(keys), "TOPICS_PROBE_AUTH": "1", "TOPICS_HOST": "0.0.0.0"}
    with LiveServer(tmp_path / "data", shards=1, env=env) as server:
        server.wait_ready()
        with (
            server.client() as nobody,
            server.client("http2", token="f.one") as one,
            server.client(token="f.two") as two,
            server.client(token="f.probe") as prober,
        ):
            for path in ("/v0/health", "/healthz", "/v0/ready", "/readyz"):
                nobody.fails(401, "unauthorized", "GET", path)
                two.fails(401, "unauthorized", "GET", path)
                # Any key will do: a probe needs no scope.
                wait_for(lambda path=path: prober.send("GET", path).status_code == 200)
            one.append("t", 1)
            # The connections stay; what counts is the ring at each request.
            keys.write_text("f.two:rw\n")
            server.signal(signal.SIGHUP)
            wait_for(lambda: two.send("GET", "/v0/topics/t").status_code == 200)
            one.fails(401, "unauthorized", "GET", "/v0/topics/t")
            two.fails(403, "forbidden", "DELETE", "/v0/topics/t")
            for broken in ("f.two:nonsense\n", "# nothing\n"):
                keys.write_text(broken)
                refusals = sum(line["event"] == "keys.not_reloaded" for line in server.log)
                server.signal(signal.SIGHUP)
                server.wait_log("keys.not_reloaded", count=refusals + 1)
                assert two.values("t") == [1]
            # A gateway that starts anew has the last good ones.
            server.kill_child("gateway")
            server.wait_child_ready("gateway", count=2)
        with server.client(token="f.two") as again, server.client(token="f.one") as old:
            wait_for(lambda: again.send("GET", "/v0/ready").status_code == 200)
            assert again.values("t") == [1]
            old.fails(401, "unauthorized", "GET", "/v0/topics/t")
        assert server.stop() == 0
        logged = json.dumps(server.log)
        assert "f.one" not in logged and "f.two" not in logged and "nonsense" not in logged


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_a_public_address_without_keys_is_refused(tmp_path: Path, host: str) -> None:
    done = serve(tmp_path, TOPICS_HOST=host)
    assert done.returncode == 2
    assert "TOPICS_API_KEYS" in done.stderr or "api_keys" in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_public_address_without_keys_can_be_insisted_on(tmp_path: Path) -> None:
    env = {"TOPICS_HOST": "0.0.0.0", "TOPICS_ALLOW_INSECURE_NO_AUTH": "1"}
    with LiveServer(tmp_path / "data", shards=1, env=env) as server:
        server.wait_serving()
        assert "network" in server.wait_log("auth.off", level="warning")["reason"]


@pytest.mark.parametrize("keys", ["s3cr3t:fly", "s3cr3t:r:-", ":r", "a,,b", "s3cr3t,s3cr3t:r"])
def test_malformed_keys_refuse_to_start_without_repeating_them(tmp_path: Path, keys: str) -> None:
    done = serve(tmp_path, TOPICS_API_KEYS=keys)
    assert done.returncode == 2
    assert "entry" in done.stderr
    assert "s3cr3t" not in done.stderr and "fly" not in done.stderr


def serve(tmp_path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A start that is expected to be refused."""
    settings = {"TOPICS_DATA_DIR": str(tmp_path / "data"), "TOPICS_PORT": "0", **env}
    return subprocess.run(
        [sys.executable, "-m", "topicsd", "serve"],
        env=environment(settings),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
    )
