"""`topicsd cold audit` as an operator runs it: what it prints, what it leaves behind, how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ops.coldstore import spark_session
from ops.coldstore.report_files import ReportDir
from ops.coldstore.spark_session import CannotRun, check_java, check_python
from shared.audit_report import decode_report
from tests.support import demo_audit
from tests.support.audit_kit import flip_byte, hot_segments, regions
from tests.support.cold_stores import StorePaths, fill, store_in
from topicsd.cli import main
from topicsd.commands.cold_audit import audit as audit_command


@pytest.fixture
def store(tmp_path: Path) -> StorePaths:
    with store_in(tmp_path / "store", hot_retain_segments=1) as (driver, paths):
        fill(driver, ["alpha", "beta"], segments=2)
        driver.relocate()
    return paths


def audit(store: StorePaths, *more: str) -> Result:
    command = ["cold", "audit", "--data-dir", store.data, "--cold-dir", store.cold, "--offline", *more]
    return CliRunner().invoke(main, command)


def test_a_clean_store_ends_with_0_and_leaves_a_report_a_page_and_metrics(store: StorePaths) -> None:
    result = audit(store)
    assert result.exit_code == 0, result.output
    assert "clean: 2 files" in result.output
    kept = Path(store.data) / "audit"
    assert {path.name for path in (kept / "latest").iterdir()} == {"report.json", "report.html"}
    assert "topicsd_audit_clean 1" in (kept / "topicsd_audit.prom").read_text()
    assert audit(store, "--keep", "1").exit_code == 0
    assert len(ReportDir(str(kept)).names()) == 1


def test_damage_ends_with_1_and_is_named(store: StorePaths, tmp_path: Path) -> None:
    (path,) = hot_segments(store)
    flip_byte(path, regions(path)["block JSON"])
    result = audit(
        store, "--quiet", "--report-dir", str(tmp_path / "r"), "--metrics-file", str(tmp_path / "m.prom")
    )
    assert result.exit_code == 1
    assert (
        f"bad_block: block JSON checksum ({path} at byte" in result.output and "seqs 41..80" in result.output
    )
    assert "topicsd_audit_clean 0" in (tmp_path / "m.prom").read_text()


def test_what_keeps_it_from_running_ends_with_2_and_says_what_to_do(
    store: StorePaths, tmp_path: Path
) -> None:
    result = CliRunner().invoke(main, ["cold", "audit", "--data-dir", str(tmp_path)])
    assert (result.exit_code, "store.json is not there" in result.output) == (2, True)
    with ReportDir(f"{store.data}/audit").locked():
        result = audit(store)
    assert (result.exit_code, "another audit" in result.output) == (2, True)


def test_after_a_restore_a_new_history_is_begun(store: StorePaths) -> None:
    assert audit(store).exit_code == 0
    newest = max(Path(store.cold_shard).glob("manifest-*"))
    newest.rename(newest.with_name("manifest-0000000009"))
    assert audit(store).exit_code == 1
    newest.with_name("manifest-0000000009").rename(newest)
    assert audit(store, "--new-history").exit_code == 0


def test_the_demo_finds_every_damage_that_it_does(tmp_path: Path) -> None:
    assert demo_audit.run(tmp_path / "demo") == 0
    report = decode_report((tmp_path / "demo/damaged/data/audit/latest/report.json").read_bytes())
    found = {str(each["kind"]) for each in report.findings}
    assert found >= {
        "bad_header",
        "bad_block",
        "bad_footer",
        "size_differs",
        "missing_file",
        "foreign_file",
        "wrong_file",
        "gap",
        "manifest_went_back",
        "history_rewritten",
        "history_dropped",
        "history_undone",
    }


def fake_java(directory: Path, told: str) -> None:
    directory.mkdir()
    (directory / "java").write_text(f"#!/bin/sh\necho '{told}' >&2\n")
    (directory / "java").chmod(0o755)


@pytest.mark.parametrize(
    ("told", "fine"),
    [
        ('openjdk version "17.0.15" 2025-04-15', True),
        ('openjdk version "21" 2023-09-19', True),
        ('openjdk version "11.0.2" 2019-01-15', False),
        ('java version "1.8.0_392"', False),
        ("no idea", False),
    ],
)
def test_java_is_checked_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, fine: bool
) -> None:
    fake_java(tmp_path / "bin", told)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if fine:
        check_java()
        return
    with pytest.raises(CannotRun, match="sudo apt install openjdk-17-jre-headless"):
        check_java()


def test_without_java_or_with_a_python_that_is_not_there_the_message_says_what_to_do(
    store: StorePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    result = audit(store, "--engine", "spark")
    assert (result.exit_code, "sudo apt install openjdk-17-jre-headless" in result.output) == (2, True)
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "python9"))
    with pytest.raises(CannotRun, match=r"PYSPARK_PYTHON is .*python9, which cannot be run"):
        check_python()


def test_the_code_that_is_shipped_is_complete_without_this_directory(tmp_path: Path) -> None:
    spark_session.zip_code(str(tmp_path / "code.zip"))
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "code.zip")}
    script = "import ops.coldstore.engines as e, ops.coldstore.source; print(e.__file__)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(tmp_path / "code.zip") in done.stdout


def test_serving_loads_neither_spark_nor_arrow() -> None:
    modules = "topicsd.commands.serve, topicsd.commands.cold"
    script = f"import sys, {modules}; print(sorted({{'pyspark', 'pyarrow', 'py4j'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_option_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "cold-data.md").read_text()
    for parameter in audit_command.params:
        assert f"| `{parameter.opts[0]}` |" in page, parameter.opts[0]
