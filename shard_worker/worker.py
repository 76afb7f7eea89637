"""The life of a worker process: lock, recover, serve, drain, exit."""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from base64 import urlsafe_b64encode
from enum import IntEnum
from functools import partial

import trio

from shard_worker.core.seal_pace import SealPace
from shard_worker.disk.dir_lock import DirectoryLocked, DirLock
from shard_worker.disk.recovery import shard_paths
from shard_worker.serve.turns import TurnLoop
from shard_worker.serve.wall_clock import wall_ms
from shard_worker.shard import Shard
from shared.errors import ColdUnreachable, DataDamage, DiskFault
from shared.io.bucket_fs import file_system
from shared.io.child_channel import Boot, ChildChannel, socket_path
from shared.io.durable_fs import FileSystem
from shared.io.spare_memory import return_spare_memory
from shared.limits import SEAL_GATHER_MAX_BYTES, SEAL_GATHER_MAX_FRAMES, SEAL_REST_S
from shared.settings import Settings

log = logging.getLogger("shard_worker")

_PROGRESS_EVERY_S = 0.25
_BACKLOG = 128


class Exit(IntEnum):
    CLEAN = 0
    LOCKED = 3
    DAMAGED = 4
    DISK_FAULT = 5


def run_worker(channel: ChildChannel, boot: Boot) -> int:
    """Returns the exit code."""
    assert boot.shard is not None, "a worker is told which shard it is"
    settings = boot.settings
    fs = file_system(settings.cold_dir)
    root = shard_paths(settings, boot.shard).root
    try:
        fs.make_dir(root)
        with DirLock(root):
            shard = _recover(channel, boot, fs, boot.shard)
            return trio.run(_serve, channel, boot, shard)
    except DirectoryLocked as err:
        channel.report("failed", reason=str(err), retry=True)
        return Exit.LOCKED
    except ColdUnreachable as err:
        log.error("shard.cold_unreachable", extra={"shard": boot.shard, "reason": str(err)})
        channel.report("failed", reason=str(err), retry=True)
        return Exit.DISK_FAULT
    except DataDamage as err:
        log.error("shard.damaged", extra={"shard": boot.shard, "reason": str(err)})
        channel.report("failed", reason=str(err), retry=False)
        return Exit.DAMAGED
    except DiskFault as err:
        # Not retried here: a second sync could succeed over lost bytes. The next start replays what is there.
        log.error("shard.disk_fault", extra={"shard": boot.shard, "reason": str(err)})
        channel.report("failed", reason=str(err), retry=True)
        return Exit.DISK_FAULT
    except OSError as err:
        # Nothing was lost: recovery changes a file only where it could write what it must first. Tried again.
        reason = start_refused_by_disk(err)
        log.error("shard.start_failed", extra={"shard": boot.shard, "reason": reason})
        channel.report("failed", reason=reason, retry=True)
        return Exit.DISK_FAULT


def start_refused_by_disk(err: OSError) -> str:
    """For the operator, in the log and in /v0/ready."""
    reason = f"{err.filename or 'a file'} cannot be used: {err.strerror}"
    if err.errno in (errno.ENOSPC, errno.EDQUOT):
        reason += "; free some space on that disk, and it starts by itself"
    return reason


def _recover(channel: ChildChannel, boot: Boot, fs: FileSystem, number: int) -> Shard:
    last_report = 0.0
    started = time.perf_counter()

    def progress(done: float) -> None:
        nonlocal last_report
        if channel.hung_up():
            raise SystemExit(
                Exit.CLEAN
            )  # told to stop while replaying: nothing was changed, nothing to flush
        if time.perf_counter() - last_report >= _PROGRESS_EVERY_S:
            last_report = time.perf_counter()
            channel.report("replaying", progress=round(done, 3))

    channel.report("replaying", progress=0.0)
    shard = Shard.open(
        fs,
        boot.settings,
        number,
        wall_ms=wall_ms,
        clock=time.perf_counter,
        progress=progress,
        # Tokens of an earlier life must not fit the leases of this one.
        token_prefix=lambda: f"lease_{urlsafe_b64encode(os.urandom(9)).decode()}_",
        store_id=boot.store_id,
    )
    shard.maintenance.pace = _seal_pace(boot.settings)
    for note in shard.report.notes:
        log.warning("shard.recovery_note", extra={"shard": number, "note": note})
    for damage in shard.report.damage:
        log.error("shard.damage", extra={"shard": number, "reason": str(damage)})
    log.info(
        "shard.recovered",
        extra={
            "shard": number,
            "topics": len(shard.engine.state.catalog),
            "frames": shard.report.frames,
            "bytes": shard.report.bytes,
            "took_ms": round((time.perf_counter() - started) * 1000),
        },
    )
    return shard


def _seal_pace(settings: Settings) -> SealPace:
    """Whoever sets lower bounds than the defaults wants smaller segments, and gets them."""
    return SealPace(
        rest_s=SEAL_REST_S * min(1.0, settings.segment_max_events / Settings().segment_max_events),
        max_bytes=min(settings.segment_max_bytes, SEAL_GATHER_MAX_BYTES),
        max_frames=SEAL_GATHER_MAX_FRAMES,
    )


async def _serve(channel: ChildChannel, boot: Boot, shard: Shard) -> int:
    number = shard.engine.shard
    listener = _listen(socket_path(boot.socket_dir, number))
    loop = TurnLoop(
        shard,
        listener,
        shards=boot.shards,
        socket_dir=boot.socket_dir,
        log_failure=lambda text: log.error("shard.job_failed", extra={"shard": number, "reason": text}),
        log_read_only=partial(_log_read_only, number),
    )
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.heartbeat)
            nursery.start_soon(return_spare_memory)
            nursery.start_soon(_drain_when_told, channel, loop, boot.settings.drain_timeout_ms / 1000)
            channel.report("ready")
            await loop.run()
            nursery.cancel_scope.cancel()
    except* DiskFault as group:
        raise _first(group) from group
    finally:
        listener.close()
        loop.close()
    shard.close()
    log.info("shard.closed", extra={"shard": number})
    return Exit.CLEAN


def _first(group: BaseExceptionGroup[DiskFault]) -> DiskFault:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, DiskFault)
    return found


async def _drain_when_told(channel: ChildChannel, loop: TurnLoop, timeout_s: float) -> None:
    await channel.closed()
    channel.report("draining")
    await loop.drain(timeout_s)


def _log_read_only(shard: int, reason: str | None) -> None:
    if reason is None:
        log.info("shard.writable", extra={"shard": shard})
    else:
        log.error("shard.read_only", extra={"shard": shard, "reason": reason})


def _listen(path: str) -> socket.socket:
    """The worker's socket, in a directory that only our own user can enter."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.setblocking(False)
    if os.path.exists(path):
        os.unlink(path)  # left behind by a worker that was killed; its lock is ours now
    listener.bind(path)
    os.chmod(path, 0o600)
    listener.listen(_BACKLOG)
    return listener
