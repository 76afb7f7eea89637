"""Runs the server with given settings, until it has stopped."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import TYPE_CHECKING

from shared.errors import BadSetting
from shared.io.late_modules import lighten_trio
from shared.io.logs import set_up_logging
from shared.io.start_image import start_image
from shared.settings import Settings, is_loopback
from topicsd.exits import Exit, StartRefused
from topicsd.forerunners import Forerunners
from topicsd.loader_start import SECRET_ENV, Loader, child_environment, raise_file_limit
from topicsd.settings_in_force import refuse
from topicsd.spawn import GATEWAY_MODULE, WORKER_MODULE

if TYPE_CHECKING:
    from topicsd.supervisor import ChildPlan

log = logging.getLogger(__name__)


def run_server(
    settings: Settings, plan: ChildPlan | None = None, *, loading: Forerunners | None = None
) -> int:
    """The exit code. `plan` is for tests; `loading`: whose code is being loaded already."""
    set_up_logging(level=settings.log_level, style=settings.log_format, process="supervisor")
    env = dict(os.environ)
    for name in SECRET_ENV:
        # They are digests in `settings` by now, and nothing this process starts may inherit them.
        os.environ.pop(name, None)
    raise_file_limit()
    with loading or _forerunners(env) as forerunners:
        # Those that cannot be started now are started by the supervisor, which knows what to do if that fails too.
        with contextlib.suppress(OSError):
            _send_ahead(forerunners, settings, plan)
        log.info("server.starting", extra=settings.effective())
        _warn_if_open(settings)
        try:
            return _supervise(settings, env, plan, forerunners)
        except BadSetting as err:
            refuse(err.message, Exit.BAD_SETTINGS)
        except StartRefused as err:
            refuse(str(err), err.exit_code)


def _forerunners(env: dict[str, str]) -> Forerunners:
    try:
        return Forerunners(Loader(env=child_environment(env)))
    except OSError:
        return Forerunners()


def _send_ahead(forerunners: Forerunners, settings: Settings, plan: ChildPlan | None) -> None:
    """Only modules of our own: what stands in for one may want to change something before its code is loaded."""
    worker = WORKER_MODULE if plan is None else plan.worker_module
    gateway = GATEWAY_MODULE if plan is None else plan.gateway_module
    modules = [gateway, *[worker] * settings.wal_shards]
    forerunners.start([module for module in modules if module in (WORKER_MODULE, GATEWAY_MODULE)])


def _supervise(
    settings: Settings, env: dict[str, str], plan: ChildPlan | None, forerunners: Forerunners
) -> int:
    lighten_trio()
    # Here, because the children load their code at the same time: trio is half of what this process loads.
    with start_image("supervisor"):
        import trio

        from topicsd.supervisor import Supervisor

    supervisor = Supervisor(settings, env=env, announce=_announce, plan=plan, forerunners=forerunners)
    return trio.run(supervisor.run)


def _announce(url: str) -> None:
    # Whoever started us may have closed the pipe; that is no reason not to serve.
    with contextlib.suppress(OSError):
        sys.stdout.write(f"topicsd is listening on {url}\n")
        sys.stdout.flush()


def _warn_if_open(settings: Settings) -> None:
    if len(settings.key_ring()) > 0:
        return
    reach = "this machine" if is_loopback(settings.host) else "the network"
    log.warning(
        "auth.off",
        extra={"reason": f"no API keys are set: everyone on {reach} may read, write and delete everything"},
    )
