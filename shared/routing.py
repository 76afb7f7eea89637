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

from typing import TYPE_CHECKING, Final, NewType

import xxhash
from librt.strings import read_i64_be

if TYPE_CHECKING:
    from mypy_extensions import i64  # what an integer is to compiled code; to any other it is one like all

ShardId = NewType("ShardId", int)

_digest: Final = xxhash.xxh3_64_digest

# 2862933555777941757 in two halves: a product of 64 bits does not fit into a signed number of 64.
_MULTIPLIER_HIGH: Final = 0x27BB2EE6
_MULTIPLIER_LOW: Final = 0x87B0B0FD


def topic_hash(topic: str) -> int:
    """XXH3-64, seed 0, of the UTF-8 name."""
    return xxhash.xxh3_64_intdigest(topic.encode("utf-8"))


def jump_hash(key: int, buckets: int) -> int:
    """The bucket of an unsigned 64-bit key, in [0, buckets)."""
    return _jump(key >> 32, key & 0xFFFFFFFF, buckets)


def _jump(high: i64, low: i64, buckets: int) -> int:
    """The bucket of a key in two halves of 32 bits, so that compiled code needs no integer that is an object."""
    assert buckets >= 1
    bucket: i64 = 0
    candidate: i64 = 0
    count: i64 = buckets
    while candidate < count:
        bucket = candidate
        # key = (key * multiplier + 1) modulo 2**64, with nothing on the way beyond 63 bits: `low` goes in two parts,
        # and of the multiplier's lower half, times `high`, only what is left modulo 2**32 counts.
        first: i64 = (low & 0xFFFF) * _MULTIPLIER_LOW + 1
        second: i64 = (low >> 16) * _MULTIPLIER_LOW + (first >> 16)
        high = ((second >> 16) + low * _MULTIPLIER_HIGH + high * (_MULTIPLIER_LOW - (1 << 32))) & 0xFFFFFFFF
        low = (second & 0xFFFF) << 16 | first & 0xFFFF
        # Doubles exactly as in the paper: one IEEE division and one product, the same everywhere.
        candidate = int(float(bucket + 1) * (float(1 << 31) / float((high >> 1) + 1)))
    return bucket


def shard_for(topic: str, shard_count: int) -> ShardId:
    digest = _digest(topic.encode("utf-8"))
    key: i64 = read_i64_be(digest, 0)
    return ShardId(_jump((key >> 32) & 0xFFFFFFFF, key & 0xFFFFFFFF, shard_count))
