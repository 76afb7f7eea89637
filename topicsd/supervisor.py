"""`topicsd serve`: prepares the data directory and the port, keeps the children alive, drains in order.

The supervisor touches no data and answers no request. It holds what must outlive a child: the lock of the
data directory, the public port, the keys, and what is known about each shard.
"""

from __future__ import annotations

import dataclasses
import logging
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio
from msgspec import structs

from shard_worker.disk.dir_lock import DirectoryLocked, DirLock
from shared.errors import BadSetting, DataDamage, DiskFault
from shared.io.bucket_fs import file_system
from shared.io.child_channel import HEARTBEAT_S, Boot, StatusLine
from shared.io.durable_fs import FileSystem
from shared.io.object_store import open_store as open_archive
from shared.settings import Settings
from topicsd.child_keeper import ChildKeeper, Condition, Phase
from topicsd.child_process import ChildProcess, Silence
from topicsd.core.pulse import PulseLimits
from topicsd.core.restart_policy import RestartTimes
from topicsd.exits import Exit, StartRefused
from topicsd.forerunners import Forerunners
from topicsd.inherited_port import take_inherited_port
from topicsd.key_file import with_key_file
from topicsd.loader_start import MANAGER_ENV, child_environment
from topicsd.public_port import PortFile, open_public_port, port_number, public_url
from topicsd.service_notify import ServiceNotifier
from topicsd.service_report import ServiceReport
from topicsd.socket_dir import make_socket_dir
from topicsd.spawn import GATEWAY_MODULE, WORKER_MODULE, spawn
from topicsd.store_file import Store, open_store, with_id
from topicsd.watchdog import Watchdog

log = logging.getLogger(__name__)

# Of the drain timeout. The gateway closes what is left at its own share; the supervisor waits a little longer
# before it kills. The workers have the rest: a share to end their links, what is left to flush and write
# their snapshots.
_GATEWAY_SHARE: Final = 0.6
_GATEWAY_KILL_SHARE: Final = 0.7
_WORKER_LINKS_SHARE: Final = 0.15
# Even if the gateway took all the time there was: flushing is what keeps the next start short.
_WORKER_DRAIN_MIN_S: Final = 1.0
_KILL_GRACE_S: Final = 2.0
# What the service manager is asked for on top of all that.
_STOP_SLACK_S: Final = 5.0
# For loading and forking the first children. Later than this, something is wrong with the process that does it.
_FORERUNNERS_S: Final = 20.0
# On top of the whole drain timeout; only children of a supervisor that was killed live to see it.
_ORPHAN_GRACE_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildPlan:
    """How children are run. Not for operators; tests put stand-ins and shorter times here."""

    worker_module: str = WORKER_MODULE
    gateway_module: str = GATEWAY_MODULE
    heartbeat_s: float = HEARTBEAT_S
    silence: Silence = field(default_factory=Silence)
    restart: RestartTimes = field(default_factory=RestartTimes)
    pulse: PulseLimits = field(default_factory=PulseLimits)


class MoveStopped(Exception):
    """A signal came while topics were on their way to other shards."""


class Supervisor:
    def __init__(
        self,
        settings: Settings,
        *,
        env: Mapping[str, str],
        announce: Callable[[str], None],
        plan: ChildPlan | None = None,
        forerunners: Forerunners | None = None,
    ) -> None:
        """`settings` with the keys of the key file; `announce` gets the URL once the port is open.

        `forerunners` are children that have been started already.
        """
        self._settings = settings
        self._manager_env = {name: value for name, value in env.items() if name in MANAGER_ENV}
        self._env = child_environment(env)
        self._forerunners = forerunners or Forerunners()
        self._announce = announce
        self._plan = plan or ChildPlan()
        self._fs: FileSystem = file_system(settings.cold_dir)
        self._socket_dir = ""
        self._store_id = ""
        self._listeners: list[socket.socket] = []
        self._workers: list[ChildKeeper] = []
        self._gateway = self._keeper("gateway", self._start_gateway, self._on_gateway, self._on_gateway_word)
        notifier = ServiceNotifier.from_env(env)
        self._report = ServiceReport(notifier)
        self._watchdog = Watchdog(notifier, self._plan.pulse)
        self._started_at = 0.0
        self._was_ready = False

    async def run(self) -> Exit:
        """Serve until a signal, then drain. Raises StartRefused."""
        self._started_at = trio.current_time()
        with (
            trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals,
            ExitStack() as held,
        ):
            try:
                await self._prepare_data_dir(held, signals)
            except MoveStopped:
                log.info("store.move_stopped", extra={"next": "the next start goes on with it"})
                return Exit.CLEAN
            await self._open_port(held)
            await self._await_forerunners()
            async with trio.open_nursery() as nursery:
                for keeper in (*self._workers, self._gateway):
                    nursery.start_soon(keeper.run)
                nursery.start_soon(self._watchdog.run, self._gateway, self._workers)
                await self._until_told_to_stop(signals)
                clean = await self._drain_or_hurry(signals)
                # Only a process that not even SIGKILL could end is still there.
                nursery.cancel_scope.cancel()
        log.info("server.stopped", extra={"clean": clean})
        return Exit.CLEAN if clean else Exit.UNCLEAN_STOP

    # --- start --------------------------------------------------------------------------------

    async def _prepare_data_dir(self, held: ExitStack, signals: AsyncIterator[int]) -> None:
        data_dir, shards = self._settings.data_dir, self._settings.wal_shards
        try:
            self._fs.make_dir(data_dir)
            held.enter_context(DirLock(data_dir))
            store = open_store(self._fs, data_dir, shards=shards)
            store = await self._with_topics_in_place(store, signals)
            self._store_id = with_id(self._fs, data_dir, store).id
            if self._settings.wal_archive is not None:
                # Not whether it can be reached, which may change, but whether it makes sense at all.
                open_archive(self._fs, self._settings.wal_archive, setting="wal_archive")
            self._socket_dir = make_socket_dir(data_dir)
        except BadSetting as err:
            raise StartRefused(Exit.BAD_SETTINGS, err.message) from err
        except DirectoryLocked as err:
            raise StartRefused(Exit.LOCKED, str(err)) from err
        except (DataDamage, DiskFault) as err:
            raise StartRefused(Exit.UNUSABLE_STORE, f"topics cannot be moved to other shards: {err}") from err
        except OSError as err:
            message = f"data_dir: {err.filename or data_dir} cannot be used: {err.strerror}"
            raise StartRefused(Exit.BAD_SETTINGS, message) from err
        self._workers = [
            self._keeper(f"shard-{shard}", partial(self._start_worker, shard), partial(self._on_shard, shard))
            for shard in range(store.shards)
        ]

    async def _with_topics_in_place(self, store: Store, signals: AsyncIterator[int]) -> Store:
        """Moves topics first if the number of shards has changed. In a thread: it may take a while."""
        if store.settled_on(self._settings.wal_shards):
            return store
        # Here, because it brings the whole engine with it: an ordinary start is twice as quick without.
        from topicsd.reshard import ensure_shard_count

        stop = threading.Event()

        def proceed() -> None:
            if stop.is_set():
                raise MoveStopped

        async def stop_on_signal() -> None:
            async for number in signals:
                if number != signal.SIGHUP:
                    log.info("store.move_stopping", extra={"signal": signal.Signals(number).name})
                    stop.set()

        move = partial(
            ensure_shard_count, self._fs, self._settings, store, self._report_move, proceed=proceed
        )
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_on_signal)
            try:
                store = await trio.to_thread.run_sync(move)
            except (MoveStopped, StartRefused, DataDamage, DiskFault, OSError) as err:
                failure = err  # raised below: the nursery would wrap it in a group
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return store

    def _report_move(self, moved: int, total: int) -> None:
        """Called in the thread that moves topics."""
        self._report.moving(moved, total)
        log.info(
            "store.moving_topics",
            extra={"shards": self._settings.wal_shards, "moved": moved, "of": total},
        )

    async def _open_port(self, held: ExitStack) -> None:
        port_file = PortFile(self._fs, self._settings.port_file)
        port_file.clear()
        self._listeners = take_inherited_port(self._manager_env, self._settings)
        inherited = bool(self._listeners)
        if not inherited:
            self._listeners = await open_public_port(self._settings)
        held.callback(self._close_listeners)
        port_file.write(port_number(self._listeners))
        host = self._listeners[0].getsockname()[0] if inherited else self._settings.host
        url = public_url(host, self._listeners)
        log.info("server.listening", extra={"url": url, "inherited": inherited})
        self._announce(url)

    async def _await_forerunners(self) -> None:
        with trio.move_on_after(_FORERUNNERS_S):
            while self._forerunners.link is not None:
                await trio.lowlevel.wait_readable(self._forerunners.link)
                self._forerunners.hear()
        self._forerunners.give_up()

    def _close_listeners(self) -> None:
        while self._listeners:
            self._listeners.pop().close()

    # --- children -----------------------------------------------------------------------------

    def _keeper(
        self,
        name: str,
        start: Callable[[], ChildProcess],
        on_condition: Callable[[Condition], None],
        on_word: Callable[[StatusLine], None] = lambda status: None,
    ) -> ChildKeeper:
        return ChildKeeper(
            name,
            start,
            silence=self._plan.silence,
            restart=self._plan.restart,
            on_condition=on_condition,
            on_word=on_word,
        )

    def _start_worker(self, shard: int) -> ChildProcess:
        # Only the gateway checks keys.
        settings = dataclasses.replace(self._settings, api_keys=(), file_api_keys=())
        boot = structs.replace(
            self._boot(settings, _WORKER_LINKS_SHARE), shard=shard, store_id=self._store_id
        )
        return self._start(self._plan.worker_module, boot)

    def _start_gateway(self) -> ChildProcess:
        listen_fds = tuple(listener.fileno() for listener in self._listeners)
        boot = structs.replace(self._boot(self._settings, _GATEWAY_SHARE), listen_fds=listen_fds)
        process = self._start(self._plan.gateway_module, boot)
        for shard, worker in enumerate(self._workers):
            process.send(shard_event(shard, worker.condition, worker.restarts))
        return process

    def _start(self, module: str, boot: Boot) -> ChildProcess:
        return ChildProcess(self._forerunners.take(module) or spawn(module, env=self._env), boot)

    def _boot(self, settings: Settings, drain_share: float) -> Boot:
        drain_ms = settings.drain_timeout_ms
        return Boot(
            settings=dataclasses.replace(settings, drain_timeout_ms=int(drain_ms * drain_share)),
            shards=len(self._workers),
            socket_dir=self._socket_dir,
            heartbeat_s=self._plan.heartbeat_s,
            exit_within_s=drain_ms / 1000 + _ORPHAN_GRACE_S,
        )

    def _on_shard(self, shard: int, condition: Condition) -> None:
        self._gateway.send(shard_event(shard, condition, self._workers[shard].restarts))
        self._note_ready()

    def _on_gateway(self, condition: Condition) -> None:
        self._note_ready()

    def _on_gateway_word(self, status: StatusLine) -> None:
        self._watchdog.answered(status.answering)

    def _note_ready(self) -> None:
        keepers = (*self._workers, self._gateway)
        self._report.conditions({keeper.name: keeper.condition for keeper in keepers})
        if self._was_ready or any(keeper.condition.phase is not Phase.READY for keeper in keepers):
            return
        self._was_ready = True
        took_ms = round((trio.current_time() - self._started_at) * 1000)
        log.info("server.ready", extra={"shards": len(self._workers), "took_ms": took_ms})

    # --- signals ------------------------------------------------------------------------------

    async def _until_told_to_stop(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            if number != signal.SIGHUP:
                log.info("server.draining", extra={"signal": signal.Signals(number).name})
                return
            self._report.reloading()
            await self._reload_keys()
            self._report.reloaded()

    async def _reload_keys(self) -> None:
        if self._settings.api_keys_file is None:
            log.warning("keys.not_reloaded", extra={"reason": "no api_keys_file is set"})
            return
        try:
            # In a thread: the file may be on a mount that has stopped answering.
            settings = await trio.to_thread.run_sync(with_key_file, self._settings, abandon_on_cancel=True)
        except BadSetting as err:
            log.error("keys.not_reloaded", extra={"reason": err.message})
            return
        self._settings = settings
        keys = settings.api_keys + settings.file_api_keys
        self._gateway.send({"event": "keys", "keys": keys})
        log.info("keys.reloaded", extra={"keys": len(keys)})

    # --- stop ---------------------------------------------------------------------------------

    async def _drain_or_hurry(self, signals: AsyncIterator[int]) -> bool:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hurry_on_signal, signals)
            clean = await self._drain()
            nursery.cancel_scope.cancel()
        return clean

    async def _hurry_on_signal(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            if number != signal.SIGHUP:
                log.warning("server.killing", extra={"signal": signal.Signals(number).name})
                for keeper in (self._gateway, *self._workers):
                    keeper.kill("a second signal came")

    async def _drain(self) -> bool:
        """The gateway first, so that the workers have answered everything before they are asked to go."""
        timeout_s = self._settings.drain_timeout_ms / 1000
        deadline = trio.current_time() + timeout_s
        self._report.stopping(timeout_s + _WORKER_DRAIN_MIN_S + 2 * _KILL_GRACE_S + _STOP_SLACK_S)
        # Ours too: as long as anyone holds the port, clients could still connect and would wait in vain.
        self._close_listeners()
        results = [await self._gateway.stop(timeout_s * _GATEWAY_KILL_SHARE, kill_grace_s=_KILL_GRACE_S)]
        left_s = max(deadline - trio.current_time(), _WORKER_DRAIN_MIN_S)

        async def stop(worker: ChildKeeper) -> None:
            results.append(await worker.stop(left_s, kill_grace_s=_KILL_GRACE_S))

        async with trio.open_nursery() as nursery:
            for worker in self._workers:
                nursery.start_soon(stop, worker)
        return all(results)


def shard_event(shard: int, condition: Condition, restarts: int = 0) -> dict[str, object]:
    """What the gateway is told. A worker that has not spoken yet has replayed nothing."""
    starting = condition.phase is Phase.STARTING
    state = Phase.REPLAYING if starting else condition.phase
    progress = 0.0 if starting else condition.progress
    event: dict[str, object] = {"event": "shard", "shard": shard, "state": state.value}
    if restarts:
        event["restarts"] = restarts
    optional = {"progress": progress, "reason": condition.reason}
    return event | {name: value for name, value in optional.items() if value is not None}
