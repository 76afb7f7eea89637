"""The worker's loop: take what all links brought, apply it, write once, answer once.

The links' sockets live in an epoll set of their own, which is served whenever trio is idle
(shared/io/idle_turns.py): under load a turn serves all of them for the price of one wake-up, and batches form by
themselves; a lone request goes straight through. A task does the rest: requests that had to wait, routers, deadlines.
Syncs and maintenance jobs run in threads meanwhile. The end of a sync is an event of the set, and whoever waits for
the next one has it started by the turn that finds nothing in its way; a task only sees to what can wait.
"""

from __future__ import annotations

import math
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import trio
import trio.lowlevel

from shard_worker.disk.staged_jobs import RefuseJob
from shard_worker.inspection import answer, view_of_shard
from shard_worker.metrics import worker_metrics
from shard_worker.pressure import WIDEN, LoopLag, Signals
from shard_worker.request import Request
from shard_worker.serve.archive_loop import hand_over
from shard_worker.serve.backup_links import BACKUP_OPS, BackupLinks
from shard_worker.serve.forward_times import ForwardTimes
from shard_worker.serve.link import Link, LinkGone
from shard_worker.serve.peers import PeerLinks
from shard_worker.serve.pushes import Pushes
from shard_worker.serve.served_files import ServedFiles
from shard_worker.serve.sync_thread import SyncThread
from shard_worker.shard import Shard
from shared.cbor_body import dump_map
from shared.errors import DataDamage, Internal, ShuttingDown, TopicsError
from shared.io.idle_turns import serve_epoll
from shared.io.late_close import call_aside
from shared.limits import (
    COMMIT_WINDOW_MAX_BYTES,
    FORWARD_SLICE_S,
    PRESSURE_SAMPLE_MS,
    WORKER_MAX_LINKS,
)
from shared.version import VERSION
from shared.wire import Op, encode_entries, encode_entry
from shared.wire import Request as WireRequest

_TICK_S: Final = 1.0
_INLINE: Final = {"inline": True}
_NEVER: Final = math.inf
_IN: Final = select.EPOLLIN
_OUT: Final = select.EPOLLOUT
_IN_OR_BROKEN: Final = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR
_clock: Final = time.perf_counter
_SUBSCRIPTIONS: Final = frozenset({Op.SUBSCRIBE, Op.UNSUBSCRIBE, Op.SUBSCRIBE_PREFIX, Op.UNSUBSCRIBE_PREFIX})


class TurnLoop:
    def __init__(
        self,
        shard: Shard,
        listener: socket.socket,
        *,
        shards: int,
        socket_dir: str,
        log_failure: Callable[[str], None] = lambda text: None,
        log_read_only: Callable[[str | None], None] = lambda reason: None,
    ) -> None:
        """`log_read_only` is told why the shard refuses writes when it starts to, and None when it ends."""
        self._shard = shard
        self._engine = shard.engine
        self._listener = listener
        self._shards = shards
        self._log_failure = log_failure
        self._log_read_only = log_read_only
        self._read_only = False
        self._epoll = select.epoll()
        self._epoll.register(listener.fileno(), select.EPOLLIN)
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # wakes the loop from other tasks
        self._epoll.register(self._bell, select.EPOLLIN)
        self._syncs = SyncThread()
        self._epoll.register(self._syncs.fd, select.EPOLLIN)
        self._links: dict[int, Link] = {}
        self._masks: dict[int, int] = {}
        self._files = ServedFiles(shard.engine.wal)
        self._pressure = shard.pressure
        self._lag = LoopLag(time.perf_counter())
        self._pushes = Pushes(shard.engine, shard.pressure)
        shard.engine.on_changed.append(self._pushes.note)
        shard.engine.waited_ms = self._pushes.waited_ms
        self._peers = PeerLinks(
            own=shard.engine.shard,
            shards=shards,
            socket_dir=socket_dir,
            version=VERSION,
            after_answers=self._end_turn,
            on_lost=shard.engine.forwarder.link_lost,
        )
        shard.engine.moves.peers = self._peers
        self._backups = BackupLinks(shard, on_free=self._go_on)
        self._unsynced = trio.Event()  # something is: sooner or later it is synced
        self._sync_wanted = trio.Event()  # somebody waits for that, and there is pressure or a backup
        self._work_wanted = trio.Event()
        self._turn_over = trio.Event()
        self._forwards = ForwardTimes(time.perf_counter)
        self._sleep: trio.CancelScope | None = None  # of the task that does what does not arrive
        self._sleeps_until_ms = _NEVER
        self._failure: BaseException | None = None
        self._served = 0  # requests and answers of this turn
        self._draining = False
        self._stopped = False

    # --- tasks ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until `stop`. A disk that fails a sync raises DiskFault out of here."""
        try:
            await self._run_tasks()
        finally:
            self._stopped = True  # no more syncs
            # Not to be cancelled half-way: we could not say whether the group is durable.
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._syncs.join)
            if self._failure is None and self._finish_sync():
                self._end_turn()

    async def _run_tasks(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_epoll, self._epoll, self._serve)
            nursery.start_soon(self._sync_loop)
            nursery.start_soon(self._maintenance_loop)
            nursery.start_soon(self._ticks)
            nursery.start_soon(self._peers.run)
            nursery.start_soon(self._backups.run)
            if self._shard.archive is not None:
                nursery.start_soon(hand_over, self._shard.archive, self._retire_files, self._engine.shard)
            await self._turns()
            nursery.cancel_scope.cancel()

    def _serve(self, events: list[tuple[int, int]], rested: bool) -> int:
        """Something has arrived."""
        if self._failure is not None:
            return 0
        if rested:
            self._lag.idle(_clock())
        try:
            self._forwards.requests_came()
            self._turn(events, [])
            if self._lag.turned(_clock()):
                self._observe()
        except BaseException as err:
            self._failure = err  # raised by the task below
            if self._sleep is not None:
                self._sleep.cancel()
        return self._served

    async def _turns(self) -> None:
        """Everything but arrivals."""
        while not self._stopped:
            if self._failure is not None:
                raise self._failure
            deferred = [link for link in self._links.values() if self._may_go_on(link)]
            forwards = self._may_forward()
            if not deferred and not forwards:
                await self._wait()
                continue
            if deferred:
                self._turn([], deferred)
            if forwards:
                self._forward()
            if self._lag.turned(time.perf_counter()):
                self._observe()
            await trio.lowlevel.checkpoint()

    async def _wait(self) -> None:
        # A shard that is held does nothing on its own; whoever lets it go rings the bell.
        held = self._backups.held
        deadline_ms = None if held else self._engine.next_deadline_ms()
        now_ms = self._engine.now_ms()
        self._sleeps_until_ms = _NEVER if held else self._due_ms()
        timeout_s = max(0.0, self._sleeps_until_ms - now_ms) / 1000
        if self._wants_to_forward():
            timeout_s = min(timeout_s, self._forwards.rest_s())
        pressed = self._pressure.level or self._pushes.next_round_ms() is not None
        with trio.move_on_after(timeout_s) as self._sleep:
            await trio.sleep_forever()
        self._sleep = None
        self._lag.idle(time.perf_counter())
        if self._engine.now_ms() >= self._sleeps_until_ms:
            if deadline_ms is not None and self._engine.now_ms() >= deadline_ms:
                self._engine.tick()
            if pressed:
                self._observe()
            self._end_turn()

    def _due_ms(self) -> float:
        """When there is something to do though nothing arrives."""
        deadline_ms = self._engine.next_deadline_ms()
        round_ms = self._pushes.next_round_ms()
        due_ms = _NEVER if deadline_ms is None else float(deadline_ms)
        if round_ms is not None and round_ms < due_ms:
            due_ms = float(round_ms)
        if self._pressure.level:
            return min(due_ms, float(self._engine.now_ms() + PRESSURE_SAMPLE_MS))
        return due_ms

    def _may_go_on(self, link: Link) -> bool:
        """Has it requests that waited, and room for their answers?"""
        return bool(link.deferred) and not link.full and self._may_serve(link)

    def _observe(self) -> None:
        """Work out how pressed we are; whoever is concerned asks for the level."""
        commits = self._engine.commits
        waiting, unsent_bytes = commits.waiting, 0
        for link in self._links.values():
            waiting += len(link.deferred)
            unsent_bytes = max(unsent_bytes, link.unsent_bytes)
        unsynced = commits.waiting_bytes / self._engine.settings.max_unsynced_bytes
        signals = Signals(self._lag.ms, waiting, unsent_bytes, unsynced)
        self._pressure.observe(signals, self._engine.now_ms())

    # --- routers ----------------------------------------------------------------------------------------

    def _wants_to_forward(self) -> bool:
        # Not while a backup holds the shard still: nothing may be written then.
        return self._engine.forwarder.runnable and not (self._draining or self._backups.held)

    def _may_forward(self) -> bool:
        return self._wants_to_forward() and not self._forwards.rest_s()

    def _forward(self) -> None:
        """Some steps of routers. Requests come first, but never take all the time."""
        with self._forwards:
            self._engine.forwarder.run(FORWARD_SLICE_S)
        self._end_turn()

    async def _ticks(self) -> None:
        self._note_read_only()
        while True:
            await trio.sleep(_TICK_S)
            await self._backups.free()
            self._engine.tick()
            self._shard.maintenance.tick(self._engine.now_ms())
            self._observe()
            self._note_read_only()
            self._end_turn()

    def _note_read_only(self) -> None:
        reason = self._engine.commits.read_only
        if (reason is not None) != self._read_only:
            self._read_only = reason is not None
            self._log_read_only(None if reason is None else reason.message)

    def _sync_for_those_who_wait(self) -> None:
        """Before a turn answers, as the disk is what takes longest: a sync, if nothing is in its way."""
        commits, pressure = self._engine.commits, self._pressure
        if (
            commits.waiting
            and not (commits.sync_running or self._stopped or self._backups.held)
            and pressure.level < WIDEN
            and not pressure.commit_window_ms
        ):
            self._begin_sync()

    def _note_unsynced(self) -> None:
        """After a turn has answered: what it has left to be synced is the task's."""
        commits = self._engine.commits
        if commits.sync_running or self._stopped or not commits.needs_sync:
            return
        if not self._unsynced.is_set():
            self._unsynced.set()
        if commits.waiting:
            self._sync_wanted.set()

    async def _sync_loop(self) -> None:
        """Syncs that are in no hurry: of what nobody waits for, under pressure, after a hold."""
        engine = self._engine
        while True:
            await self._unsynced.wait()
            if not engine.sync_due():
                # Nobody waits for one, or one is under way: more may gather until the next is due, unless somebody
                # starts to wait for it. Also if there is nothing to sync just now: to wake up for each write that
                # follows a sync closely would cost more than the write.
                self._sync_wanted = trio.Event()
                with trio.move_on_after(engine.next_sync_in_ms() / 1000):
                    await self._sync_wanted.wait()
                if not engine.commits.needs_sync and not engine.commits.sync_running:
                    self._unsynced = trio.Event()
                continue
            if not await self._gather_company():
                continue
            await self._backups.free()
            if engine.sync_due():
                self._begin_sync()

    async def _gather_company(self) -> bool:
        """Under pressure a sync waits a little, so that more writes share it. False: there is no need for one now."""
        window_ms = self._pressure.next_commit_window_ms()
        commits = self._engine.commits
        if window_ms and commits.waiting_bytes <= COMMIT_WINDOW_MAX_BYTES and not self._draining:
            self._pressure.counters.commits_widened += 1
            await trio.sleep(window_ms / 1000)
            return self._engine.sync_due()
        return True

    def _begin_sync(self) -> None:
        engine = self._engine
        engine.commit()
        self._pushes.begin_sync()
        self._syncs.start(engine.begin_sync())

    def _finish_sync(self) -> bool:
        """Has a sync ended? Then what waited for it is visible, and answered. Raises DiskFault if it failed."""
        job = self._syncs.take()
        if job is None:
            return False
        self._engine.finish_sync(job)
        self._pushes.finish_sync()
        self._backups.after_sync()
        return True

    async def _maintenance_loop(self) -> None:
        maintenance = self._shard.maintenance
        while True:
            await self._backups.free()
            try:
                job = maintenance.next_job()
            except OSError as err:
                self._log_failure(f"maintenance: {err}")
                job = None
            if job is None:
                if maintenance.stepping:
                    await trio.lowlevel.checkpoint()
                else:
                    with trio.move_on_after(_TICK_S):
                        await self._work_wanted.wait()
                    self._work_wanted = trio.Event()
                continue
            try:
                await trio.to_thread.run_sync(job.run)
            except (OSError, DataDamage) as err:
                self._log_failure(f"{type(job).__name__}: {err}")
                maintenance.failed(job, err)
                await trio.sleep(_TICK_S)
            else:
                await self._backups.free()
                maintenance.finish(job)
                if isinstance(job, RefuseJob):
                    self._log_failure(f"compaction {job.job} was refused: {job.reason}")
            self._retire_files()
            self._end_turn()

    # --- one turn ---------------------------------------------------------------------------------------

    def _turn(self, events: list[tuple[int, int]], deferred: list[Link]) -> None:
        self._engine.begin_turn()
        self._served = 0
        for link in deferred:
            self._serve_deferred(link)
        for fd, mask in events:
            found = self._links.get(fd)
            if found is None:
                if fd == self._listener.fileno():
                    self._accept()
                elif fd == self._syncs.fd:
                    self._finish_sync()
                elif fd == self._bell:
                    os.eventfd_read(self._bell)
                continue
            try:
                if mask & _OUT:
                    found.send_more()
                if mask & _IN_OR_BROKEN:
                    self._take(found)
            except LinkGone:
                self._drop(fd)
        self._end_turn()

    def _take(self, link: Link) -> None:
        topics, total_bytes = self._totals()
        requests = link.receive(topics, total_bytes)
        self._served += len(requests)
        if link.deferred or not self._may_serve(link):
            link.deferred.extend(requests)
            self._serve_deferred(link)
            return
        for place, request in enumerate(requests):
            if link.full:
                link.deferred.extend(requests[place:])
                return
            self._submit(link, request)

    def _serve_deferred(self, link: Link) -> None:
        """Requests in order, as far as their answers fit into a turn."""
        while link.deferred and not link.full and self._may_serve(link):
            self._submit(link, link.deferred.popleft())

    def _may_serve(self, link: Link) -> bool:
        """While a backup holds the shard, nobody else gets anything done."""
        return not self._backups.held or self._backups.is_holder(link)

    def _go_on(self) -> None:
        """A hold has ended, perhaps while the loop waits for sockets: what came meanwhile is due."""
        os.eventfd_write(self._bell, 1)

    def _submit(self, link: Link, message: WireRequest) -> None:
        id_, op, options = message.id, message.op, message.options
        if op == Op.READ and not link.takes_files:
            options = {**options, **_INLINE} if options else _INLINE
        request = Request(link, id_, op, message.topic, message.body, options)
        if op == Op.APPEND and not self._draining:
            self._engine.submit(request)
        elif op == Op.METRICS:
            link.answer(id_, 200, worker_metrics(self._shard))
        elif op == Op.INSPECT:
            self._inspect(request)
        elif op in _SUBSCRIPTIONS:
            self._subscription(link, message)
        elif self._draining and op not in (Op.PING, Op.CANCEL):
            request.fail(ShuttingDown())
        elif op in BACKUP_OPS:
            self._backups.submit(link, message)
        else:
            self._engine.submit(request)

    def _inspect(self, request: Request) -> None:
        options = request.options or {}
        try:
            found = answer(view_of_shard(self._shard), str(options.get("question")), options)
        except TopicsError as err:
            request.fail(err)
        except Exception as err:
            # Somebody looks because something is wrong: whatever they meet must not cost the shard.
            self._log_failure(f"inspection {options.get('question')}: {err!r}")
            request.fail(Internal(f"inspection: {err!r}"))
        else:
            request.sink.answer(request.id, 200, dump_map(found))

    def _subscription(self, link: Link, message: WireRequest) -> None:
        pushes, name, body, strong = self._pushes, message.topic, b"", False
        match message.op:
            case Op.SUBSCRIBE:
                strong = bool(message.options and message.options.get("strong") is True)
                body = encode_entry(pushes.subscribe(link, name, strong=strong))
            case Op.UNSUBSCRIBE:
                pushes.unsubscribe(link, name)
            case Op.SUBSCRIBE_PREFIX:
                body = encode_entries(pushes.subscribe_prefix(link, name))
            case Op.UNSUBSCRIBE_PREFIX:
                pushes.unsubscribe_prefix(link, name)
        link.answer(message.id, 200, body)
        if strong:
            pushes.tell_synced(link, name)

    def _end_turn(self) -> None:
        engine = self._engine
        if not self._backups.held:
            engine.commit()
            self._pushes.serve()
        self._sync_for_those_who_wait()
        engine.end_turn()
        for file in self._files.take_retired():
            for link in self._links.values():
                link.retire(file)
        topics, total_bytes = self._totals()
        for fd, link in list(self._links.items()):
            try:
                self._served += link.flush(topics, total_bytes)
            except LinkGone:
                self._drop(fd)
                continue
            self._update_mask(fd, link)
        # Everything else after the answers: on an idle machine each step finds its code and data in no cache.
        self._note_unsynced()
        if self._shard.maintenance.due:
            self._work_wanted.set()
        if self._sleep is not None and self._has_more_to_do():
            self._sleep.cancel()
        if self._draining:
            self._turn_over.set()

    def _has_more_to_do(self) -> bool:
        """Has this turn left something to the task that sleeps?"""
        if self._stopped or self._wants_to_forward():
            return True
        for link in self._links.values():
            if self._may_go_on(link):
                return True
        return not self._backups.held and self._due_ms() < self._sleeps_until_ms

    def _totals(self) -> tuple[int, int]:
        return len(self._engine.state.catalog), self._engine.state.live_bytes

    # --- links ------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return  # nobody there, or out of descriptors: whoever waits is served when there is room
            sock.setblocking(False)
            if peer_uid(sock) != os.getuid() or len(self._links) >= WORKER_MAX_LINKS:
                sock.close()
                continue
            fd = sock.fileno()
            self._links[fd] = Link(sock, self._files, shard=self._engine.shard, shards=self._shards)
            self._masks[fd] = _IN
            self._epoll.register(fd, _IN)

    def _update_mask(self, fd: int, link: Link) -> None:
        mask = (0 if link.congested else _IN) | (_OUT if link.blocked else 0)
        if mask != self._masks[fd]:
            self._masks[fd] = mask
            self._epoll.modify(fd, mask)

    def _drop(self, fd: int) -> None:
        link = self._links.pop(fd)
        del self._masks[fd]
        self._epoll.unregister(fd)
        self._engine.forget_sink(link)
        self._pushes.forget(link)
        self._backups.forget(link)
        link.close()

    def _retire_files(self) -> None:
        retired = self._shard.maintenance.counters.retired_files
        closings: list[Callable[[], None]] = []
        for file in retired:
            number = int(file.path.rpartition("/")[2].partition(".")[0])
            for link in self._links.values():
                link.retire(number)
            fd = self._files.forget(number)
            if fd is not None:
                closings.append(partial(os.close, fd))
            closings.append(file.close)
        retired.clear()
        if closings:
            call_aside(closings)

    # --- the end ----------------------------------------------------------------------------------------

    async def drain(self, timeout_s: float) -> None:
        """Take no new requests, answer those in flight, then stop. Waiting reads are answered as they stand."""
        self._draining = True
        self._epoll.unregister(self._listener.fileno())
        for link in self._links.values():
            link.drain()
        self._engine.expire_all_polls()
        self._end_turn()
        with trio.move_on_after(timeout_s):
            while self._busy():
                self._turn_over = trio.Event()
                await self._turn_over.wait()
        self.stop()

    def _busy(self) -> bool:
        commits = self._engine.commits
        unanswered = any(link.in_flight or link.blocked for link in self._links.values())
        return unanswered or commits.sync_running or not commits.idle

    def stop(self) -> None:
        self._stopped = True
        # The loop may be waiting for a socket: a closed listener in the set would not wake it, this does.
        os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        for fd in list(self._links):
            self._drop(fd)
        self._files.close()
        self._epoll.close()
        self._syncs.close()
        os.close(self._bell)


def peer_uid(sock: socket.socket) -> int:
    """The user on the other end, as the kernel says."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return int(uid)
