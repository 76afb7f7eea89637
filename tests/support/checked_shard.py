"""A shard and its model side by side: every call goes to both, every answer is compared, every crash is judged.

The oracles, as the fault catalogue numbers them: (1) acked fsync records are there, once, same seq, same bytes;
(2) nothing is there that was never written; (3) what is there is a prefix of the log; (4) floors never move back;
(5) recovering twice gives what recovering once gives; (6) a rebuild from files alone equals the live state.

1 to 4 come out of one comparison: after a crash the shard must equal the model folded over some prefix of the
operations, not shorter than what was synced. `Violation` says which promise was broken.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from shared.errors import DataDamage, DiskFault
from shared.wire import Op
from tests.model.engine_model import (
    DEFAULTS,
    Append,
    Configure,
    Create,
    Delete,
    Drop,
    Expire,
    Match,
    Operation,
    Rec,
    ShardModel,
    TopicModel,
)
from tests.support.fake_disk import FakeDisk, Keep
from tests.support.shard_driver import Answer, Call, ManualClock, ShardDriver

SCAN_MAX = 6  # READ_SCAN_MAX_RECORDS under small_limits
MAX_BYTES_DEFAULT = 1 << 20


class Violation(AssertionError):
    """The shard broke a promise."""


def check(condition: object, message: str, *facts: object) -> None:
    if not condition:
        raise Violation(f"{message}: {', '.join(map(repr, facts))}" if facts else message)


class Tombstone(msgspec.Struct, forbid_unknown_fields=True):
    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int
    earliest_seq: int
    head_seq: int


class ReadDocument(msgspec.Struct, forbid_unknown_fields=True):
    """The answer to a read, its records as the very bytes that were sent."""

    topic: str
    records: list[msgspec.Raw]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: Tombstone | None
    lag: int

    def texts(self) -> list[str]:
        return [bytes(record).decode() for record in self.records]


_decode_read = msgspec.json.Decoder(ReadDocument).decode


class Observed(msgspec.Struct, frozen=True):
    """Everything that readers can see of one topic."""

    head: int
    earliest: int
    count: int
    bytes: int
    epoch: int
    config: dict[str, Any]
    texts: list[str]
    lost: list[int]
    # Of the tombstone that a reader from 0 gets first: the seq behind its gap (1: none), and its reason. It is the
    # evict floor's, unless that is 1 still and there is a hole at the very beginning.
    floor: int
    reason: str | None
    by_floor: bool  # which of the two; what is told is the same, but not what the next loss makes of it


@dataclass(slots=True, eq=False)
class Entry:
    """One operation, in log order, from the moment it is handed in."""

    op: Operation
    call: Call | None = None  # None: has no answer of its own
    verify: Callable[[Answer, int], None] | None = None
    logged: bool = True  # False: in memory only, no crash leaves it
    optional: bool = False  # may be missing from the log even though later ones are there
    sure: bool = True  # becomes obligatory with the next commit
    applied: bool = False
    synced: bool = False
    before: TopicModel | None = None  # as the topic was, to go back to if nothing was written after all


@dataclass(slots=True)
class Plan:
    """What the next writer of a topic must reckon with, frames on their way included."""

    name: str
    staged_head: int = 0
    staged_ts: int = 0
    epoch: int | None = None
    acked_head: int = 0
    classes: set[str] = field(default_factory=set)  # all durability classes it ever had
    in_memory: set[int] = field(default_factory=set)  # seqs that were given out while it was ephemeral

    def copy(self) -> Plan:
        return replace(self, classes=set(self.classes), in_memory=set(self.in_memory))

    @property
    def mixed(self) -> bool:
        return "ephemeral" in self.classes and len(self.classes) > 1


class CheckedShard:
    def __init__(
        self, disk: FakeDisk | None = None, clock: ManualClock | None = None, *, open: bool = True
    ) -> None:
        self.driver = ShardDriver(disk, clock=clock, open=open)
        self.driver.before_sync = self._note_written
        self.driver.after_sync = self._mark_synced
        self._being_synced: list[Entry] = []
        self.live = ShardModel()  # what readers see
        self.base = ShardModel()  # what the log held before `log`
        self.log: list[Entry] = []
        self.planned: dict[str, int] = {}
        self.plans: dict[int, Plan] = {}
        self.epochs: dict[str, int] = {}  # the newest epoch that a topic of this name was seen with
        self.faulty = False  # a write fault is armed, or the shard may be read-only

    # --- small helpers ----------------------------------------------------------------------------------

    @property
    def disk(self) -> FakeDisk:
        return self.driver.disk

    def now_ms(self) -> int:
        now_ms: int = self.driver.engine.now_ms()
        newest_ms = max((topic.last_ts for topic in self.live.topics.values()), default=0)
        check(now_ms >= newest_ms, "time ran backwards", now_ms, newest_ms)
        return now_ms

    def _note_written(self) -> None:
        self._being_synced = list(self.log)

    def _mark_synced(self) -> None:
        for entry in self._being_synced:
            if entry.call is None or entry.call.answer is None or entry.call.answer.ok:
                entry.synced = True

    @property
    def in_flight(self) -> list[Entry]:
        return [entry for entry in self.log if not entry.applied]

    def _pending(self, incarnation: int) -> list[Entry]:
        return [entry for entry in self.in_flight if entry.op.incarnation == incarnation]

    def topic_names(self) -> list[str]:
        return sorted(self.live.names)

    # --- turns ------------------------------------------------------------------------------------------

    def commit(self) -> None:
        self._guard(self.driver.commit)

    def sync(self) -> None:
        self._guard(self.driver.sync)

    def begin_sync(self, *, run: bool) -> None:
        self._guard(lambda: self.driver.begin_sync(run=run))

    def finish_sync(self) -> None:
        self._guard(self.driver.finish_sync)

    def tick(self) -> None:
        self._expire_all()
        self._guard(self.driver.tick)
        if self.driver.engine.commits.read_only is None and not self.disk._faults:
            self.faulty = False

    def _guard(self, act: Callable[[], object]) -> None:
        """Do it, then take in the answers. A disk that failed beyond repair ends the process: restart it."""
        try:
            act()
        except DiskFault:
            check(self.faulty, "a DiskFault although the disk did not fail")
            self.disk.clear_faults()
            self.kill()
            return
        self._take_answers()

    def _take_answers(self) -> None:
        if not self.log:
            return
        settled = not self.driver.engine.commits._group
        for entry in list(self.log):
            if entry.applied:
                continue
            if entry.call is None or entry.call.answer is None:
                continue
            if not entry.call.answer.ok:
                check(entry.call.answer.status >= 500, "refused too late", entry.call.answer)
                check(self.faulty, "a write failed although the disk did not", entry.call.answer)
                self.log.remove(entry)
                continue
            removed = entry.op.apply(self.live)
            entry.applied = True
            if isinstance(entry.op, Append):
                plan = self.plans[entry.op.incarnation]
                plan.acked_head = max(plan.acked_head, entry.op.recs[-1].seq)
                if not entry.logged:
                    plan.in_memory.update(rec.seq for rec in entry.op.recs)
            if entry.verify is not None:
                entry.verify(entry.call.answer, removed)
        self._replan()
        if settled:
            self._settle_floors()
        while self.log and self.log[0].synced and self.log[0].applied:
            self._into_base(self.log.pop(0))

    def _settle_floors(self, only: int | None = None) -> None:
        """Which floors of TTLs are in the log? With a healthy disk all that must be, otherwise those that were applied.
        `only`: of this topic, as no other has been committed.

        One that was not is forgotten: what has expired is gone for readers all the same, and the next look tries to
        write that down anew. Until then caps and deletes find the records where they are.
        """
        for place in range(len(self.log) - 1, -1, -1):
            entry = self.log[place]
            number = entry.op.incarnation
            if not entry.optional or only not in (None, number):
                continue
            if entry.sure and not self.faulty:
                entry.optional = False
                continue
            if any(later.op.incarnation == number for later in self.log[place + 1 :]):
                continue  # too late to tell
            topic = self.driver.engine.state.catalog.visible.get(self.plans[number].name)
            assert isinstance(entry.op, Expire) and topic is not None
            if topic.floor >= entry.op.floor:
                entry.optional = False
            elif entry.before is not None and self.faulty:
                self.live.topics[number] = entry.before
                del self.log[place]

    def _settle_floors_of(self, name: str) -> None:
        """Before something else is done to the topic: later nobody can say whether that has moved the floor."""
        number = self.live.names.get(name)
        if self.faulty and any(entry.optional and entry.op.incarnation == number for entry in self.log):
            self.commit()

    def _into_base(self, entry: Entry) -> None:
        # A floor that may be missing is met again by the next read.
        if not entry.optional:
            _replay(entry, self.base)

    def _replan(self) -> None:
        """What the next writer sees: the live topics, changed by what is on its way."""
        names = dict(self.live.names)
        for number, plan in self.plans.items():
            topic = self.live.topics.get(number)
            plan.staged_head = topic.head if topic is not None else 0
        for entry in self.in_flight:
            op = entry.op
            if isinstance(op, Create):
                names[op.name] = op.incarnation
            elif isinstance(op, Drop):
                if names.get(self.plans[op.incarnation].name) == op.incarnation:
                    del names[self.plans[op.incarnation].name]
            elif isinstance(op, Append):
                self.plans[op.incarnation].staged_head = op.recs[-1].seq
        self.planned = names

    def _wait(self, call: Call, wait: str) -> None:
        """`staged`: not even committed; `committed`: not synced; `answered`: until the answer is there."""
        if wait == "staged":
            self._take_answers()
            return
        self.commit()
        if wait == "answered" and call.answer is None and any(entry.call is call for entry in self.log):
            self.sync()

    def _submit(
        self, op: int, topic: str, body: object, options: dict[str, object] | None = None
    ) -> Call | None:
        """None: the disk failed beyond repair and the process was restarted."""
        try:
            return self.driver.submit(op, topic, body, options)
        except DiskFault:
            check(self.faulty, "a DiskFault although the disk did not fail")
            self.disk.clear_faults()
            self.kill()
            return None

    def _refused(self, call: Call) -> bool:
        """Was it refused for a reason that only a failing disk gives?"""
        if call.answer is None or call.answer.status < 500:
            return False
        check(self.faulty, "refused although the disk is well", call.answer)
        return True

    # --- writing ----------------------------------------------------------------------------------------

    def _new_plan(self, name: str, config: dict[str, Any]) -> int:
        number = len(self.plans) + 1
        self.plans[number] = Plan(name, classes={config["durability"]})
        return number

    def _planned_config(self, number: int) -> dict[str, Any]:
        """What is in force for whatever is written next."""
        topic = self.live.topics.get(number)
        configs = [topic.config] if topic is not None else []
        configs += [e.op.config for e in self._pending(number) if isinstance(e.op, Create | Configure)]
        return configs[-1]

    def put(self, name: str, changes: dict[str, Any], wait: str = "answered") -> None:
        self._settle_floors_of(name)
        number = self.planned.get(name)
        if number is not None and self._planned_config(number) | changes != self._planned_config(number):
            self._expire(name)
            number = self.planned.get(name)
        if number is None:
            config = DEFAULTS | changes
            created = self._new_plan(name, config)
            op: Operation = Create(created, name, config)
        else:
            config = self._planned_config(number) | changes
            op = Configure(number, config)
            self.plans[number].classes.add(config["durability"])
        call = self._submit(Op.PUT_TOPIC, name, changes)
        if call is None or self._refused(call):
            return
        if number is not None:
            self._settle_floors(number)

        def verify(answer: Answer, _: int) -> None:
            check(answer.json["created"] is (number is None), "created", answer.json)
            check(answer.status == (201 if number is None else 200), "status", answer)

        self.log.append(Entry(op, call, verify))
        self._wait(call, wait)

    def delete_topic(self, name: str, *, if_empty: bool = False, wait: str = "answered") -> None:
        self._settle_floors_of(name)
        number = self.planned.get(name)
        call = self._submit(Op.DELETE_TOPIC, name, None, {"if_empty": if_empty})
        if call is None or self._refused(call):
            return
        if number is None:
            check(call.answer is not None and call.answer.json["deleted"] is False, "deleted nothing", call)
            return
        topic = self.live.topics.get(number)
        held = topic.count if topic is not None else 0
        held += sum(len(entry.op.recs) for entry in self._pending(number) if isinstance(entry.op, Append))
        if if_empty and held:
            check(call.answer is not None and call.answer.error == "topic_not_empty", "if_empty", call)
            return
        check(call.answer is None or call.answer.ok, "delete topic", call)
        self.log.append(Entry(Drop(number), call, lambda answer, _: check(answer.json["deleted"], "deleted")))
        self._wait(call, wait)

    def append(
        self,
        name: str,
        records: Sequence[dict[str, Any]],
        *,
        node: str | None = None,
        idem: str | None = None,
        create: bool | None = None,
        config: dict[str, Any] | None = None,
        wait: str = "answered",
    ) -> Call | None:
        """`records`: dicts with `data` and `meta` as JSON texts, `tag`, `key`, `node` as strings."""
        self._settle_floors_of(name)
        number = self.planned.get(name)
        if number is not None and self._planned_config(number)["discard"] == "reject":
            self._expire(name, sure=False)
            number = self.planned.get(name)
        now_ms = self.now_ms()
        call = self._submit(Op.APPEND, name, _write_body(records, node, idem, create, config))
        if call is None or self._refused(call):
            return None
        if number is not None:
            self._settle_floors(number)  # one that was refused has made no room
        if number is None and self._not_created(call, create, config):
            return call
        if number is not None and idem is not None and self._is_repeat(number, idem, now_ms, call, wait):
            return call
        settings = DEFAULTS | (config or {}) if number is None else self._planned_config(number)
        plan = self.plans.get(number or 0)
        first = plan.staged_head + 1 if plan is not None else 1
        ts = max(now_ms, plan.staged_ts) if plan is not None else now_ms
        recs = [_record(first + index, ts, record, node) for index, record in enumerate(records)]
        refusal = self._cap_refusal(number, settings, recs)
        if call.answer is not None and call.answer.status in (400, 422):
            check(call.answer.error == refusal, "cap", call.answer, refusal)
            return call
        check(refusal is None, "a full topic took a write", refusal, call)
        created = number is None
        if number is None:
            number = self._new_plan(name, settings)
            self.log.append(Entry(Create(number, name, settings), call))
        plan = self.plans[number]
        plan.staged_ts = ts

        def verify(answer: Answer, _: int) -> None:
            last = recs[-1].seq
            expected = {
                "topic": name,
                "first_seq": first,
                "last_seq": last,
                "seqs": list(range(first, last + 1)),
            }
            expected |= {"count": len(recs), "created": created, "deduped": False}
            found = answer.json
            check(found["head_seq"] >= last, "head", found)
            check({key: found[key] for key in expected} == expected, "answer to a write", found, expected)
            check(answer.status == (201 if created else 200), "status", answer)

        resident = settings["durability"] == "ephemeral"
        self.log.append(Entry(Append(number, recs, idem), call, verify, logged=not resident))
        self._replan()
        self._wait(call, wait)
        return call

    def _not_created(self, call: Call, create: bool | None, config: dict[str, Any] | None) -> bool:
        auto_create = (config or {}).get("auto_create", True)
        if create is False or (create is None and not auto_create):
            check(call.answer is not None and call.answer.error == "topic_not_found", "404 expected", call)
            return True
        return False

    def _is_repeat(self, number: int, idem: str, now_ms: int, call: Call, wait: str) -> bool:
        first_write = next(
            (e for e in self._pending(number) if isinstance(e.op, Append) and e.op.idem == idem), None
        )
        if first_write is not None:
            op = first_write.op
            assert isinstance(op, Append)
            self._check_repeat_when_answered(call, op.recs[0].seq, len(op.recs))
            self._wait(call, wait)
            return True
        topic = self.live.topics.get(number)
        held = topic.dedupe.get(idem) if topic is not None else None
        if topic is None or held is None or now_ms - held[2] > topic.config["idempotency_window_ms"]:
            return False
        check(call.answer is not None, "a repeat is answered at once", call)
        self._check_repeat(call.answer, held[0], held[1])
        return True

    def _check_repeat_when_answered(self, call: Call, first: int, count: int) -> None:
        @dataclass(slots=True)
        class Nothing:
            incarnation: int = 0

            def apply(self, shard: ShardModel) -> int:
                return 0

        entry = Entry(
            Nothing(), call, lambda answer, _: self._check_repeat(answer, first, count), logged=False
        )
        self.log.append(entry)

    def _check_repeat(self, answer: Answer | None, first: int, count: int) -> None:
        assert answer is not None
        found = answer.json
        check(found["deduped"] is True, "a repeat was appended again", found)
        check(
            (found["first_seq"], found["count"]) == (first, count),
            "a repeat got other seqs",
            found,
            first,
            count,
        )

    def _cap_refusal(self, number: int | None, settings: dict[str, Any], recs: list[Rec]) -> str | None:
        cap_records, cap_bytes = settings["cap_records"], settings["cap_bytes"]
        count, size = len(recs), sum(rec.size for rec in recs)
        if 0 < cap_records < count or 0 < cap_bytes < size:
            return "record_too_large"
        if settings["discard"] == "reject" and number is not None:
            topic = self.live.topics.get(number)
            count += topic.count if topic is not None else 0
            size += topic.bytes if topic is not None else 0
            for entry in self._pending(number):
                if isinstance(entry.op, Append):
                    count += len(entry.op.recs)
                    size += sum(rec.size for rec in entry.op.recs)
            if 0 < cap_records < count or 0 < cap_bytes < size:
                return "topic_full"
        return None

    def delete_records(
        self, name: str, before: int | None = None, match: Match | None = None, wait: str = "answered"
    ) -> None:
        body: dict[str, Any] = {} if before is None else {"before_seq": before}
        if match is not None:
            body["match"] = [match[0], match[1], match[2] + "*" if match[1] == "Glob" else match[2]]
        self._settle_floors_of(name)
        self._commit_if_a_reader_would(name)
        call = self._submit(Op.DELETE_RECORDS, name, body)
        if call is None or self._refused(call):
            return
        topic = self.live.by_name(name)
        if topic is None:
            check(call.answer is not None and call.answer.error == "topic_not_found", "404 expected", call)
            return

        def verify(answer: Answer, removed: int) -> None:
            check(answer.json["deleted"] == removed, "number of deleted records", answer.json, removed)

        op = Delete(self.live.names[name], topic.head, before, match)
        self.log.append(Entry(op, call, verify))
        self._wait(call, wait)

    # --- reading ----------------------------------------------------------------------------------------

    def _commit_if_a_reader_would(self, name: str) -> None:
        """Reads show what was written in the same turn: the engine commits it first, so take that in."""
        if name in self.live.names and self._pending(self.live.names[name]):
            self.commit()

    def _expire(self, name: str, *, sure: bool = True) -> None:
        """A look at the topic lets go of what has expired, and writes that down (not `sure`: or does not)."""
        if not self._expiring(name):
            return
        if self._queues_up(name):
            # The floor would queue up behind what waits for its sync: an order that the model does not follow.
            self.sync()
        if self._expiring(name):
            number = self.live.names[name]
            floor = self.live.topics[number].expired_floor(self.now_ms())
            before = self.live.topics[number].copy()
            entry = Entry(Expire(number, floor), optional=True, sure=sure, applied=True, before=before)
            entry.op.apply(self.live)
            self.log.append(entry)

    def _queues_up(self, name: str) -> bool:
        """Does anything of this topic wait for a sync? Also floors that the engine writes down on its own."""
        return bool(
            self._pending(self.live.names[name]) or self.driver.engine.state.catalog.visible[name].gated
        )

    def _expire_all(self) -> None:
        if any(self._expiring(name) and self._queues_up(name) for name in self.topic_names()):
            self.sync()  # for all of them, as in `_expire`: nobody's floor is looked for before it is written
        for name in self.topic_names():
            self._expire(name)

    def _expiring(self, name: str) -> bool:
        topic = self.live.by_name(name)
        return topic is not None and topic.expired_floor(self.now_ms()) > topic.floor

    def read(
        self,
        name: str,
        from_seq: int = 0,
        *,
        limit: int = 0,
        max_bytes: int | None = None,
        nodes: list[str] | None = None,
        match: Match | None = None,
        include_tags: bool = False,
        include_keys: bool = False,
        include_meta: bool = True,
        inline: bool = False,
    ) -> ReadDocument | None:
        """One read, compared with the model; None for a topic that is not there."""
        self._commit_if_a_reader_would(name)
        self._expire(name)
        body: dict[str, Any] = {"from_seq": from_seq, "limit": limit, "include_tags": include_tags}
        body |= {"include_keys": include_keys, "include_meta": include_meta}
        if max_bytes is not None:
            body["max_bytes"] = max_bytes
        if nodes:
            body["node"] = nodes
        if match is not None:
            body["match"] = [match[0], match[1], match[2] + "*" if match[1] == "Glob" else match[2]]
        answer = self._answer(Op.READ, name, body, {"inline": inline})
        topic = self.live.by_name(name)
        if topic is None:
            check(answer.error == "topic_not_found", "404 expected", answer)
            return None
        check(answer.status == 200, "read", answer)
        plain = not (nodes or match or include_tags or include_keys or not include_meta)
        if plain and not inline:
            twin = self._answer(Op.READ, name, body, {"inline": True})
            check(twin.text == answer.text, "extents and bytes differ", answer.text, twin.text)
        found = _decode_read(answer.text)
        excluded = set(nodes or ()) if topic.config["dedupe_node"] else set()
        wanted = [
            rec
            for rec in topic.live.values()
            if (rec.seq > from_seq or from_seq > topic.head)
            and rec.node not in excluded
            and rec.matches(match)
        ]
        view = {"include_tags": include_tags, "include_keys": include_keys, "include_meta": include_meta}
        expected = [rec.text(**view) for rec in wanted[: len(found.records)]]
        check(found.texts() == expected, "records", found, expected)
        self._check_where_it_ends(found, topic, from_seq, wanted, limit, max_bytes, answer)
        self._check_tombstone(found, topic, from_seq)
        return found

    def _answer(self, op: int, name: str, body: object, options: dict[str, object]) -> Answer:
        call = self._submit(op, name, body, options)
        if call is None:  # the disk failed under it, and the process was restarted: ask again
            call = self._submit(op, name, body, options)
        assert call is not None and call.answer is not None, "reads are answered at once"
        return call.answer

    def _check_where_it_ends(
        self,
        found: ReadDocument,
        topic: TopicModel,
        from_seq: int,
        wanted: list[Rec],
        limit: int,
        max_bytes: int | None,
        answer: Answer,
    ) -> None:
        limit = min(limit or 256, 1000)
        max_bytes = MAX_BYTES_DEFAULT if max_bytes is None else max_bytes
        got, left = wanted[: len(found.records)], wanted[len(found.records) :]
        used = sum(rec.size for rec in got)
        check(len(got) <= limit, "limit", found)
        check(used <= max_bytes or len(got) <= 1, "max_bytes", found, used)
        check(
            (found.head_seq, found.earliest_seq) == (topic.head, topic.earliest),
            "head and earliest",
            found,
            topic,
        )
        end = found.next_from_seq
        check(found.lag == topic.head - end and found.caught_up is (found.lag == 0), "lag", found)
        check(not got or end >= got[-1].seq, "the cursor stands before what was delivered", found)
        check(not left or end < left[0].seq, "the cursor passed a record", found, left[:1])
        if end < topic.head:
            # It may stop early only for a reason, and never in place.
            full = len(got) == limit or (left and got and used + left[0].size > max_bytes)
            scanned = answer.timings["records_scanned"] >= SCAN_MAX
            hole = any(first <= end + 1 <= last for first, last in topic.holes)
            check(full or scanned or hole, "stopped without a reason", found, topic)
            check(end > from_seq or from_seq > topic.head, "no progress", found)

    def _check_tombstone(self, found: ReadDocument, topic: TopicModel, from_seq: int) -> None:
        stone = found.tombstone
        if from_seq > topic.head:
            check(
                stone and (stone.gap_from, stone.gap_to, stone.reason) == (1, topic.head, "recreated"),
                "gap",
                found,
            )
        elif from_seq + 1 < topic.floor:
            expected = (from_seq + 1, topic.floor - 1, topic.reason)
            check(stone and (stone.gap_from, stone.gap_to, stone.reason) == expected, "gap", found, expected)
        elif stone is not None:
            gap = set(range(stone.gap_from, stone.gap_to + 1))
            check(
                gap and gap <= topic.lost_behind(from_seq), "a gap where nothing was lost", found, topic.holes
            )
            # What was evicted while the topic was ephemeral keeps its own reason where the log knows of it.
            mixed = self.plans[self.live.names[topic.name]].mixed
            check(stone.reason == "mixed" or mixed, "reason", found)
        if stone is not None:
            check(stone.missed_estimate == stone.gap_to - stone.gap_from + 1, "missed_estimate", stone)
            check(
                (stone.earliest_seq, stone.head_seq) == (found.earliest_seq, found.head_seq), "stone", found
            )

    def drain(self, name: str, from_seq: int = 0) -> None:
        """Read on from a cursor to the head: every live record once, every lost seq told, no other."""
        topic = self.live.by_name(name)
        assert topic is not None
        cursor, told, texts = from_seq, set[int](), list[str]()
        while True:
            found = self.read(name, cursor)
            assert found is not None
            texts += found.texts()
            if found.tombstone is not None:
                told.update(range(found.tombstone.gap_from, found.tombstone.gap_to + 1))
            if found.caught_up:
                break
            cursor = found.next_from_seq
        if from_seq <= topic.head:
            check(
                told == topic.lost_behind(from_seq),
                "what was told to be lost",
                told,
                topic.lost_behind(from_seq),
            )
            check(
                texts == [r.text() for r in topic.live.values() if r.seq > from_seq], "a drained topic", texts
            )

    def check_state(self, name: str) -> None:
        self._commit_if_a_reader_would(name)
        self._expire(name)
        answer = self._answer(Op.STATE, name, None, {"touch": False})
        topic = self.live.by_name(name)
        if topic is None:
            check(answer.error == "topic_not_found", "404 expected", answer)
            return
        found = answer.json
        counted = (
            found["head_seq"],
            found["earliest_seq"],
            found["next_seq"],
            found["count"],
            found["bytes"],
        )
        expected = (topic.head, topic.earliest, topic.head + 1, topic.count, topic.bytes)
        # A floor that could not be written down is only read with: until it can, the counts lag behind.
        check(counted == expected or self.faulty, "head, earliest, next, count, bytes", counted, expected)
        config = {key: found["config"][key] for key in topic.config}
        check(config == topic.config, "config", config, topic.config)
        plan = self.plans[self.live.names[name]]
        if plan.epoch is None:
            check(found["epoch"] > self.epochs.get(name, 0), "an epoch was used again", found, self.epochs)
            check(found["epoch"] not in self.epochs.values(), "two topics have one epoch", found, self.epochs)
            plan.epoch = self.epochs[name] = found["epoch"]
        check(found["epoch"] == plan.epoch, "the epoch changed", found, plan)

    def check_everything(self) -> None:
        names = self.topic_names()
        for name in names:
            self.check_state(name)
            if name in self.live.names:  # else a delete that waited for a sync has got it
                self.drain(name)
        self._expire_all()
        items, more = self.driver.list()
        self._take_answers()
        check([item["topic"] for item in items] == self.topic_names() and not more, "list", items)
        for item in items:
            topic = self.live.by_name(item["topic"])
            assert topic is not None
            check(
                (item["count"], item["bytes"]) == (topic.count, topic.bytes) or self.faulty, "list item", item
            )
        commits = self.driver.engine.commits
        check(not commits.idle or commits.waiting_bytes == 0, "weight of nothing", commits.waiting_bytes)

    # --- crashes ----------------------------------------------------------------------------------------

    def kill(self) -> None:
        """The process dies; the page cache survives."""
        self._take_answers()
        self.disk.kill_process()
        self.recover(power_lost=False)

    def lose_power(self, seed: int, keep: Keep = "random") -> None:
        self._take_answers()
        self.disk.lose_power(seed, keep)
        self.recover(power_lost=True)

    def close_and_reopen(self) -> None:
        self._guard(self.driver.settle)
        faulty = self.faulty  # then the last snapshot may fail, and the restart is like one after a kill
        try:
            self.driver.close()
        except DiskFault:
            check(faulty, "a DiskFault although the disk did not fail")
        self.disk.kill_process()
        if not faulty:
            check(not self.in_flight, "in flight after a clean close", self.in_flight)
            self.log = [entry for entry in self.log if not entry.optional]
            for entry in self.log:
                entry.synced = True
        self.recover(power_lost=False, clean=not faulty)

    def recover(self, *, power_lost: bool, clean: bool = False) -> None:
        self.disk.clear_faults()
        self.reopen()
        self.judge(power_lost=power_lost, clean=clean)

    def reopen(self) -> None:
        """Start it again, and say nothing about what it holds."""
        try:
            self.driver.reopen()
        except DataDamage as err:
            raise Violation(f"after a crash the shard refuses to start: {err}") from err

    def judge(self, *, power_lost: bool, clean: bool = False) -> None:
        """Is what the shard holds now a prefix of what it was told, with all that was synced?"""
        report = self.driver.shard.report
        check(not report.damage, "a crash was taken for damage", report)
        found = observe(self.driver)
        logged = self.log
        synced = max((at + 1 for at, entry in enumerate(logged) if entry.synced), default=0)
        reasons: list[str] = []
        for length in range(len(logged), synced - 1, -1):
            for skip_optional in (False, True):
                chosen = [e for e in logged[:length] if not (skip_optional and e.optional)]
                if skip_optional and len(chosen) == length:
                    continue
                fits, why = self._fit(chosen, found, power_lost=power_lost, clean=clean)
                if fits is not None:
                    self._adopt(*fits)
                    return
                reasons.append(f"{length} of {len(logged)}: {why}")
        raise Violation(
            f"no prefix of at least {synced} synced operations explains the state after "
            f"{'a power cut' if power_lost else 'a kill'}:\n  " + "\n  ".join(reasons) + f"\n  found {found}"
            f"\n  log {[(e.op, e.applied, e.synced) for e in logged]}"
        )

    def _fit(
        self, entries: list[Entry], found: dict[str, Observed], *, power_lost: bool, clean: bool
    ) -> tuple[tuple[ShardModel, ShardModel], str]:
        """The model after exactly these operations, if it is what was found; else why not."""
        model = self.base.copy()
        for entry in entries:
            _replay(entry, model)
        nothing: Any = None
        if sorted(model.names) != sorted(found):
            return nothing, f"topics {sorted(model.names)}"
        for name, number in model.names.items():
            topic, seen = model.topics[number], found[name]
            why = self._settle_head(number, topic, seen, power_lost=power_lost, clean=clean)
            if why:
                return nothing, f"{name}: {why}"
        stored = model.copy()
        now_ms = self.driver.engine.now_ms()
        for name, number in model.names.items():
            topic, seen = model.topics[number], found[name]
            before = self.live.topics.get(number)
            if self.plans[number].mixed and before is not None:
                # Records in memory counted for the caps, so more was evicted than the operations give without them;
                # and what a cap had taken cannot expire.
                taken = {seq for seq in before.capped if seq < seen.floor}
                topic.live = {seq: rec for seq, rec in topic.live.items() if seq not in taken}
            topic.evict(topic.expired_floor(now_ms), "ttl")
            if self.plans[number].mixed:
                why = self._settle_mixed(number, stored.topics[number], topic, seen)
                if why:
                    return nothing, f"{name}: {why}"
            why = _difference(topic, seen)
            if why:
                return nothing, f"{name}: {why}"
            epoch = self.plans[number].epoch
            if seen.epoch != epoch and (epoch is not None or seen.epoch in self.epochs.values()):
                return nothing, f"{name}: another epoch"
        return (stored, model), ""

    def _settle_head(
        self, number: int, topic: TopicModel, seen: Observed, *, power_lost: bool, clean: bool
    ) -> str | None:
        """The head after a crash may lie behind seqs that were given out and lost, never before them."""
        plan = self.plans[number]
        ephemeral = topic.config["durability"] == "ephemeral"
        may_lose = not clean and (power_lost or "ephemeral" in plan.classes) and plan.classes != {"fsync"}
        if seen.head < max(topic.head, plan.acked_head):
            return f"head {seen.head}, but {topic.head} were stored and {plan.acked_head} acked"
        if seen.head > max(topic.head, plan.acked_head if ephemeral else 0) and not may_lose:
            return f"head {seen.head}, but only {topic.head} were stored"
        topic.lose(seen.head)
        if ephemeral:
            topic.lose_everything()
            topic.reason = seen.reason if topic.floor > 1 else None
        return None

    def _settle_mixed(self, number: int, stored: TopicModel, topic: TopicModel, seen: Observed) -> str | None:
        """A topic that was ephemeral for a while. All its records in memory are lost, and readers are told so; whether
        deleted ones among them are told as well depends on how far back the log goes.

        So does where the floor's tombstone ends and that of a hole begins. The floor may be behind the one that the
        operations give without the records in memory, as those counted for the caps: then it is taken over. It covers
        nothing but such records and what readers had been told of before, and it is never before that one
        (`_difference`).
        """
        plan, before = self.plans[number], self.live.topics.get(number)
        evicted = set(range(1, min(seen.floor, before.floor))) if before is not None else set()
        for each in (stored, topic):
            each.live = {seq: rec for seq, rec in each.live.items() if seq not in evicted}
        must = topic.lost_behind(0) - plan.in_memory
        if before is not None:
            gone = before.live.keys() | (before.lost_behind(0) - before.deleted)
            must |= gone & plan.in_memory
        may = must | plan.in_memory | topic.lost_behind(0) | evicted
        if not must <= set(seen.lost) <= may:
            return f"lost {sorted(must)} to {sorted(may)}, found {seen.lost}"
        if topic.floor > 1 and not seen.by_floor:
            return f"floor {topic.floor}, found a hole in its place"
        if topic.floor > 1 and seen.reason not in (topic.reason, "mixed"):
            return f"reason {topic.reason}, found {seen.reason}"
        for each in (stored, topic):
            if seen.floor > topic.floor and seen.by_floor:
                each.floor = seen.floor
            each.holes = [(seq, seq) for seq in seen.lost if seq >= each.floor]
            each.reason = seen.reason if each.floor > 1 else None
        return None

    def _adopt(self, stored: ShardModel, live: ShardModel) -> None:
        for number, before in self.live.topics.items():
            if number in live.topics:
                live.topics[number].deleted |= before.deleted
        self.base, self.live, self.log = stored, live, []
        for number, topic in live.topics.items():
            plan = self.plans[number]
            plan.staged_ts = topic.last_ts
            if topic.floor > stored.topics[number].floor:
                self.log.append(Entry(Expire(number, topic.floor), optional=True, applied=True))
        self._replan()
        if self.driver.engine.commits.read_only is None and not self.disk._faults:
            self.faulty = False

    def check_rebuild(self, *, power_lost: bool = False) -> None:
        """Oracles 5 and 6: what the files alone give is what is being served. Nothing may be in flight."""
        twin = self.twin(self.disk.clone())
        if power_lost:
            twin.disk.lose_power(0, "none")
        twin.recover(power_lost=power_lost)

    def twin(self, disk: FakeDisk) -> CheckedShard:
        """The same expectations about another disk; `recover` opens it."""
        twin = CheckedShard(disk, ManualClock(self.driver.clock.now_ms), open=False)
        twin.live, twin.base, twin.log = self.live.copy(), self.base.copy(), list(self.log)
        twin.planned, twin.epochs = dict(self.planned), dict(self.epochs)
        twin.plans = {number: plan.copy() for number, plan in self.plans.items()}
        return twin

    # --- maintenance ------------------------------------------------------------------------------------

    def seal(self, names: list[str] | None = None) -> None:
        self._guard(lambda: self.driver.seal(names))

    def snapshot(self) -> None:
        self._guard(self.driver.snapshot)

    def relocate(self) -> None:
        self._guard(self.driver.relocate)


def _replay(entry: Entry, model: ShardModel) -> None:
    """What a crash leaves of an operation: of a write that was in memory only, a hole."""
    if entry.logged or not isinstance(entry.op, Append):
        entry.op.apply(model)
    else:
        entry.op.vanish(model)


def observe(driver: ShardDriver) -> dict[str, Observed]:
    items, more = driver.list()
    assert not more
    found = {}
    for item in items:
        name = item["topic"]
        state = driver.state(name, touch=False).json
        texts, lost, cursor, floor, reason = [], set[int](), 0, 1, None
        while True:
            answer = driver.read_answer(name, cursor)
            check(answer.ok, "a topic cannot be read", name, answer)
            document = _decode_read(answer.text)
            texts += document.texts()
            stone = document.tombstone
            if stone is not None:
                if stone.gap_from == 1:
                    floor, reason = stone.gap_to + 1, stone.reason
                lost.update(range(stone.gap_from, stone.gap_to + 1))
            if document.caught_up:
                break
            check(document.next_from_seq > cursor, "no progress", document)
            cursor = document.next_from_seq
        found[name] = Observed(
            state["head_seq"],
            state["earliest_seq"],
            state["count"],
            state["bytes"],
            state["epoch"],
            {key: state["config"][key] for key in DEFAULTS},
            texts,
            sorted(lost),
            floor,
            reason,
            driver.engine.floor_now(driver.engine.state.catalog.visible[name], driver.engine.now_ms()) > 1,
        )
    return found


def _difference(topic: TopicModel, seen: Observed) -> str | None:
    texts = [rec.text() for rec in topic.live.values()]
    if texts != seen.texts:
        return f"records {texts}, found {seen.texts}"
    if seen.lost != sorted(topic.lost_behind(0)):
        return f"lost {sorted(topic.lost_behind(0))}, found {seen.lost}"
    expected = (topic.head, topic.earliest, topic.count, topic.bytes, topic.config)
    if (seen.head, seen.earliest, seen.count, seen.bytes, seen.config) != expected:
        return f"state {expected}"
    if topic.floor > 1 and (seen.floor, seen.reason) != (topic.floor, topic.reason):
        return f"floor {topic.floor} ({topic.reason}), found {seen.floor} ({seen.reason})"
    return None


def _record(seq: int, ts: int, record: dict[str, Any], node: str | None) -> Rec:
    return Rec(
        seq,
        ts,
        record["data"],
        record.get("node", node),
        record.get("tag"),
        record.get("key"),
        record.get("meta"),
    )


def _write_body(
    records: Sequence[dict[str, Any]],
    node: str | None,
    idem: str | None,
    create: bool | None,
    config: dict[str, Any] | None,
) -> bytes:
    """By hand, so that `data` and `meta` reach the shard as they were written."""
    parts = []
    for record in records:
        fields = [f'"data":{record["data"]}']
        fields += [
            f'"{label}":{json.dumps(record[label])}' for label in ("tag", "key", "node") if label in record
        ]
        if "meta" in record:
            fields.append(f'"meta":{record["meta"]}')
        parts.append("{" + ",".join(fields) + "}")
    fields = [f'"records":[{",".join(parts)}]']
    extra = {"node": node, "idempotency_key": idem, "create": create, "config": config}
    fields += [f'"{name}":{json.dumps(value)}' for name, value in extra.items() if value is not None]
    return ("{" + ",".join(fields) + "}").encode()
