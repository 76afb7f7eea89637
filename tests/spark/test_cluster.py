"""The audit on a standalone cluster: a master and two workers from the pip-installed Spark, our code sent as a zip."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from shared.audit_report import decode_report
from tests.support.audit_kit import cold_segments, copy_store, flip_byte, regions, run_audit
from tests.support.cold_stores import fill, store_in

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.exhaustive, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
START_S = 240


@contextmanager
def daemon(directory: Path, name: str, *arguments: str) -> Iterator[Path]:
    """One of Spark's processes; yields the file with what it says."""
    log = directory / f"{name}.log"
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    # Elsewhere than in the sources: what the tasks import must have come with the job.
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(SPARK_CLASS), *arguments], stdout=out, stderr=out, env=env, cwd=directory
        )
    try:
        yield log
    finally:
        process.terminate()
        process.wait(60)


def wait_for(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if found := re.search(pattern, log.read_text(errors="replace")):
            return found[0]
        time.sleep(0.2)
    raise AssertionError(log.read_text(errors="replace"))


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    package = "org.apache.spark.deploy"
    here = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with daemon(tmp_path, "master", f"{package}.master.Master", *here) as log:
        url = wait_for(log, r"spark://127\.0\.0\.1:\d+")
        worker = [f"{package}.worker.Worker", *here, "--cores", "1", "--memory", "1g"]
        with (
            daemon(tmp_path, "one", *worker, "-d", str(tmp_path / "one"), url) as one,
            daemon(tmp_path, "two", *worker, "-d", str(tmp_path / "two"), url) as two,
        ):
            wait_for(one, "Successfully registered with master")
            wait_for(two, "Successfully registered with master")
            yield url


def test_two_workers_find_what_one_process_finds(master: str, tmp_path: Path) -> None:
    with store_in(tmp_path / "store", hot_retain_segments=2) as (driver, paths):
        fill(driver, ["alpha", "beta", "gamma"], segments=6)
        driver.relocate()
    paths = copy_store(paths, tmp_path / "copy")
    victim = cold_segments(paths)[0]
    flip_byte(victim, regions(victim)["block JSON"])
    command = [
        sys.executable,
        "-m",
        "topicsd",
        "cold",
        "audit",
        "--data-dir",
        paths.data,
        "--cold-dir",
        paths.cold,
    ]
    done = subprocess.run(
        [*command, "--offline", "--engine", "spark", "--master", master, "--task-bytes", "4000"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        timeout=600,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    report = decode_report(Path(f"{paths.data}/audit/latest/report.json").read_bytes())
    local = run_audit(paths)
    assert (report.engine, local.engine) == ("spark", "local")
    assert (report.findings, report.segments, report.topics) == (local.findings, local.segments, local.topics)
    assert "reading blocks: 100%" in done.stderr
    for worker in ("one", "two"):
        assert list((tmp_path / worker).glob("app-*")), f"worker {worker} had nothing to do"
