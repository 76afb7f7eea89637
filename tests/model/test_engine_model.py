"""The engine on a fake disk against a model of dicts: all durability classes, all maintenance, crashes as rules.

The promises are checked by `CheckedShard` (tests/support/checked_shard.py), after every step that leaves nothing
half submitted; here stand only the steps.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shard_worker.maintenance import Job
from shard_worker.shard import Shard
from tests.support.checked_shard import CheckedShard
from tests.support.fake_disk import PowerCut
from tests.support.shard_driver import small_limits

NAMES = st.sampled_from(["a", "b", "c"])
WAITS = st.sampled_from(["answered", "answered", "committed", "staged"])
LABELS = st.sampled_from(["x", "x", "xy", "y", 'q"é', ""])
MATCHES = st.one_of(
    st.sampled_from([("tag", "Eq", "x"), ("key", "Eq", "x"), ("node", "Glob", "x"), ("tag", "Glob", "")]),
    st.tuples(st.sampled_from(["tag", "key", "node"]), st.sampled_from(["Eq", "Glob"]), LABELS),
)
PLACES = ["/wal/", "/segments/", "/snapshots/", "/cold/"]
SOME_NAMES = st.none() | st.lists(NAMES, min_size=1, max_size=3, unique=True)
SEEDS = st.integers(0, 1 << 16)
CLASSES = ["ephemeral", "memory", "disk", "fsync"]
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "durability": st.sampled_from(CLASSES),
        "ttl_ms": st.sampled_from([0, 1000, 5000]),
        "cap_records": st.sampled_from([0, 3, 6]),
        "cap_bytes": st.sampled_from([0, 200, 600]),
        "discard": st.sampled_from(["old", "reject"]),
        "idempotency_window_ms": st.sampled_from([0, 2000, 120_000]),
        "dedupe_node": st.booleans(),
    },
)


@st.composite
def record_shapes(draw: st.DrawFn) -> dict[str, Any]:
    """A record without its payload, which the machine makes unique."""
    record: dict[str, Any] = {}
    for label in ("tag", "key", "node"):
        if draw(st.booleans()):
            record[label] = draw(LABELS)
    if draw(st.integers(0, 3)) == 0:
        record["meta"] = draw(st.sampled_from(["{}", '{"a": 1}', '{"data":{"$ts":1}}']))
    record["shape"] = draw(st.sampled_from(["number", "object", "long", "spaced"]))
    return record


BATCHES = st.lists(record_shapes(), min_size=1, max_size=4)
PLAIN = {
    "number": "{}",
    "object": '{{"n":{},"é":"ü"}}',
    "long": '"{}' + "·" * 60 + '"',
    "spaced": "[ {} , 1.0e2 ]",
}


class EngineMachine(RuleBasedStateMachine):
    @initialize(classes=st.lists(st.sampled_from(CLASSES), min_size=3, max_size=3))
    def boot(self, classes: list[str]) -> None:
        self.limits = small_limits()
        self.limits.__enter__()
        self.shard = CheckedShard()
        self.classes = dict(zip("abc", classes, strict=True))
        self.serial = 0
        self.held: tuple[Shard, Job] | None = None  # a job that is planned but not run, and whose it is
        for name in self.classes:
            for shapes in (
                [{"tag": "x", "shape": "number"}, {"key": "x", "shape": "long"}],
                [{"shape": "number"}] * 3,
            ):
                self.shard.append(name, self.fill(shapes), config=self.first_config(name, {}))

    def teardown(self) -> None:
        try:
            # Only if no step failed: its own error is the one to show.
            if hasattr(self, "shard") and sys.exc_info()[0] is None:
                self.settle()
                self.shard.check_everything()
                self.shard.check_rebuild()
        finally:
            self.limits.__exit__(None, None, None)

    # --- helpers ----------------------------------------------------------------------------------------

    def settle(self) -> None:
        self.shard.disk.clear_faults()
        self.shard.tick()
        self.shard.sync()
        self.finish_job()

    @property
    def job(self) -> Job | None:
        """The job under way; a process that was restarted has none."""
        return self.held[1] if self.held is not None and self.held[0] is self.shard.driver.shard else None

    def hold(self, job: Job | None) -> None:
        self.held = None if job is None else (self.shard.driver.shard, job)

    def finish_job(self) -> None:
        job, self.held = self.job, None
        if job is not None:
            self._maintain(lambda: self.shard.driver.finish_job(job))

    def fill(self, shapes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        records = []
        for shape in shapes:
            self.serial += 1
            record = {name: value for name, value in shape.items() if name != "shape"}
            record["data"] = PLAIN[shape["shape"]].format(self.serial)
            records.append(record)
        return records

    def first_config(self, name: str, config: dict[str, Any]) -> dict[str, Any]:
        return {**config, "durability": self.classes[name]}

    @property
    def half_submitted(self) -> bool:
        return bool(self.shard.driver.engine.commits._group)

    @invariant()
    def everything_agrees(self) -> None:
        if hasattr(self, "shard") and not self.half_submitted:
            self.shard.check_everything()

    # --- requests ---------------------------------------------------------------------------------------

    @rule(name=NAMES, config=CONFIGS, wait=WAITS)
    def put_topic(self, name: str, config: dict[str, Any], wait: str) -> None:
        if name not in self.shard.planned:
            config = self.first_config(name, config)
        self.shard.put(name, config, wait)

    @rule(name=NAMES, if_empty=st.booleans(), wait=WAITS)
    def delete_topic(self, name: str, if_empty: bool, wait: str) -> None:
        self.shard.delete_topic(name, if_empty=if_empty, wait=wait)

    @rule(
        name=NAMES,
        batch=BATCHES,
        node=st.sampled_from([None, None, "x"]),
        idem=st.sampled_from([None, None, "k1", "k2"]),
        create=st.sampled_from([None, None, True, False]),
        config=CONFIGS,
        wait=WAITS,
    )
    def append(
        self,
        name: str,
        batch: list[dict[str, Any]],
        node: str | None,
        idem: str | None,
        create: bool | None,
        config: dict[str, Any],
        wait: str,
    ) -> None:
        config = self.first_config(name, config)
        number = self.shard.planned.get(name)
        if number is not None and self.shard.plans[number].mixed:
            idem = (
                None  # whether the keys of lost records are remembered depends on how far back the log goes
            )
        self.shard.append(
            name, self.fill(batch), node=node, idem=idem, create=create, config=config, wait=wait
        )

    @rule(name=NAMES, batch=BATCHES, times=st.integers(2, 5), wait=WAITS)
    def append_several(self, name: str, batch: list[dict[str, Any]], times: int, wait: str) -> None:
        for _ in range(times):
            self.shard.append(name, self.fill(batch), config=self.first_config(name, {}), wait=wait)

    @rule(
        name=NAMES, before=st.sampled_from([None, None, 0, 3, 9, 30]), match=st.none() | MATCHES, wait=WAITS
    )
    def delete_records(self, name: str, before: int | None, match: Any, wait: str) -> None:
        if before is None and match is None:
            match = ("tag", "Eq", "x")
        self.shard.delete_records(name, before, match, wait)

    @rule(
        name=NAMES,
        from_seq=st.integers(0, 40),
        limit=st.sampled_from([0, 0, 1, 2, 5]),
        max_bytes=st.sampled_from([None, 0, 100, 300]),
        nodes=st.sampled_from([None, None, ["x"], ["x", "y"]]),
        match=st.none() | MATCHES,
        include=st.tuples(st.booleans(), st.booleans(), st.booleans()),
        inline=st.booleans(),
    )
    def read(
        self,
        name: str,
        from_seq: int,
        limit: int,
        max_bytes: int | None,
        nodes: list[str] | None,
        match: Any,
        include: tuple[bool, bool, bool],
        inline: bool,
    ) -> None:
        self.shard.read(
            name,
            from_seq,
            limit=limit,
            max_bytes=max_bytes,
            nodes=nodes,
            match=match,
            include_tags=include[0],
            include_keys=include[1],
            include_meta=include[2],
            inline=inline,
        )

    @rule(
        name=NAMES,
        from_seq=st.integers(0, 60),
        limit=st.sampled_from([0, 1, 3]),
        max_bytes=st.sampled_from([None, 200]),
    )
    def read_plainly(self, name: str, from_seq: int, limit: int, max_bytes: int | None) -> None:
        self.shard.read(name, from_seq, limit=limit, max_bytes=max_bytes)
        if name in self.shard.live.names:
            self.shard.drain(name, from_seq)

    # --- turns and time ---------------------------------------------------------------------------------

    @rule(step=st.sampled_from(["commit", "sync", "begin", "run", "finish"]))
    def turn(self, step: str) -> None:
        match step:
            case "commit":
                self.shard.commit()
            case "sync":
                self.shard.sync()
            case "finish":
                self.shard.finish_sync()
            case _:
                self.shard.begin_sync(run=step == "run")

    @rule(ms=st.sampled_from([1, 500, 1001, 6000, 61_000, -700, -100_000]), tick=st.booleans())
    def pass_time(self, ms: int, tick: bool) -> None:
        # While nothing can be written down, what has expired may come back with the old time.
        if ms > 0 or not self.shard.faulty:
            self.shard.driver.clock.advance(ms)
        if tick:
            self.shard.tick()

    # --- maintenance ------------------------------------------------------------------------------------

    @rule(what=st.sampled_from(["seal", "snapshot", "relocate"]), names=SOME_NAMES)
    def maintain(self, what: str, names: list[str] | None) -> None:
        self.finish_job()
        if what == "seal":
            self._begin("seal", names)
        elif what == "snapshot":
            self._begin("snapshot", None)
            self._begin("end snapshot", None)
        else:
            self._begin("relocate", None)
        self.finish_job()
        if what == "relocate":
            self.shard.sync()
            self._begin("relocate", None)  # removes the hot copies, too

    @rule(
        what=st.sampled_from(["seal", "snapshot", "step", "end snapshot", "relocate", "finish"]),
        names=SOME_NAMES,
    )
    def maintain_slowly(self, what: str, names: list[str] | None) -> None:
        """One step of a job; anything may come before the next."""
        if what == "finish":
            self.finish_job()
        else:
            self._begin(what, names)

    def _begin(self, what: str, names: list[str] | None) -> None:
        if self.job is not None:
            return
        driver = self.shard.driver
        match what:
            case "seal":
                self.shard.commit()
                self._maintain(lambda: self.hold(driver.begin_seal(names)))
            case "snapshot":
                if driver.shard.maintenance._writer is None:
                    self._maintain(driver.begin_snapshot)
            case "step":
                self._maintain(driver.step_snapshot)
            case "end snapshot":
                self._maintain(lambda: self.hold(driver.end_snapshot()))
            case "relocate":
                self._maintain(lambda: self.hold(driver.begin_relocation()))

    def _maintain(self, act: Callable[[], object]) -> None:
        try:
            self.shard._guard(act)
        except OSError:
            # As the worker takes it: logged, tried again later.
            assert self.shard.faulty
            self.shard._take_answers()

    # --- crashes ----------------------------------------------------------------------------------------

    @rule(how=st.sampled_from(["kill", "random", "random", "none", "all", "close"]), seed=SEEDS)
    def stop(self, how: Any, seed: int) -> None:
        match how:
            case "kill":
                self.shard.kill()
            case "close":
                self.finish_job()
                self.shard.close_and_reopen()
            case _:
                self.shard.lose_power(seed, how)

    @rule(
        act=st.sampled_from(["append", "sync", "seal", "snapshot", "relocate", "close"]),
        after=st.integers(1, 12),
        half=st.booleans(),
        seed=SEEDS,
        power=st.booleans(),
        again=st.none() | st.integers(1, 12),
    )
    def crash_during(
        self, act: str, after: int, half: bool, seed: int, power: bool, again: int | None
    ) -> None:
        """The n-th change from now never happens; perhaps recovery is cut short as well."""
        shard = self.shard
        shard.disk.clear_faults()
        shard.disk.crash_after(after, half=half, seed=seed)
        try:
            self._do(act)
        except PowerCut:
            event(f"crashed during {act}")
        shard._take_answers()
        self._end_process(power, seed)
        if again is not None:
            shard.disk.crash_after(again, half=half, seed=seed)
            try:
                shard.reopen()
            except PowerCut:
                event("crashed during recovery")
            again_power = seed % 2 == 0
            self._end_process(again_power, seed + 1)
            power = power or again_power
        shard.recover(power_lost=power)

    def _end_process(self, power: bool, seed: int) -> None:
        if power:
            self.shard.disk.lose_power(seed)
        else:
            self.shard.disk.kill_process()

    def _do(self, act: str) -> None:
        match act:
            case "append":
                for name in "abc":
                    self.shard.append(
                        name, self.fill([{"shape": "long"}] * 3), config=self.first_config(name, {})
                    )
            case "sync":
                self.shard.sync()
            case "close":
                self.shard._guard(self.shard.driver.settle)
                self.shard.driver.shard.close()
            case _:
                self.maintain(act, None)

    @precondition(lambda self: not self.shard.in_flight)
    @rule(power=st.booleans())
    def rebuild_elsewhere(self, power: bool) -> None:
        if power:
            self.shard.sync()
        self.shard.check_rebuild(power_lost=power)

    # --- faults -----------------------------------------------------------------------------------------

    @rule(
        op=st.sampled_from(["write", "write", "allocate", "create", "rename"]),
        error=st.sampled_from([errno.EIO, errno.ENOSPC]),
        nth=st.integers(1, 3),
        where=st.sampled_from(["/wal/", *PLACES]),
    )
    def fail_next(self, op: Any, error: int, nth: int, where: str) -> None:
        self.shard.disk.fail_on(op, nth, error, where)
        self.shard.faulty = True

    @rule(written=st.integers(0, 300), error=st.sampled_from([errno.EIO, errno.ENOSPC]))
    def write_short(self, written: int, error: int) -> None:
        self.shard.disk.short_write(1, written, error=error, path_contains="/wal/")
        self.shard.faulty = True

    @rule(
        where=st.sampled_from(["/wal/", "/segments/", "/snapshots/", "/cold/"]),
        op=st.sampled_from(["sync", "syncdir"]),
    )
    def fail_sync(self, where: str, op: Any) -> None:
        self.shard.disk.fail_on(op, 1, errno.EIO, where)
        self.shard.faulty = True

    @rule()
    def heal(self) -> None:
        self.shard.disk.clear_faults()
        self.shard.tick()


TestEngine = EngineMachine.TestCase


@pytest.mark.exhaustive
class TestEngineAtLength(EngineMachine.TestCase):
    """The same machine, for `make test-exhaustive` to run with its own profile."""
