"""`topics router`: all options and refusals against a stand-in that answers as specified, the whole on a server."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.support.api_client import ApiClient, fresh
from tests.support.live_server import LiveServer
from tests.support.server_process import wait_for
from tests.support.topics_cli import TopicsCli


class RouterApi(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    routers: ClassVar[dict[str, dict[str, Any]]] = {}

    def _name(self) -> str:
        return unquote(urlsplit(self.path).path.removeprefix("/v0/routers/"))

    def _answer(self, document: object, status: int = 200) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["dest"] == body["source"]:
            error = {"code": "router_cycle", "message": "a cycle", "detail": {"cycle": [body["source"]]}}
            self._answer({"error": error}, 409)
            return
        self.routers[self._name()] = body
        self._answer({"router": self._name(), "created": True, **body}, 201)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path != "/v0/routers":
            found = self.routers.get(self._name())
            if found is None:
                error = {"code": "router_not_found", "message": "no such router"}
                self._answer({"error": error}, 404)
            else:
                self._answer({"router": self._name(), **found, "forwarded_total": 1234, "lag": 7})
            return
        query = parse_qs(url.query)
        prefix, first = query.get("prefix", [""])[0], int(query.get("cursor", ["0"])[0])
        names = sorted(name for name in self.routers if name.startswith(prefix))
        page: dict[str, object] = {
            "routers": [{"router": n, **self.routers[n]} for n in names[first : first + 1]]
        }
        if first + 1 < len(names):
            page["next_cursor"] = str(first + 1)
        self._answer(page)

    def do_DELETE(self) -> None:
        gone = self.routers.pop(self._name(), None)
        self._answer({"router": self._name(), "deleted": gone is not None})

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def cli() -> Iterator[TopicsCli]:
    RouterApi.routers = {}
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), RouterApi) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield TopicsCli(running.server_address[1])
        running.shutdown()
        thread.join()


def test_a_router_from_its_making_to_its_end(cli: TopicsCli) -> None:
    cli.ok(
        "router", "create", "a>b", "a", "b", "--filter", "tag=order-*", "--exactly-once", "--no-preserve-tag"
    )
    assert RouterApi.routers["a>b"] == {
        "source": "a",
        "dest": "b",
        "preserve_node": True,
        "preserve_tag": False,
        "create_dest": True,
        "filter": ["tag", "Glob", "order-*"],
        "allow_cycle": False,
        "guarantee": "exactly_once",
    }
    cli.ok("router", "create", "c", "x", "y")
    assert [row["router"] for row in cli.ok("router", "ls", "--json").rows] == ["a>b", "c"]
    row = cli.ok("router", "ls", "a").out.splitlines()[1]
    assert row.split() == ["a>b", "a", "b", "tag=order-*", "exactly_once", "-"]
    assert "forwarded  1,234\nlag        7\n" in cli.ok("router", "get", "a>b").out
    assert "topics router ls" in cli.fails(1, "router", "get", "absent")
    assert "--allow-cycle" in cli.fails(1, "router", "create", "d", "x", "x")
    assert cli.ok("router", "rm", "a>b").out == "deleted a>b\n"
    assert "no router" in cli.fails(1, "router", "rm", "a>b")


def test_a_router_copies_until_it_is_deleted(server: LiveServer, plain_client: ApiClient) -> None:
    cli = TopicsCli(server.port)
    source, dest = fresh("cli"), fresh("cli-copy")
    name = f"{source}>{dest}"
    plain_client.put(source)
    plain_client.put(dest)
    assert cli.ok("router", "create", name, source, dest).out == f"router {name} copies {source} to {dest}\n"
    plain_client.append(source, 1, 2)
    wait_for(lambda: plain_client.values(dest) == [1, 2])
    (listed,) = cli.ok("router", "ls", "--source", source, "--json").rows
    assert (listed["router"], listed["dest"]) == (name, dest)
    assert f"dest       {dest}" in cli.ok("router", "get", name).out
    assert cli.ok("router", "rm", name).out == f"deleted {name}\n"
    assert "topics router ls" in cli.fails(1, "router", "get", name)
