"""`topicsd serve`: run the server in the foreground."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
from typing import TYPE_CHECKING

import click

from shared.errors import BadSetting
from shared.io.late_modules import load_openssl_late
from shared.io.logs import set_up_logging
from shared.settings import SETTINGS, Settings, is_loopback
from topicsd.commands.settings_options import refuse, settings_options, settings_or_exit
from topicsd.exits import Exit, StartRefused
from topicsd.spawn import GATEWAY_MODULE, WORKER_MODULE, Forerunners, child_environment

if TYPE_CHECKING:
    from topicsd.supervisor import ChildPlan

log = logging.getLogger(__name__)


@click.command()
@settings_options
@click.pass_context
def serve(context: click.Context, /, config_file: str | None, **flags: str | None) -> None:
    """Run the server until SIGTERM or SIGINT."""
    context.exit(run_server(settings_or_exit(config_file, flags)))


def run_server(settings: Settings, plan: ChildPlan | None = None) -> int:
    """The exit code. `plan` is for tests."""
    set_up_logging(level=settings.log_level, style=settings.log_format, process="supervisor")
    log.info("server.starting", extra=settings.effective())
    _warn_if_open(settings)
    _raise_file_limit()
    env = dict(os.environ)
    for row in SETTINGS:
        if row.secret:
            # They are digests in `settings` by now, and nothing this process starts may inherit them.
            os.environ.pop(row.env, None)
    with Forerunners() as forerunners:
        _send_ahead(forerunners, settings, env, plan)
        try:
            return _supervise(settings, env, plan, forerunners)
        except BadSetting as err:
            refuse(err.message, Exit.BAD_SETTINGS)
        except StartRefused as err:
            refuse(str(err), err.exit_code)


def _send_ahead(
    forerunners: Forerunners, settings: Settings, env: dict[str, str], plan: ChildPlan | None
) -> None:
    worker = WORKER_MODULE if plan is None else plan.worker_module
    gateway = GATEWAY_MODULE if plan is None else plan.gateway_module
    # Those that cannot be started now are started by the supervisor, which knows what to do if that fails too.
    with contextlib.suppress(OSError):
        forerunners.start([gateway, *[worker] * settings.wal_shards], env=child_environment(env))


def _supervise(
    settings: Settings, env: dict[str, str], plan: ChildPlan | None, forerunners: Forerunners
) -> int:
    load_openssl_late()
    # Here, because the children load their code at the same time: trio is half of what this process loads.
    import trio

    from topicsd.supervisor import Supervisor

    supervisor = Supervisor(settings, env=env, announce=_announce, plan=plan, forerunners=forerunners)
    return trio.run(supervisor.run)


def _announce(url: str) -> None:
    # Whoever started us may have closed the pipe; that is no reason not to serve.
    with contextlib.suppress(OSError):
        click.echo(f"topicsd is listening on {url}")


def _warn_if_open(settings: Settings) -> None:
    if len(settings.key_ring()) > 0:
        return
    reach = "this machine" if is_loopback(settings.host) else "the network"
    log.warning(
        "auth.off",
        extra={"reason": f"no API keys are set: everyone on {reach} may read, write and delete everything"},
    )


def _raise_file_limit() -> None:
    # Every client is a descriptor. The soft limit is low for the sake of programs that use select().
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
