from __future__ import annotations

import pytest

from shard_worker.disk.byte_cache import ByteCache


class Loads:
    """Loads that count how often they were needed."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def of(self, name: str, cost: int = 10):  # type: ignore[no-untyped-def]
        def load() -> tuple[str, int]:
            self.made.append(name)
            return name.upper(), cost

        return load


def test_a_value_is_loaded_once() -> None:
    cache, loads = ByteCache(100), Loads()
    assert cache.get("a", loads.of("a")) == "A"
    assert cache.get("a", loads.of("a")) == "A"
    assert loads.made == ["a"]
    assert (cache.hits, cache.misses, cache.used_bytes) == (1, 1, 10)


def test_the_least_recently_used_goes_first() -> None:
    cache, loads = ByteCache(30), Loads()
    for name in ("a", "b", "c"):
        cache.get(name, loads.of(name))
    cache.get("a", loads.of("a"))
    cache.get("d", loads.of("d"))
    assert cache.used_bytes == 30
    cache.get("a", loads.of("a"))
    cache.get("b", loads.of("b"))
    assert loads.made == ["a", "b", "c", "d", "b"]


def test_a_large_value_pushes_out_as_many_as_it_needs() -> None:
    cache, loads = ByteCache(30), Loads()
    for name in ("a", "b", "c"):
        cache.get(name, loads.of(name))
    cache.get("big", loads.of("big", 25))
    assert cache.used_bytes == 25


def test_a_value_larger_than_the_budget_is_given_but_not_kept() -> None:
    cache, loads = ByteCache(30), Loads()
    cache.get("a", loads.of("a"))
    assert cache.get("big", loads.of("big", 31)) == "BIG"
    assert cache.get("big", loads.of("big", 31)) == "BIG"
    assert loads.made == ["a", "big", "big"]
    assert cache.used_bytes == 10


def test_a_failed_load_leaves_nothing_behind() -> None:
    cache = ByteCache(30)

    def broken() -> tuple[str, int]:
        raise OSError("no")

    with pytest.raises(OSError):
        cache.get("a", broken)
    assert cache.used_bytes == 0
    assert cache.get("a", Loads().of("a")) == "A"


def test_dropping_frees_what_belongs_together() -> None:
    cache, loads = ByteCache(100), Loads()
    for key in ((1, 0), (1, 1), (2, 0)):
        cache.get(key, loads.of(str(key)))
    cache.drop(lambda key: isinstance(key, tuple) and key[0] == 1)
    assert cache.used_bytes == 10
    cache.get((2, 0), loads.of("again"))
    assert "again" not in loads.made
    cache.get((1, 0), loads.of("again"))
    assert "again" in loads.made
