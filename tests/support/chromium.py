"""A page in headless Chromium: the real `EventSource`, not our idea of it.

The page reports to the test over HTTP, so nothing but the browser is needed. If that is missing and we are root,
`python -m tests.support.chromium` installs Debian's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HOW_TO_INSTALL = (
    "no Chromium found: run `python -m tests.support.chromium` as root, or `sudo apt-get install chromium`"
)


def find() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


def install() -> str:
    """The browser's path; installed from Debian's archive if need be."""
    path = find()
    if path is None and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], check=True, env=quiet)
        subprocess.run(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"], check=True, env=quiet
        )
        path = find()
    if path is None:
        raise SystemExit(HOW_TO_INSTALL)
    return path


class Page:
    """Serves one page to one browser, and keeps what its script reports with `report(value)`."""

    def __init__(self, script: str, *, api_port: int) -> None:
        self._reports: list[Any] = []
        self._changed = threading.Condition()
        text = _HTML.replace("SCRIPT", script)
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(text.encode(), "text/html; charset=utf-8")

            def do_POST(self) -> None:
                value = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with page._changed:
                    page._reports.append(value)
                    page._changed.notify_all()
                self._answer(b"{}", "application/json")

            def _answer(self, body: bytes, kind: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._api_port = api_port

    def __enter__(self) -> Self:
        path = find()
        assert path is not None, HOW_TO_INSTALL
        self._profile = tempfile.mkdtemp(prefix="topicsd-chromium-")
        self._thread.start()
        self._browser = subprocess.Popen(
            [
                path,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--no-first-run",
                # The page comes from our port, the stream from the server's: what CORS would forbid a stranger's page.
                "--disable-web-security",
                f"--user-data-dir={self._profile}",
                f"http://127.0.0.1:{self._server.server_port}/?api={self._api_port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._browser.terminate()
        try:
            self._browser.wait(10)
        except subprocess.TimeoutExpired:
            self._browser.kill()
            self._browser.wait()
        self._server.shutdown()
        self._server.server_close()
        shutil.rmtree(self._profile, ignore_errors=True)

    @property
    def reports(self) -> list[Any]:
        with self._changed:
            return list(self._reports)

    def wait(self, enough: Callable[[list[Any]], bool], timeout_s: float = 40) -> list[Any]:
        with self._changed:
            assert self._changed.wait_for(lambda: enough(self._reports), timeout_s), self._reports
            return list(self._reports)


_HTML = """<!doctype html><meta charset="utf-8"><title>watch</title><script>
const api = "http://127.0.0.1:" + new URLSearchParams(location.search).get("api");
let line = Promise.resolve();
function report(value) {
  line = line.then(() => fetch("/", {method: "POST", body: JSON.stringify(value)}));
}
SCRIPT
</script>"""


if __name__ == "__main__":
    sys.stdout.write(install() + "\n")
