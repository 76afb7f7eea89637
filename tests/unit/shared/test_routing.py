from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.routing import jump_hash, shard_for, topic_hash

GOLDEN = Path(__file__).parents[2] / "golden" / "routing_v1.json"
NAMES = [f"tenant-{number % 97}:orders.{number}" for number in range(4000)]


def test_golden_vectors_hold() -> None:
    vectors = json.loads(GOLDEN.read_text())["vectors"]
    assert len(vectors) >= 10
    for vector in vectors:
        assert f"{topic_hash(vector['topic']):016x}" == vector["xxh3_64"]
        for count, shard in vector["shards"].items():
            assert shard_for(vector["topic"], int(count)) == shard


@pytest.mark.parametrize(
    ("key", "buckets", "bucket"),
    # Published with other implementations of the paper, so that ours is not only true to itself.
    [(1, 1, 0), (42, 57, 43), (0xDEAD10CC, 1, 0), (0xDEAD10CC, 666, 361), (256, 1024, 520)],
)
def test_jump_hash_agrees_with_other_implementations(key: int, buckets: int, bucket: int) -> None:
    assert jump_hash(key, buckets) == bucket


def as_in_the_paper(key: int, buckets: int) -> int:
    bucket, candidate = 0, 0
    while candidate < buckets:
        bucket = candidate
        key = (key * 2862933555777941757 + 1) % 2**64
        candidate = int((bucket + 1) * (float(1 << 31) / float((key >> 33) + 1)))
    return bucket


@given(st.integers(0, 2**64 - 1), st.integers(1, 70_000))
@example(0, 70_000)
@example(2**64 - 1, 70_000)
@example(2**32 - 1, 70_000)
@example(2**63, 70_000)
def test_arithmetic_in_halves_comes_to_the_same(key: int, buckets: int) -> None:
    assert jump_hash(key, buckets) == as_in_the_paper(key, buckets)


@given(st.text(max_size=30), st.integers(1, 300))
def test_the_shard_is_the_bucket_of_the_hash(topic: str, shards: int) -> None:
    assert shard_for(topic, shards) == as_in_the_paper(topic_hash(topic), shards)


@given(st.integers(0, 2**64 - 1), st.integers(1, 300))
def test_the_bucket_is_in_range_and_growing_moves_only_to_the_new_one(key: int, buckets: int) -> None:
    before, after = jump_hash(key, buckets), jump_hash(key, buckets + 1)
    assert 0 <= before < buckets
    assert after in (before, buckets)


def assert_growth_moves_a_fair_share(names: list[str], count: int) -> None:
    moved = sum(shard_for(name, count) != shard_for(name, count + 1) for name in names)
    fair = len(names) / (count + 1)
    # Five standard deviations of the binomial distribution.
    assert abs(moved - fair) < 5 * (fair * count / (count + 1)) ** 0.5


@pytest.mark.parametrize("count", [1, 2, 4, 7, 8])
def test_growing_by_one_moves_about_one_share(count: int) -> None:
    assert_growth_moves_a_fair_share(NAMES, count)


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", range(1, 256))
def test_growing_by_one_moves_about_one_share_at_every_count(count: int) -> None:
    assert_growth_moves_a_fair_share([f"t{number}" for number in range(20_000)], count)


@pytest.mark.parametrize("count", [2, 3, 8, 16])
def test_shards_are_balanced(count: int) -> None:
    sizes = Counter(shard_for(name, count) for name in NAMES)
    fair = len(NAMES) / count
    assert len(sizes) == count
    assert all(abs(size - fair) < 5 * fair**0.5 for size in sizes.values())
