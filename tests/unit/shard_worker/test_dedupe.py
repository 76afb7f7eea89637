from __future__ import annotations

from shard_worker.core.dedupe import DedupeWindow, Remembered


def test_a_key_is_found_with_the_write_that_first_carried_it() -> None:
    window = DedupeWindow()
    window.remember("k", 7, 3, 1000)
    assert window.find("k", 1000, 500) == Remembered(7, 3, 1000)
    assert window.find("other", 1000, 500) is None


def test_the_window_includes_its_last_millisecond() -> None:
    window = DedupeWindow()
    window.remember("k", 1, 1, 1000)
    assert window.find("k", 1500, 500) is not None
    assert window.find("k", 1501, 500) is None


def test_a_window_of_zero_covers_the_same_millisecond_only() -> None:
    window = DedupeWindow()
    window.remember("k", 1, 1, 1000)
    assert window.find("k", 1000, 0) is not None
    assert window.find("k", 1001, 0) is None


def test_expiry_takes_the_oldest_and_stops_at_the_first_that_stays() -> None:
    window = DedupeWindow()
    for serial in range(5):
        window.remember(f"k{serial}", serial + 1, 1, 1000 + 100 * serial)
    assert window.expire(1700, 500) == 2
    assert [key for key, _ in window.entries()] == ["k2", "k3", "k4"]
    assert window.expire(1700, 500) == 0


def test_expiry_of_everything_leaves_an_empty_window() -> None:
    window = DedupeWindow()
    window.remember("k", 1, 1, 0)
    assert window.expire(10_000, 1) == 1
    assert len(window) == 0
    assert window.expire(10_000, 1) == 0


def test_a_key_used_again_after_its_window_moves_to_the_young_end() -> None:
    window = DedupeWindow()
    window.remember("a", 1, 1, 1000)
    window.remember("b", 2, 1, 2000)
    window.remember("a", 3, 1, 3000)
    assert [key for key, _ in window.entries()] == ["b", "a"]
    assert window.expire(2600, 500) == 1
    assert window.find("a", 3000, 500) == Remembered(3, 1, 3000)


def test_forgetting_the_oldest_makes_room() -> None:
    window = DedupeWindow()
    window.remember("a", 1, 1, 1000)
    window.remember("b", 2, 1, 1000)
    window.forget_oldest()
    assert [key for key, _ in window.entries()] == ["b"]


def test_entries_remembered_again_in_their_order_give_the_same_window() -> None:
    window = DedupeWindow()
    for serial in range(3):
        window.remember(f"k{serial}", serial, serial + 1, 1000 + serial)
    twin = DedupeWindow()
    for key, held in window.entries():
        twin.remember(key, held.first, held.records, held.ts)
    assert twin.entries() == window.entries()
