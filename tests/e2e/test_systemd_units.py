"""The units in ops/systemd: systemd accepts them, they shut the server in, and the server can live in there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.live_server import LiveServer
from tests.support.server_process import ROOT
from tests.support.unit_sandbox import available, directives

UNITS = ROOT / "ops" / "systemd"
SERVICE, SOCKET = UNITS / "topicsd.service", UNITS / "topicsd.socket"
AUDIT, TIMER = UNITS / "topicsd-audit.service", UNITS / "topicsd-audit.timer"

needs_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")


@pytest.fixture
def units(tmp_path: Path) -> list[Path]:
    """Copies whose program exists on this machine."""
    copies = []
    for unit in (SERVICE, SOCKET, AUDIT, TIMER):
        copies.append(tmp_path / unit.name)
        copies[-1].write_text(unit.read_text().replace("/opt/topicsd/venv/bin/topicsd", "/bin/true"))
    return copies


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60)


@needs_systemd
def test_systemd_accepts_the_units(units: list[Path]) -> None:
    done = analyze("verify", *units)
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
def test_systemd_finds_a_wrong_unit(units: list[Path]) -> None:
    units[0].write_text(units[0].read_text().replace("ProtectSystem=strict", "ProtectSystm=strict"))
    assert "ProtectSystm" in analyze("verify", *units).stderr


@needs_systemd
def test_the_exposure_is_as_low_as_the_documents_say(units: list[Path]) -> None:
    done = analyze("security", "--offline=true", units[0])
    found = re.search(r"exposure level for topicsd.service: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    documented = re.search(
        r"exposure level of ([0-9]+[.][0-9]+)", (ROOT / "docs" / "operations.md").read_text()
    )
    assert documented is not None
    # Releases of systemd weigh a little differently.
    assert float(found[1]) <= float(documented[1]) + 0.5


def test_what_the_server_relies_on_is_in_the_unit() -> None:
    service = directives(SERVICE)
    expected = {
        "Type": "notify",
        "NotifyAccess": "main",
        "KillMode": "mixed",
        "StateDirectory": "topicsd",
        "ProtectSystem": "strict",
        "NoNewPrivileges": "yes",
        "PrivateTmp": "yes",
        "CapabilityBoundingSet": "",
        "RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6",
        # A start reads /proc/sys/kernel/random/boot_id.
        "ProcSubset": "all",
        "LoadCredential": "api_keys:/etc/topicsd/api_keys",
    }
    assert {name: service[name] for name in expected} == {name: [value] for name, value in expected.items()}
    # The supervisor's own cure for a child that hangs comes first (Silence.hang_s, plus the restart).
    assert int(service["WatchdogSec"][0]) > 60
    assert directives(SOCKET)["FileDescriptorName"] == ["http"]


@pytest.mark.skipif(not available(), reason="systemd-analyze or libseccomp is not installed")
def test_the_server_can_live_in_the_sandbox_of_its_unit(tmp_path: Path) -> None:
    with LiveServer(
        tmp_path / "data", shards=1, inside=["-m", "tests.support.unit_sandbox", str(SERVICE)]
    ) as server:
        server.wait_serving()
        status = Path(f"/proc/{server.child_pid('shard-0')}/status").read_text()
        assert re.search(r"^Seccomp:\s+2$", status, re.MULTILINE)  # filtered, and so is every child
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
            write = {"records": [{"data": 1}], "config": {"durable": True}}
            assert client.post("/v0/topics/t", json=write).status_code == 201
            assert len(client.get("/v0/topics/t/records").json()["records"]) == 1
            assert client.get("/docs").status_code == 200
            assert client.get("/v0/metrics").status_code == 200
        with server.client("http2") as http2:
            assert http2.send("GET", "/v0/topics/t").status_code == 200
        assert server.failures() == []
        assert server.stop() == 0


@pytest.mark.skipif(not available(), reason="systemd-analyze or libseccomp is not installed")
def test_the_sandbox_kills_what_the_unit_forbids() -> None:
    forbidden = "import os; os.chroot('/')"
    sandbox = [sys.executable, "-m", "tests.support.unit_sandbox", str(SERVICE)]
    assert subprocess.run([*sandbox, "-c", forbidden], cwd=ROOT).returncode == -31  # SIGSYS
