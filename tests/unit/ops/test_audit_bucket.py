"""The audit of a store whose cold tier is a bucket: the same findings, through range requests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.coldstore.places import filesystem_for
from tests.support.audit_kit import cold_segments, copy_store, flip_byte, kinds, regions, run_audit
from tests.support.cold_stores import StorePaths, fill, store_in
from tests.support.s3_server import S3Server, s3_server


@pytest.fixture(scope="module")
def bucket() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def upload(server: S3Server, cold: str) -> str:
    import boto3

    client = boto3.client("s3", endpoint_url=server.endpoint)
    name = server.new_bucket()
    for directory, _, files in os.walk(cold):
        for each in files:
            path = os.path.join(directory, each)
            client.upload_file(path, name, f"cold/{os.path.relpath(path, cold)}")
    return f"s3://{name}/cold"


def test_an_audit_reads_a_bucket_as_it_reads_a_directory(bucket: S3Server, tmp_path: Path) -> None:
    with store_in(tmp_path / "store", hot_retain_segments=1) as (driver, paths):
        fill(driver, ["alpha", "beta"], segments=3)
        driver.relocate()
    in_bucket = StorePaths(paths.data, upload(bucket, paths.cold))
    clean = run_audit(in_bucket)
    assert kinds(clean) == {} and [row.tier for row in clean.segments] == ["cold", "cold", "hot"]
    assert [row.sha256 for row in clean.segments] == [row.sha256 for row in run_audit(paths).segments]
    damaged = copy_store(paths, tmp_path / "copy")
    victim = cold_segments(damaged)[0]
    flip_byte(victim, regions(victim)["block JSON"])
    report = run_audit(StorePaths(paths.data, upload(bucket, damaged.cold)), clean)
    assert kinds(report) == {"bad_block": 1}
    assert str(report.findings[0]["path"]).startswith("s3://")
    assert filesystem_for(in_bucket.cold) is filesystem_for(f"{in_bucket.cold}/shard-0000"), "connected once"
