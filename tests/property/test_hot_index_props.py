"""However entries come and go, and whoever looks in between: an index holds what a plain list would."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from shard_worker.core.hot_index import IN_MEMORY, HotEntry, HotIndex

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 70)),
        st.tuples(st.just("drop"), st.integers(0, 400)),
        st.tuples(st.just("take off"), st.integers(0, 400)),
        st.tuples(st.sampled_from(["look", "columns", "copy"]), st.just(0)),
    ),
    max_size=12,
)
LARGEST = HotEntry((1 << 62) - 1, (1 << 31) - 1, (1 << 62) - 1, (1 << 62) - 1, (1 << 31) - 1, (1 << 16) - 1)


class Model:
    """The entries in order, each with its live bytes."""

    def __init__(self) -> None:
        self.entries: list[HotEntry] = []
        self.live: list[int] = []
        self.next_seq = 1

    def append(self, number: int) -> HotEntry:
        count = 1 + number % 3
        lsn = IN_MEMORY if number % 5 == 4 else (1 << 32) + 100 * self.next_seq
        entry = HotEntry(self.next_seq, count, 1000 + self.next_seq, lsn, 90 * count, number % 64)
        self.next_seq += count + number % 2
        self.entries.append(entry)
        self.live.append(entry.size)
        return entry


def held(index: HotIndex) -> list[HotEntry]:
    return [index.entry(place) for place in range(index.start, len(index.first))]


def as_rows(columns: tuple[array[int], ...]) -> list[tuple[int, ...]]:
    return list(zip(*columns, strict=True))


def rows_of(model: Model, upto: int | None = None) -> list[tuple[int, ...]]:
    rows = zip(model.entries[:upto], model.live[:upto], strict=True)
    return [(e.first, e.lsn, e.ts, e.size, live, e.records, e.flags) for e, live in rows]


@given(STEPS)
def test_an_index_equals_a_list_of_its_entries(steps: list[tuple[str, int]]) -> None:
    index, model = HotIndex(), Model()
    for what, number in steps:
        match what:
            case "append":
                for nth in range(number):
                    first, count, ts, lsn, size, flags = model.append(nth)
                    index.append(first, count, ts, lsn, size, flags)
            case "drop":
                gone = min(number, len(model.entries))
                resident = [entry for entry in model.entries[:gone] if entry.lsn == IN_MEMORY]
                assert index.drop_before(index.start + gone) == resident
                del model.entries[:gone], model.live[:gone]
            case "take off" if number < len(model.entries):
                index.take_off(index.start + number, 1)
                model.live[number] -= 1
            case "look":
                assert held(index) == model.entries
                assert list(index.live[index.start :]) == model.live
            case "columns":
                assert as_rows(index.columns()) == rows_of(model)
            case "copy":
                in_front = next((at for at, e in enumerate(model.entries) if e.lsn == IN_MEMORY), None)
                assert as_rows(index.in_log().columns()) == rows_of(model, in_front)
        assert len(index) == len(model.entries)
        assert index.oldest_seq() == (model.entries[0].first if model.entries else 0)
        if model.entries:
            assert (index.oldest_lsn(), index.oldest_ts()) == (model.entries[0].lsn, model.entries[0].ts)
    assert held(index) == model.entries
    assert index.last_seq() == (model.entries[-1].last if model.entries else 0)


def test_the_largest_numbers_come_back_as_they_were() -> None:
    index = HotIndex()
    first, count, ts, lsn, size, flags = LARGEST
    index.append(first, count, ts, lsn, size, flags)
    assert (index.oldest_seq(), index.oldest_lsn(), index.oldest_ts()) == (first, lsn, ts)
    assert as_rows(index.columns()) == [(first, lsn, ts, size, size, count, flags)]
    assert index.entry(0) == LARGEST
