"""`python -m shard_worker`: started by the supervisor, never by hand."""

from __future__ import annotations

import sys

from shared.io.compiled import use_compiled


def main() -> int:
    use_compiled()  # before anything that may be compiled is imported

    from shard_worker.worker import run_worker
    from shared.io.child_channel import ChildChannel
    from shared.io.logs import set_up_logging

    channel, boot = ChildChannel.open(sys.argv)
    settings = boot.settings
    set_up_logging(level=settings.log_level, style=settings.log_format, process=f"shard-{boot.shard}")
    return run_worker(channel, boot)


if __name__ == "__main__":
    sys.exit(main())
