"""A stand-in for the gateway: accepts nothing, and journals every event that the supervisor sends it.

Cue files in `DATA_DIR/cues`: `stuck-gateway`, read when told to drain: do not. `deaf-N`, looked at with every
heartbeat: say that shard N does not answer.
"""

from __future__ import annotations

import os
import sys

import trio

from shared.io.child_channel import Boot, ChildChannel
from tests.support.fake_worker import Journal, cue_text


def answering(data_dir: str, shards: int) -> list[int]:
    return [shard for shard in range(shards) if cue_text(data_dir, f"deaf-{shard}") is None]


async def run(channel: ChildChannel, boot: Boot) -> None:
    data_dir = boot.settings.data_dir
    journal = Journal(data_dir, "gateway")
    keys = len(boot.settings.key_ring())
    journal.write("started", keys=keys, secret_in_env="TOPICS_API_KEYS" in os.environ)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.heartbeat, lambda: {"answering": answering(data_dir, boot.shards)})
        channel.report("ready")
        while (event := await channel.receive()) is not None:
            journal.write("event", event=event)
        journal.write("draining")
        for fd in boot.listen_fds:
            os.close(fd)
        if cue_text(data_dir, "stuck-gateway") is not None:
            await trio.sleep_forever()
        nursery.cancel_scope.cancel()
    journal.write("gone")


if __name__ == "__main__":
    trio.run(run, *ChildChannel.open(sys.argv))
