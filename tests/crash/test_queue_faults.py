"""Queues in the fault catalogue, Q1 to Q3: crashes around claims, acks and dead letters, torn frames, stale leases.

Each story is cut at every change of the disk it makes; after each cut the disk keeps nothing, everything or a seeded
part of what was not synced, and once the process is only killed. docs/fault-coverage-queues.md has the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from shared.frame import Kind
from shared.limits import MOVE_RETRY_MS
from tests.support.fake_disk import FakeDisk, PowerCut
from tests.support.fault_kit import KEEPS, Placed, all_frames, flip_in_frame, quarantined, tear_frame
from tests.support.queue_driver import FakeNetwork, Job, QueueDriver, seqs_of, two_shards
from tests.support.shard_driver import Answer, Call, ManualClock

ROOMY = 1 << 16
DURABILITIES = ["fsync", "disk"]


# --- cutting a story anywhere -----------------------------------------------------------------------------


@dataclass
class Story:
    """Shards on one disk, and what their clients were told."""

    shards: Sequence[QueueDriver]
    calls: dict[str, Call] = field(default_factory=dict)

    @property
    def disk(self) -> FakeDisk:
        return self.shards[0].disk

    def told(self, name: str) -> Answer | None:
        """The answer, if there was one and it was a success."""
        call = self.calls.get(name)
        return call.answer if call is not None and call.answer is not None and call.answer.ok else None

    def jobs(self, name: str) -> list[Job] | None:
        answer = self.told(name)
        return None if answer is None else answer.json["claimed"]

    def after_the_cut(self) -> Iterator[tuple[bool, Sequence[QueueDriver]]]:
        """(was it a power cut, the shards as they come up again), for everything the disk may have kept."""
        for place, (keep, seed) in enumerate(KEEPS):
            yield True, self._reopened(self.disk.clone().lose_power(seed + 100 * place, keep))
        yield False, self._reopened(self.disk.clone().kill_process())

    def _reopened(self, disk: FakeDisk) -> Sequence[QueueDriver]:
        network = self.shards[0].network
        joined = FakeNetwork(dict(network.places)) if network is not None else None
        twins = [shard.twin(disk, joined) for shard in self.shards]
        clock = twins[0].clock
        for twin in twins:
            twin.clock = clock
            twin.reopen()
            assert twin.shard.report.damage == []
        return twins


def cut_everywhere(prepare: Callable[[], Story], act: Callable[[Story], object]) -> Iterator[Story]:
    """The story, cut at its first change of the disk, at its second, …; the last one went through."""
    step = 0
    while True:
        step += 1
        story = prepare()
        story.disk.crash_after(step, half=step % 2 == 0, seed=step)
        try:
            act(story)
        except PowerCut:
            yield story
            continue
        assert step > 1, "nothing was written at all"
        yield story
        return


def one_shard(jobs: int = 3, **config: object) -> Story:
    driver = QueueDriver(wal_file_bytes=ROOMY)
    driver.make("q", **config)
    driver.write("q", *range(1, jobs + 1))
    driver.put("other")
    driver.sync()
    return Story([driver])


def answered(story: Story, name: str, call: Call) -> None:
    """Remember the call, then turn by turn until it is answered."""
    story.calls[name] = call
    driver = story.shards[0]
    driver.commit()
    if call.answer is None:
        driver.sync()


def expect_claimable(driver: QueueDriver, expected: list[object], name: str = "q") -> None:
    """When every lease has run out, exactly these jobs are handed out, once each."""
    driver.check_queue(name)
    driver.clock.advance(100_000)
    jobs = driver.claim(name, "last", max=100)
    assert [job["data"] for job in jobs] == expected
    assert driver.ack(name, "last", jobs)["acked"] == len(expected)
    driver.sync()
    driver.lose_power(keep="none") if driver.network is None else None
    assert driver.data(name) == []


# --- Q1: claims -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("durable", [False, True], ids=["plain", "durable"])
def test_q01_a_claim_cut_anywhere_leaves_every_job_leased_or_ready(durability: str, durable: bool) -> None:
    def act(story: Story) -> None:
        answered(story, "claim", story.shards[0].start_claim("q", "a", max=2, lease_ms=5000))
        # A lease that is not durable changes nothing on the disk: something else does.
        story.shards[0].append("other", [{"data": 1}])
        story.shards[0].sync()

    seen = Counter[tuple[int, int, int]]()
    for story in cut_everywhere(lambda: one_shard(durability=durability, leases_durable=durable), act):
        held = story.jobs("claim")
        for power, [driver] in story.after_the_cut():
            counts = driver.counts("q")
            seen[counts] += 1
            assert counts in ((3, 0, 0), (1, 2, 0) if durable else (3, 0, 0)), "all of a claim, or nothing"
            if durable and held is not None and (durability == "fsync" or not power):
                assert counts == (1, 2, 0), "what a client was told is kept"
            if counts[1] and held is not None:
                assert driver.ack("q", "a", held)["acked"] == 2
                expect_claimable(driver, [3])
            else:
                if held is not None:
                    assert driver.ack("q", "a", held)["skipped"] == 2
                expect_claimable(driver, [1, 2, 3])
    assert not durable or len(seen) == 2, "both outcomes were met"


@pytest.mark.parametrize("durable", [False, True], ids=["plain", "durable"])
def test_q01_crash_right_after_a_claim_keeps_or_ends_the_lease(durable: bool) -> None:
    story = one_shard(durability="fsync", leases_durable=durable)
    [driver] = story.shards
    jobs = driver.claim("q", "a", max=2)
    for _, [twin] in story.after_the_cut():
        assert twin.counts("q") == ((1, 2, 0) if durable else (3, 0, 0))
        if durable:
            assert twin.claim_seqs("q", "b", max=9) == [3], "still a's"
            [first, second] = twin.leases("q")["leases"][:2]
            assert [first["lease_id"], second["lease_id"]] == [job["lease_id"] for job in jobs]
            assert (first["deliveries"], first["deadline"]) == (1, jobs[0]["deadline"])
        else:
            again = twin.claim("q", "b", max=9)
            assert [job["data"] for job in again] == [1, 2, 3]
            assert twin.ack("q", "a", jobs)["skipped"] == 2


def test_q01_deliveries_are_counted_across_crashes_where_leases_are_durable() -> None:
    driver = QueueDriver(wal_file_bytes=ROOMY)
    driver.make("q", durability="fsync", leases_durable=True, max_deliveries=3, dead_letter="dl")
    driver.write("q", "poison")
    for delivery in (1, 2, 3):
        [job] = driver.claim("q", "a", lease_ms=100)
        assert job["deliveries"] == delivery
        driver.lose_power(keep="none")
        driver.clock.advance(100)
    assert driver.claim("q", "a") == []
    driver.run_moves()
    assert driver.data("dl") == ["poison"], "a job that kills the machine is given up all the same"


# --- Q1: acks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("durable", [False, True], ids=["plain", "durable"])
def test_q01_an_ack_cut_anywhere_is_whole_and_lasts_if_it_was_answered(
    durability: str, durable: bool
) -> None:
    def prepare() -> Story:
        story = one_shard(durability=durability, leases_durable=durable)
        [driver] = story.shards
        story.calls["claim"] = driver.start_claim("q", "a", max=2)
        driver.settle()
        driver.sync()
        return story

    def act(story: Story) -> None:
        jobs = story.jobs("claim")
        assert jobs is not None
        answered(story, "ack", story.shards[0].start_ack("q", "a", jobs))
        story.shards[0].sync()

    outcomes = Counter[int]()
    for story in cut_everywhere(prepare, act):
        acked = story.told("ack")
        for power, [driver] in story.after_the_cut():
            left = driver.data("q")
            assert left in ([3], [1, 2, 3])
            if acked is not None and (durability == "fsync" or not power):
                assert left == [3], "acked means gone"
            outcomes[len(left)] += 1
            expect_claimable(driver, list(left))
    assert len(outcomes) == 2, "both outcomes were met"


def test_q01_an_ack_survives_a_snapshot_a_seal_and_a_trimmed_log() -> None:
    driver = QueueDriver(wal_file_bytes=ROOMY)
    driver.make("q", durability="fsync")
    driver.write("q", *range(6))
    driver.ack("q", "n", driver.claim("q", max=2))
    assert driver.seal()
    driver.ack("q", "n", driver.claim("q", max=2))
    for _ in range(3):
        driver.snapshot()
        driver.write("q", "more")
    driver.lose_power(keep="none")
    expect_claimable(driver, [4, 5, "more", "more", "more"])


@pytest.mark.parametrize("durable", [False, True], ids=["plain", "durable"])
def test_q01_a_delayed_nack_cut_anywhere_is_whole(durable: bool) -> None:
    def prepare() -> Story:
        story = one_shard(durability="disk", leases_durable=durable)
        [driver] = story.shards
        story.calls["claim"] = driver.start_claim("q", "a", max=2, lease_ms=60_000)
        driver.settle()
        driver.sync()
        return story

    def act(story: Story) -> None:
        jobs = story.jobs("claim")
        assert jobs is not None
        answered(story, "nack", story.shards[0].start_nack("q", "a", jobs, delay_ms=500))
        story.shards[0].sync()

    for story in cut_everywhere(prepare, act):
        before = (1, 2, 0) if durable else (3, 0, 0)
        for power, [driver] in story.after_the_cut():
            counts = driver.counts("q")
            assert counts in (before, (1, 0, 2))
            if story.told("nack") is not None and not power:
                assert counts == (1, 0, 2)
            expect_claimable(driver, [1, 2, 3])


# --- Q1: dead letters -------------------------------------------------------------------------------------


def worn_out(shards: Sequence[QueueDriver], durability: str, durable: bool) -> Story:
    """Two jobs that were delivered as often as they may be, and one that was not."""
    source, target = shards[0], shards[-1]
    source.make("q", durability=durability, leases_durable=durable, max_deliveries=1, dead_letter="dl")
    target.put("dl", durability=durability)
    source.write("q", 1, 2)
    source.claim("q", "a", max=2, lease_ms=100)
    source.clock.advance(100)
    source.write("q", 3)
    for shard in shards:
        shard.settle()
        shard.sync()
    return Story(shards)


def bury(story: Story) -> None:
    source = story.shards[0]
    story.calls["claim"] = source.start_claim("q", "b", max=1, lease_ms=100)
    source.run_moves()
    for shard in story.shards:
        shard.sync()


def expect_one_place(shards: Sequence[QueueDriver]) -> tuple[int, int]:
    """Never in neither place, never twice among the dead letters. Returns how many are in (queue, dead letters)."""
    source, target = shards[0], shards[-1]
    jobs, letters = source.data("q"), target.data("dl")
    assert len(set(jobs)) == len(jobs) and len(set(letters)) == len(letters), (jobs, letters)
    assert {1, 2, 3} == {*jobs, *letters}, (jobs, letters)
    return len(jobs), len(letters)


def finish_burying(shards: Sequence[QueueDriver]) -> None:
    """Workers go on claiming and dying until every job has had its deliveries."""
    source, target = shards[0], shards[-1]
    for _ in range(8):
        source.claim("q", "c", max=10, lease_ms=100)
        source.run_moves()
        expect_one_place(shards)
        source.clock.advance(MOVE_RETRY_MS)
    assert (source.data("q"), sorted(target.data("dl"))) == ([], [1, 2, 3])
    origins = {record["data"]: record["meta"]["$dead_letter_src_seq"] for record in target.read_all("dl")}
    assert origins == {1: 1, 2: 2, 3: 3}
    source.check_queue("q")


PLACES = ["one shard", "two shards"]


def shards_for(place: str) -> Sequence[QueueDriver]:
    if place == "two shards":
        return two_shards({"q": 0, "dl": 1})
    return [QueueDriver(wal_file_bytes=ROOMY)]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("durable", [False, True], ids=["plain", "durable"])
def test_q01_a_burial_cut_anywhere_leaves_the_job_in_one_place_in_the_end(
    place: str, durability: str, durable: bool
) -> None:
    seen = Counter[tuple[int, int]]()
    for story in cut_everywhere(lambda: worn_out(shards_for(place), durability, durable), bury):
        for _, shards in story.after_the_cut():
            seen[expect_one_place(shards)] += 1
            finish_burying(shards)
    assert {(3, 0), (3, 2), (1, 2)} <= seen.keys(), "before, between append and delete, and after"


@pytest.mark.parametrize("place", PLACES)
def test_q01_crash_between_dead_letter_append_and_delete(place: str) -> None:
    story = worn_out(shards_for(place), "fsync", True)
    source, target = story.shards[0], story.shards[-1]
    story.calls["claim"] = source.start_claim("q", "b", max=1, lease_ms=100)
    source.commit()
    target.sync()  # the copies are durable, and the source has been told
    assert len(target.peek("dl")) == 2 and len(source.peek("q")) == 3
    for _, shards in story.after_the_cut():
        assert expect_one_place(shards)[1] == 2
        finish_burying(shards)


@pytest.mark.parametrize("dies", [0, 1], ids=["source", "destination"])
@pytest.mark.parametrize("durability", DURABILITIES)
def test_q01_either_shard_dies_alone_at_any_point_of_a_burial(dies: int, durability: str) -> None:
    step = 0
    went_through = False
    while not went_through:
        step += 1
        clock, network = ManualClock(), FakeNetwork({"q": 0, "dl": 1})
        shards = [
            QueueDriver(number=number, network=network, clock=clock, wal_file_bytes=ROOMY)
            for number in (0, 1)
        ]
        worn_out(shards, durability, False)
        shards[dies].disk.crash_after(step, half=step % 2 == 0, seed=step)
        try:
            bury(Story(shards))
            went_through = True
        except PowerCut:
            network.down.add(dies)
        network.let_go()
        shards[dies].disk.lose_power(seed=step)
        shards[dies].reopen()
        network.down.clear()
        survivor = shards[1 - dies]
        if dies == 1 and not went_through:
            # Who waits for an answer of the dead one is told that there is none.
            survivor.kill()
        expect_one_place(shards)
        finish_burying(shards)
    assert step > 2


# --- Q1: and back -----------------------------------------------------------------------------------------


def with_letters(place: str, durability: str) -> Story:
    """The dead letters are on the first shard here: that is where a redrive runs."""
    shards = two_shards({"dl": 0, "q": 1}) if place == "two shards" else [QueueDriver(wal_file_bytes=ROOMY)]
    letters, queue = shards[0], shards[-1]
    queue.make("q", durability=durability)
    letters.append(
        "dl",
        [
            {"data": n, "meta": {"m": n, "$dead_letter_from": "q", "$dead_letter_src_seq": n}}
            for n in (1, 2, 3)
        ],
        config={"durability": durability},
    )
    for shard in shards:
        shard.sync()
    return Story(shards)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("durability", DURABILITIES)
def test_q01_a_redrive_cut_anywhere_loses_and_doubles_nothing(place: str, durability: str) -> None:
    def act(story: Story) -> None:
        story.calls["redrive"] = story.shards[0].start_redrive("dl", "q", limit=2)
        story.shards[0].run_moves()
        for shard in story.shards:
            shard.sync()

    seen = Counter[tuple[int, int]]()
    for story in cut_everywhere(lambda: with_letters(place, durability), act):
        moved = story.told("redrive")
        for power, shards in story.after_the_cut():
            letters, queue = shards[0], shards[-1]
            left, back = letters.data("dl"), queue.data("q")
            seen[len(left), len(back)] += 1
            assert left in ([1, 2, 3], [3]) and back in ([], [1, 2]) and {*left, *back} == {1, 2, 3}
            if moved is not None and (durability == "fsync" or not power):
                assert (left, back) == ([3], [1, 2]), "what was answered is done"
            done = queue.claim("q", "w", max=1)  # somebody works on one before the redrive is repeated
            assert queue.ack("q", "w", done)["acked"] == len(done)
            assert letters.redrive("dl", "q").ok
            jobs = queue.claim("q", "w", max=10)
            assert sorted(job["data"] for job in (*done, *jobs)) == [1, 2, 3], "each once"
            assert all(job["meta"] == {"m": job["data"]} for job in jobs)
            assert letters.data("dl") == []
    assert {(3, 0), (3, 2), (1, 2)} <= seen.keys(), "before, between append and delete, and after"


# --- Q2: torn frames --------------------------------------------------------------------------------------


def last_frame(driver: QueueDriver, kind: int) -> Placed:
    frame = all_frames(driver.disk)[-1]
    assert frame.kind == kind
    return frame


def with_last_frame(kind: int) -> tuple[QueueDriver, list[Job]]:
    """A queue of three jobs, two of them claimed by a; the log ends with a frame of this kind."""
    driver = QueueDriver(wal_file_bytes=ROOMY)
    driver.make("q", durability="disk", leases_durable=True)
    driver.write("q", 1, 2, 3)
    driver.sync()
    jobs = driver.claim("q", "a", max=2, lease_ms=60_000)
    if kind == Kind.JOBS_DONE:
        driver.sync()
        driver.ack("q", "a", jobs)
    elif kind == Kind.JOBS_RELEASED:
        driver.sync()
        driver.nack("q", "a", jobs, delay_ms=500)
    return driver, jobs


KINDS = {Kind.JOBS_LEASED: (3, 0, 0), Kind.JOBS_DONE: (1, 2, 0), Kind.JOBS_RELEASED: (1, 2, 0)}
"""What is left when the last frame never happened."""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name.lower())
def test_q02_a_torn_lease_frame_never_happened(kind: Kind) -> None:
    whole = len(last_frame(with_last_frame(kind)[0], kind).raw)
    for kept in {1, 4, 9, 20, 39, 40, 41, whole // 2, whole - 9, whole - 8, whole - 1}:
        driver, jobs = with_last_frame(kind)
        tear_frame(driver.disk, last_frame(driver, kind), kept)
        driver.disk.lose_power(keep="all")
        driver.reopen()
        assert driver.shard.report.damage == []
        assert len(quarantined(driver.disk)) == 1, "kept as evidence"
        assert driver.counts("q") == KINDS[kind], kept
        assert driver.ack("q", "a", jobs)["acked"] == KINDS[kind][1], "the lease before it is what counts"
        expect_claimable(driver, [3] if KINDS[kind][1] else [1, 2, 3])


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name.lower())
def test_q02_a_lease_frame_torn_at_every_byte_never_happened(kind: Kind) -> None:
    whole = len(last_frame(with_last_frame(kind)[0], kind).raw)
    for kept in range(1, whole):
        driver, _ = with_last_frame(kind)
        tear_frame(driver.disk, last_frame(driver, kind), kept)
        driver.disk.kill_process()
        driver.reopen()
        assert driver.counts("q") == KINDS[kind]
    print(f"{kind.name}: torn at {whole - 1} places")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name.lower())
def test_q02_a_rotten_lease_frame_in_the_middle_is_damage_and_no_job_is_lost(kind: Kind) -> None:
    driver, _ = with_last_frame(kind)
    frame = last_frame(driver, kind)
    driver.sync()
    driver.append("other", [{"data": "behind"}], config={"durability": "fsync"})
    driver.sync()
    driver.append("other", [{"data": "and behind"}])
    flip_in_frame(driver.disk, frame, 60)
    driver.disk.kill_process()
    driver.reopen()
    [damage] = driver.shard.report.damage
    assert (damage.path.rpartition("/")[2], damage.offset) == ("0000000001.wal", frame.offset)
    assert driver.counts("q") == KINDS[kind]
    assert driver.data("q") == [1, 2, 3] and driver.data("other") == ["behind", "and behind"]
    assert driver.claim_answer("q", "b").status == 503, "a lease that lasts could not be written down"


def test_q02_leases_behind_a_torn_append_are_torn_with_it() -> None:
    driver = QueueDriver(wal_file_bytes=ROOMY)
    driver.make("q", durability="disk", leases_durable=True)
    driver.write("q", 1)
    driver.sync()
    driver.write("q", 2)
    [append] = [frame for frame in all_frames(driver.disk) if frame.kind == Kind.APPEND][1:]
    driver.claim("q", "a", max=2)
    lease = last_frame(driver, Kind.JOBS_LEASED)
    # Unsynced groups may reach the disk in any order: the lease did, the job it is about did not.
    content = driver.disk.read_file(append.path)
    driver.disk.lose_power(keep="none")
    driver.disk.overwrite(lease.path, lease.offset, content[lease.offset : lease.end])
    driver.reopen()
    assert driver.shard.report.damage == []
    assert driver.counts("q") == (1, 0, 0)
    expect_claimable(driver, [1])


# --- Q3: lost extends, stale leases -----------------------------------------------------------------------


@pytest.mark.parametrize("durability", DURABILITIES)
def test_q03_an_extend_cut_anywhere_has_the_old_deadline_or_the_new_one(durability: str) -> None:
    def prepare() -> Story:
        story = one_shard(durability=durability, leases_durable=True)
        [driver] = story.shards
        story.calls["claim"] = driver.start_claim("q", "a", lease_ms=1000)
        driver.settle()
        driver.sync()
        driver.clock.advance(900)
        return story

    def act(story: Story) -> None:
        jobs = story.jobs("claim")
        assert jobs is not None
        answered(story, "extend", story.shards[0].start_extend("q", "a", jobs, 5000))
        story.shards[0].sync()

    seen = set()
    for story in cut_everywhere(prepare, act):
        [job] = story.jobs("claim") or []
        for power, [driver] in story.after_the_cut():
            [lease] = driver.leases("q")["leases"]
            old, new = job["deadline"], job["deadline"] - 100 + 5000
            assert lease["deadline"] in (old, new)
            assert (lease["lease_id"], lease["deliveries"]) == (job["lease_id"], 1)
            seen.add(lease["deadline"])
            if story.told("extend") is not None and not power:
                assert lease["deadline"] == new
            if lease["deadline"] == new:
                driver.clock.advance(4000)
                assert driver.ack("q", "a", [job])["acked"] == 1
            else:
                # Lost: the job goes to another when the first deadline has passed, and only that one decides.
                driver.clock.advance(100)
                [other] = driver.claim("q", "b")
                assert (other["$seq"], other["deliveries"]) == (1, 2)
                assert driver.ack("q", "a", [job])["skipped"] == 1
                assert driver.ack("q", "b", [other])["acked"] == 1
    assert len(seen) == 2, "both outcomes were met"


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("durable", [False, True], ids=["plain", "durable"])
def test_q03_a_stale_lease_decides_nothing_wherever_the_story_was_cut(durability: str, durable: bool) -> None:
    """a claims, is too slow, b claims; the same node name twice, so that only the token tells them apart."""

    def act(story: Story) -> None:
        [driver] = story.shards
        answered(story, "first", driver.start_claim("q", "same", lease_ms=100))
        driver.append("other", [{"data": 1}])
        driver.sync()
        driver.clock.advance(100)
        answered(story, "second", driver.start_claim("q", "same", lease_ms=60_000))
        driver.append("other", [{"data": 2}])
        driver.sync()

    for story in cut_everywhere(lambda: one_shard(1, durability=durability, leases_durable=durable), act):
        first, second = story.jobs("first"), story.jobs("second")
        for power, [driver] in story.after_the_cut():
            driver.clock.advance(0 if second is not None else 100)
            if first is not None:
                assert driver.ack("q", "same", first) == {
                    "acked": 0,
                    "skipped": 1,
                    "ready": driver.counts("q")[0],
                    "in_flight": driver.counts("q")[1],
                }
                assert driver.extend("q", "same", first, 5000)["skipped"] == 1
                assert driver.nack("q", "same", first)["skipped"] == 1
            if second is not None:
                kept = durable and (durability == "fsync" or not power)
                found = driver.ack("q", "same", second)["acked"]
                assert found == 1 if kept else found in (0, 1)
                if not durable:
                    assert found == 0, "a lease that is not durable ends with the process"
                expect_claimable(driver, [] if found else [1])
            else:
                expect_claimable(driver, [1])


def test_q03_a_token_of_an_earlier_life_fits_no_lease_of_this_one() -> None:
    driver = QueueDriver(wal_file_bytes=ROOMY)
    driver.make("q", durability="fsync")
    driver.write("q", *range(5))
    old = driver.claim("q", "same", max=5)
    for restart in (driver.kill, lambda: driver.lose_power(keep="none")):
        restart()
        new = driver.claim("q", "same", max=5, lease_ms=100)
        assert seqs_of(old) == seqs_of(new)
        assert driver.ack("q", "same", old)["skipped"] == 5
        driver.clock.advance(100)


def test_q03_an_ack_that_comes_after_the_job_was_done_by_another_changes_nothing() -> None:
    driver = QueueDriver(wal_file_bytes=ROOMY)
    driver.make("q", durability="fsync", leases_durable=True)
    driver.write("q", 1, 2)
    slow = driver.claim("q", "slow", lease_ms=100)
    driver.clock.advance(100)
    quick = driver.claim("q", "quick")
    assert driver.ack("q", "quick", quick)["acked"] == 1
    for restart in (lambda: None, driver.kill, lambda: driver.lose_power(keep="none")):
        restart()
        assert driver.ack("q", "slow", slow) == {"acked": 0, "skipped": 1, "ready": 1, "in_flight": 0}
    assert driver.data("q") == [2]
