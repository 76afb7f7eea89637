"""Topic -> shard, pinned for ever: XXH3-64 of the name, then jump consistent hash.

Files on disk are placed by this function, so a changed result is lost data until the next
re-sharding. The golden vectors in tests/golden/routing_v1.json hold it in place; a new scheme gets a
new name beside this one, never an edit. Built-in `hash()` is salted per process and would move
every topic at every restart.

Jump consistent hash (Lamping and Veach, "A Fast, Minimal Memory, Consistent Hash Algorithm", 2014):
a 64-bit linear congruential generator, seeded with the key, says at which bucket counts the key
would jump to the newest bucket; the last jump below the count is the answer. So growing from N to
N+1 shards moves about 1/(N+1) of the topics, all of them to the new shard, in O(log N) steps.
"""

from __future__ import annotations

from typing import NewType

import xxhash

ShardId = NewType("ShardId", int)

_MASK_64 = (1 << 64) - 1
_LCG_MULTIPLIER = 2862933555777941757


def topic_hash(topic: str) -> int:
    """XXH3-64, seed 0, of the UTF-8 name."""
    return xxhash.xxh3_64_intdigest(topic.encode("utf-8"))


def jump_hash(key: int, buckets: int) -> int:
    """The bucket of an unsigned 64-bit key, in [0, buckets)."""
    assert buckets >= 1
    bucket, candidate = 0, 0
    while candidate < buckets:
        bucket = candidate
        key = (key * _LCG_MULTIPLIER + 1) & _MASK_64
        # Doubles exactly as in the paper: one IEEE division and one product, the same everywhere.
        candidate = int((bucket + 1) * (float(1 << 31) / float((key >> 33) + 1)))
    return bucket


def shard_for(topic: str, shard_count: int) -> ShardId:
    return ShardId(jump_hash(topic_hash(topic), shard_count))
