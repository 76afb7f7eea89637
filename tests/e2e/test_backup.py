"""`topicsd backup` and `topicsd restore` as an operator runs them, on a server that goes on serving."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from shared.io.durable_fs import RealFileSystem
from shared.routing import shard_for
from tests.support.api_client import ApiClient, fresh_on
from tests.support.fake_disk import FakeDisk
from tests.support.live_server import LiveServer
from tests.support.queue_client import Queue
from tests.support.s3_server import S3Server, s3_server
from tests.support.server_process import ROOT, environment
from tests.support.shard_driver import ShardDriver
from tests.support.write_load import Load, Writer
from topicsd.cli import main
from topicsd.store_file import Store, save_store

SHARDS = 2
Row = tuple[int, Any]


def topicsd(*arguments: object) -> str:
    """Runs the command in this process; its output."""
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def fails(code: int, *arguments: object) -> str:
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert result.exit_code == code, result.output
    return result.output


def rows_of(data_dir: Path, topic: str) -> list[Row]:
    """All records of a topic, read from the files by the shard itself."""
    number = shard_for(topic, SHARDS)
    driver = ShardDriver(
        cast(FakeDisk, RealFileSystem()),
        number=number,
        wal_file_bytes=64 << 20,
        data_dir=str(data_dir),
        cold_dir=None,
    )
    assert driver.shard.report.damage == []
    rows = [(each["$seq"], each["data"]) for each in driver.read_all(topic, inline=True)]
    driver.close()
    return rows


class DeadLetters(threading.Thread):
    """Jobs that go to their dead letters, on another shard, one after the other."""

    def __init__(self, client: ApiClient, queue: Queue) -> None:
        super().__init__(daemon=True)
        self._client, self._queue = client, queue
        self.written: list[int] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            self.written += self._queue.write(*range(5))
            # The second claim finds them delivered too often.
            self._queue.nack(*self._queue.claim(max=100))
            self._queue.claim(max=100, wait_ms=0)


def test_a_backup_under_load_comes_back_at_its_end_at_a_time_and_at_a_seq(tmp_path: Path) -> None:
    place, data = tmp_path / "place", tmp_path / "data"
    topics = [fresh_on(shard, SHARDS, f"load{shard}") for shard in range(SHARDS)]
    env = {"TOPICS_WAL_ARCHIVE": str(place)}
    with LiveServer(data, shards=SHARDS, env=env) as server, server.wait_serving().client() as client:
        dead = fresh_on(1, SHARDS, "dead")
        queue = Queue(client, fresh_on(0, SHARDS, "q"), max_deliveries=1, dead_letter=dead)
        with server.client() as other:
            letters = DeadLetters(other, Queue(other, queue.name))
            writers = [Writer(server.port, topic, f"w{topic}", keyed=False) for topic in topics]
            with Load(writers) as load:
                letters.start()
                load.wait_acks(20)
                first = topicsd("backup", "create", place, "--data-dir", data, "--quiet").split()[-1]
                before = {writer.topic: dict(writer.acked) for writer in writers}
                _killed_backup(place, data)
                load.wait_acks(20)
                second = topicsd("backup", "create", place, "--data-dir", data, "--quiet").split()[-1]
                load.wait_acks(5)
            letters.stopping.set()
            letters.join(30)
            assert not letters.is_alive()
            assert not load.failures
        full = {topic: client.everything(topic) for topic in topics}
        last = topicsd("backup", "create", place, "--data-dir", data, "--quiet").split()[-1]
        assert server.stop() == 0

    assert [line.split()[0] for line in topicsd("backup", "list", place).splitlines()] == [
        first,
        second,
        last,
    ]
    assert "3 backups" in topicsd("backup", "verify", place)

    # The end of a backup: all that was acked before it began, and nothing that was not written.
    topicsd("restore", place, "--data-dir", tmp_path / "end", "--backup", second)
    for topic in topics:
        rows = rows_of(tmp_path / "end", topic)
        whole = [(each["$seq"], each["data"]) for each in full[topic]]
        assert rows == whole[: len(rows)]
        assert len(rows) >= len(before[topic])
    _no_job_is_in_neither_place(tmp_path / "end", queue.name, dead)

    # A time: exactly what was written until then, on both shards.
    times = sorted(each["$ts"] for topic in topics for each in full[topic])
    middle = times[len(times) * 2 // 3]
    topicsd("restore", place, "--data-dir", tmp_path / "time", "--to-time", middle)
    for topic in topics:
        wanted = [(each["$seq"], each["data"]) for each in full[topic] if each["$ts"] <= middle]
        assert rows_of(tmp_path / "time", topic) == wanted

    for restored in ("end", "time"):
        assert "damaged" not in topicsd("verify", "--data-dir", tmp_path / restored)

    # A seq: exactly up to that record. This one is served.
    seq = len(full[topics[0]]) // 2
    topicsd("restore", place, "--data-dir", tmp_path / "seq", "--to-seq", f"{topics[0]}:{seq}")
    with LiveServer(tmp_path / "seq", shards=SHARDS) as server, server.wait_serving().client() as client:
        assert client.everything(topics[0]) == full[topics[0]][:seq]
        assert client.append(topics[0], "goes on")["first_seq"] > len(full[topics[0]])
        assert server.failures() == []
        assert server.stop() == 0


def _killed_backup(place: Path, data: Path) -> None:
    """Begins a backup, and kills it as soon as it copies something."""
    command = [sys.executable, "-m", "topicsd", "backup", "create", str(place), "--data-dir", str(data)]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment({}), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as process:
        assert process.stderr is not None
        assert b"shard 0" in process.stderr.readline()
        process.kill()


def _no_job_is_in_neither_place(data_dir: Path, queue: str, dead: str) -> None:
    number = shard_for(dead, SHARDS)
    driver = ShardDriver(
        cast(FakeDisk, RealFileSystem()),
        number=number,
        wal_file_bytes=64 << 20,
        data_dir=str(data_dir),
        cold_dir=None,
    )
    moved = [each["meta"]["$dead_letter_src_seq"] for each in driver.read_all(dead, inline=True)]
    driver.close()
    waiting = [seq for seq, _ in rows_of(data_dir, queue)]
    assert moved and len(set(moved)) == len(moved)
    highest = max(*moved, *waiting, 0)
    assert set(moved) | set(waiting) == set(range(1, highest + 1))


# --- a store that is stopped, in a bucket ------------------------------------------------------------------


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def stopped_store(data_dir: Path) -> None:
    fs = RealFileSystem()
    fs.make_dir(str(data_dir))
    save_store(fs, str(data_dir), Store(format=1, shards=1))
    driver = ShardDriver(cast(FakeDisk, fs), data_dir=str(data_dir), cold_dir=None, wal_file_bytes=64 << 20)
    driver.append("t", [{"data": number} for number in range(50)])
    driver.seal()
    driver.append("t", [{"data": number} for number in range(50, 60)])
    driver.close()


def test_a_stopped_store_goes_to_a_bucket_and_comes_back(tmp_path: Path, s3: S3Server) -> None:
    stopped_store(tmp_path / "data")
    place = f"s3://{s3.new_bucket()}/nightly"
    topicsd("backup", "create", place, "--data-dir", tmp_path / "data")
    again = topicsd("backup", "create", place, "--data-dir", tmp_path / "data")
    assert "there already: 1 file" in again
    assert len(topicsd("backup", "list", place).splitlines()) == 2
    assert "2 backups" in topicsd("backup", "verify", place)
    assert "removed 1 backup" in topicsd("backup", "prune", place, "--keep", 1)
    assert "60 records" in topicsd("restore", place, "--data-dir", tmp_path / "back")
    assert "clean" in topicsd("verify", "--data-dir", tmp_path / "back")
    driver = ShardDriver(
        cast(FakeDisk, RealFileSystem()),
        data_dir=str(tmp_path / "back"),
        cold_dir=None,
        wal_file_bytes=64 << 20,
    )
    assert [each["data"] for each in driver.read_all("t", inline=True)] == list(range(60))


# --- refusals ---------------------------------------------------------------------------------------------


def test_what_cannot_be_done_is_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    stopped_store(tmp_path / "data")
    place = tmp_path / "place"
    assert "there is no store" in fails(2, "backup", "create", place, "--data-dir", tmp_path / "nothing")
    assert "there is no backup" in fails(2, "restore", place, "--data-dir", tmp_path / "new")
    topicsd("backup", "create", place, "--data-dir", tmp_path / "data")
    assert "holds a store" in fails(2, "restore", place, "--data-dir", tmp_path / "data")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "letter").write_text("mine")
    assert "not empty (letter)" in fails(2, "restore", place, "--data-dir", tmp_path / "used")
    new = ("--data-dir", tmp_path / "new")
    assert "there is no backup 2020" in fails(2, "restore", place, *new, "--backup", "2020")
    assert "TOPIC:SEQ" in fails(2, "restore", place, *new, "--to-seq", "t")
    assert "milliseconds" in fails(2, "restore", place, *new, "--to-time", "yesterday")
    assert "reaches only seq 60" in fails(2, "restore", place, *new, "--to-seq", "t:99")
    assert "neither a directory nor" in fails(2, "backup", "list", "ftp://somewhere/else")
    (segment,) = place.rglob("*.seg")
    content = bytearray(segment.read_bytes())
    content[100] ^= 1
    segment.write_bytes(content)
    assert segment.name in fails(4, "backup", "verify", place)
    assert segment.name in fails(4, "restore", place, *new)
    assert not (tmp_path / "new" / "store.json").exists()
    assert json.loads((tmp_path / "data" / "store.json").read_text())["id"]


# --- the page ---------------------------------------------------------------------------------------------


def test_the_page_about_backups_shows_what_the_commands_print(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "backup.md").read_text()
    printed = [
        (line.partition("\n")[0], line.partition("\n")[2].strip())
        for block in re.findall(r"```console\n(.*?)```", text, re.S)
        for line in re.split(r"^\$ ", block, flags=re.M)[1:]
    ]
    assert len(printed) >= 6
    stopped_store(tmp_path / "srv" / "topics")
    for command, output in printed:
        words = [re.sub("^/(srv|backup)/", f"{tmp_path}/\\1/", word) for word in command.split()]
        assert words[0] == "topicsd"
        result = CliRunner().invoke(main, words[1:])
        assert result.exit_code == 0, result.output
        shown = result.stdout.replace(str(tmp_path), "").strip()
        assert without_numbers(shown) == without_numbers(output), command


def without_numbers(text: str) -> str:
    """Sizes, times and ids differ from run to run; counts of files and records do not."""
    text = re.sub(r"\d+(\.\d+)? (B|KiB)", "SIZE", text)
    text = re.sub(r"\d{8}T\d{6}Z(\.\d+)?", "ID", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    return re.sub(r"store [0-9a-f]{16}", "store STORE", text)
