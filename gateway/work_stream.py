"""One `GET …/work`: a connection that has up to `max` jobs of a queue leased to it.

It claims like any client, by long polls, and so takes part in the division of jobs like any client. A lease counts
until it is decided about, moved by an extend, or run out; then there is room for another job. When the connection
ends, all that is still leased goes back at once.

S1 it never holds more leases than `max`, those of a claim under way included;
S2 every lease that a claim brought is delivered, or given back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.core import sse
from gateway.core.claims import Job, claim_body, error_event, job_frame, jobs_of
from gateway.exchange import Frame, Stream
from gateway.io.shard_link import LeasedFiles, OnReply, Reply
from shared.limits import WAIT_MAX_MS, WATCH_HEARTBEAT_MS, WATCH_RETRY_MS
from shared.wire import Answer, Op, Options

PASSING_STATUSES = (429, 503)  # what they say passes by itself


class Shards(Protocol):
    """The shards, as far as jobs are concerned."""

    def request(
        self, op: int, topic: str, body: bytes, options: Options | None, on_reply: OnReply
    ) -> int: ...
    def cancel(self, topic: str, id_: int) -> None: ...


class Hub(Protocol):
    """Who keeps the streams, and their time; see gateway/work_streams.py."""

    @property
    def shards(self) -> Shards: ...
    def clock_ms(self) -> float: ...
    def wall_ms(self) -> int: ...
    def until_ms(self, deadline_ms: float) -> float: ...
    def at(self, due_ms: float, callback: Callable[[], None]) -> None: ...
    def release(self, topic: str, node: str, leases: Sequence[tuple[int, str]], until_ms: float) -> None: ...
    def ended(self, work: WorkStream) -> None: ...


@dataclass(slots=True)
class Lease:
    lease_id: str
    until_ms: float  # by the hub's clock


class WorkStream:
    def __init__(
        self, hub: Hub, stream: Stream, *, topic: str, node: str, most: int, lease_ms: int | None
    ) -> None:
        self.topic = topic
        self.node = node
        self._hub = hub
        self._stream = stream
        self._most = most
        self._lease_ms = lease_ms
        self._held: dict[int, Lease] = {}
        self._unsent: list[Job] = []  # claimed, and not taken by the connection yet
        self._notes = sse.RETRY  # other text that waits to be sent
        self._claiming = False
        self._claim_id = 0
        self._failing = False  # the shard does not answer, and the client was told so
        self._retry_at_ms = 0.0
        self._spoke_ms = hub.clock_ms()
        self._wake_at_ms: float | None = None  # for when the next timer is set
        self._over = False

    def __repr__(self) -> str:
        return f"WorkStream({self.topic}, {self.node}, {len(self._held)} of {self._most} leased)"

    def start(self) -> None:
        self._stream.on_writable(self._go_on)
        self._stream.on_gone(self._finish)
        self._go_on()
        self._set_timer()

    def end(self, last: bytes) -> None:
        """Say this, and no more."""
        if not self._over:
            notes = self._notes
            self._finish()
            self._stream.end(Frame(notes + last))

    def _finish(self) -> None:
        if self._over:
            return
        self._over = True
        if self._claiming:
            # If its answer is on the way already, the jobs in it are given back when it comes.
            self._hub.shards.cancel(self.topic, self._claim_id)
        self._release_all()
        self._hub.ended(self)

    def _release_all(self) -> None:
        held, self._held = self._held, {}
        if held:
            leases = [(seq, lease.lease_id) for seq, lease in held.items()]
            self._hub.release(self.topic, self.node, leases, max(lease.until_ms for lease in held.values()))

    # --- claiming ---------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Send what waits; if all of it left, see whether there is room for more jobs."""
        if not self._over and self._send():
            self._claim()

    def _claim(self) -> None:
        room = self._most - len(self._held)
        if self._over or self._claiming or room <= 0 or self._hub.clock_ms() < self._retry_at_ms:
            return
        self._claiming = True
        body = claim_body(self.node, room, self._lease_ms, WAIT_MAX_MS)
        self._claim_id = self._hub.shards.request(Op.CLAIM, self.topic, body, None, self._claimed)

    def _claimed(self, reply: Reply, leased: LeasedFiles | None) -> None:
        self._claiming = False
        if isinstance(reply, Answer) and reply.status == 200:
            jobs = jobs_of(reply.body)
            for job in jobs:
                self._held[job.seq] = Lease(job.lease_id, self._hub.until_ms(job.deadline))
            if self._over:
                self._release_all()
                return
            self._failing = False
            self._unsent += jobs
            self._go_on()
        elif not self._over:
            self._failed(reply)
        self._set_timer()

    def _failed(self, reply: Reply) -> None:
        status = status_of(reply)
        if status not in PASSING_STATUSES:
            self.end(error_event(status, reply).sse)
            return
        self._retry_at_ms = self._hub.clock_ms() + WATCH_RETRY_MS
        if not self._failing:
            self._failing = True
            self._notes += error_event(status, reply).sse
            self._send()

    # --- leases end -------------------------------------------------------------------------------------

    def decided(self, leases: Iterable[tuple[int, str | None]]) -> None:
        """An ack or nack was carried out that names these leases (None: whichever the node has).

        Whether it acked or skipped one of ours makes no difference: it skips only what is over.
        """
        for seq, lease_id in leases:
            held = self._held.get(seq)
            if held is not None and lease_id in (None, held.lease_id):
                del self._held[seq]
        self._go_on()

    def extended(self, leases: Iterable[tuple[int, str | None]], deadlines: Mapping[int, int]) -> None:
        """An extend was carried out; it skips only what is over, like an ack."""
        for seq, lease_id in leases:
            held = self._held.get(seq)
            if held is None or lease_id not in (None, held.lease_id):
                continue
            if seq in deadlines:
                held.until_ms = self._hub.until_ms(deadlines[seq])
            else:
                del self._held[seq]
        self._go_on()
        self._set_timer()

    # --- sending ----------------------------------------------------------------------------------------

    def _send(self) -> bool:
        """False if something is left that the connection did not take."""
        # A lease may have run out while its job waited for the connection: then it is somebody else's.
        jobs = [job for job in self._unsent if self._holds(job)]
        text = self._notes + b"".join(map(job_frame, jobs))
        if text and not self._stream.push(Frame(text)):
            return False
        if text:
            self._spoke_ms = self._hub.clock_ms()
        self._notes = b""
        self._unsent.clear()
        return True

    def _holds(self, job: Job) -> bool:
        held = self._held.get(job.seq)
        return held is not None and held.lease_id == job.lease_id

    # --- time -------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        if self._over:
            return
        times = [lease.until_ms for lease in self._held.values()]
        times.append(self._spoke_ms + WATCH_HEARTBEAT_MS)
        if self._failing and not self._claiming:
            times.append(self._retry_at_ms)
        due_ms = min(times)
        # Timers cannot be taken back, so one is added only if none that is set is soon enough.
        if self._wake_at_ms is None or due_ms < self._wake_at_ms:
            self._wake_at_ms = due_ms
            self._hub.at(due_ms, self._wake)

    def _wake(self) -> None:
        now_ms = self._hub.clock_ms()
        if self._wake_at_ms is not None and self._wake_at_ms <= now_ms:
            self._wake_at_ms = None
        if self._over:
            return
        for seq in [seq for seq, lease in self._held.items() if lease.until_ms <= now_ms]:
            del self._held[seq]
        if now_ms - self._spoke_ms >= WATCH_HEARTBEAT_MS and not self._notes and not self._unsent:
            self._notes = sse.heartbeat(self._hub.wall_ms())
        self._go_on()
        self._set_timer()


def status_of(reply: Reply) -> int:
    return reply.status if isinstance(reply, Answer) else reply.status_hint
