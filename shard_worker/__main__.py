"""`python -m shard_worker`: started by the supervisor, never by hand."""

from __future__ import annotations

import sys

from shared.io.compiled import use_compiled
from shared.io.late_modules import lighten_trio


def main() -> int:
    # After OpenSSL has been put off, which trio would bring at once, and compiled modules can be found.
    from shard_worker.worker import run_worker
    from shared.io.child_channel import ChildChannel
    from shared.io.logs import set_up_logging

    channel, boot = ChildChannel.open(sys.argv)
    settings = boot.settings
    set_up_logging(level=settings.log_level, style=settings.log_format, process=f"shard-{boot.shard}")
    return run_worker(channel, boot)


if __name__ == "__main__":
    lighten_trio()
    use_compiled()
    sys.exit(main())
