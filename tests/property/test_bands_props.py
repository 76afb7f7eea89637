"""The bands keep what they promise, whatever comes, goes and waits (B1 to B3 in shard_worker/core/bands.py)."""

from __future__ import annotations

from collections import Counter, deque

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shard_worker.core.bands import FLOORS, NEGATIVE, TURNS, Bands, band_of
from shard_worker.core.priority import waiting_points

priorities = st.integers(-1000, 1500)
WEIGHTS = Counter(TURNS)


def test_the_weights_are_those_of_the_table() -> None:
    assert [WEIGHTS[band] for band in range(NEGATIVE + 1)] == [8, 4, 2, 1, 1]
    assert [band_of(rank) for rank in (1500, 750, 749, 500, 250, 249, 0, -1, -1000)] == [
        0, 0, 1, 1, 2, 3, 3, 4, 4,
    ]  # fmt: skip


class _Model:
    """What waits, as a plain list: rank and band are worked out anew whenever somebody asks."""

    def __init__(self) -> None:
        self.waits: dict[int, tuple[int, int, int]] = {}  # item: since, serial, priority

    def band(self, item: int, now_ms: int) -> int:
        since, _, priority = self.waits[item]
        return band_of(priority + waiting_points(now_ms - since))

    def of_band(self, band: int, now_ms: int) -> list[int]:
        found = [item for item in self.waits if self.band(item, now_ms) == band]
        return sorted(found, key=lambda item: self.waits[item][:2])


class BandsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.bands: Bands[int] = Bands()
        self.model = _Model()
        self.now_ms = 1000
        self.serial = 0
        # The last 15 picks: which bands were occupied just before each, and which one was served.
        self.picks: deque[tuple[frozenset[int], int]] = deque(maxlen=len(TURNS))

    @rule(item=st.integers(0, 30), priority=priorities)
    def put(self, item: int, priority: int) -> None:
        known = self.model.waits.get(item)
        assert self.bands.put(item, priority, self.now_ms) == (known is None)
        if known is None or known[2] != priority:
            self.serial += 1
            since = self.now_ms if known is None else known[0]
            self.model.waits[item] = (since, self.serial, priority)

    @rule(item=st.integers(0, 30))
    def discard(self, item: int) -> None:
        self.bands.discard(item)
        self.model.waits.pop(item, None)

    @rule(ms=st.sampled_from([1, 9, 10, 500, 2500, 7500, 20_000]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @rule(negatives=st.booleans())
    def pick(self, negatives: bool) -> None:
        now_ms, model = self.now_ms, self.model
        occupied = frozenset(model.band(item, now_ms) for item in model.waits)
        open_bands = occupied if negatives else occupied - {NEGATIVE}
        picked = self.bands.pick(now_ms, negatives=negatives)
        if picked is None:
            assert not open_bands, "whoever may be served is served"
            return
        band = model.band(picked, now_ms)
        assert band in open_bands
        assert picked == model.of_band(band, now_ms)[0], "the longest wait of the band goes first"
        del model.waits[picked]
        self.picks.append((open_bands, band))
        self._check_shares()

    def _check_shares(self) -> None:
        if len(self.picks) < len(TURNS):
            return
        served = Counter(band for _, band in self.picks)
        for band, weight in WEIGHTS.items():
            if all(band in occupied for occupied, _ in self.picks):
                assert served[band] >= weight

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.bands) == len(self.model.waits) == sum(self.bands.depths)
        for item in range(31):
            waits = self.model.waits.get(item)
            assert (item in self.bands) == (waits is not None)
            assert self.bands.waited_ms(item, self.now_ms) == (self.now_ms - waits[0] if waits else 0)

    @precondition(lambda self: self.model.waits)
    @rule()
    def serve_all(self) -> None:
        while self.model.waits:
            self.pick(True)
        assert self.bands.pick(self.now_ms) is None


TestBands = BandsMachine.TestCase


@given(st.lists(st.integers(0, 5), min_size=NEGATIVE + 1, max_size=NEGATIVE + 1), st.integers(0, 15))
def test_full_bands_share_by_weight(skipped: list[int], offset: int) -> None:
    """All bands full: any 16 picks in a row are shared exactly by the weights."""
    bands: Bands[tuple[int, int]] = Bands()
    ranks = [1000, 600, 300, 100, -1000]
    for band, rank in enumerate(ranks):
        for number in range(64 + skipped[band]):
            bands.put((band, number), rank, 0)
    picks = [bands.pick(0) for _ in range(64)]
    window = [pick[0] for pick in picks[offset : offset + len(TURNS)] if pick is not None]
    assert Counter(window) == WEIGHTS
    for band in range(NEGATIVE + 1):
        numbers = [pick[1] for pick in picks if pick is not None and pick[0] == band]
        assert numbers == list(range(len(numbers))), "first come, first served"


@given(
    st.lists(priorities, min_size=1, max_size=20, unique=True),
    st.integers(1, 50),
    st.sampled_from([0, -1000, 249]),
)
def test_nobody_waits_longer_than_sixteen_picks_for_each_that_stands_before_it(
    others: list[int], pick_ms: int, patient: int
) -> None:
    """Topics that come back the moment they are served never keep another one from its turn."""
    bands: Bands[str] = Bands()
    now_ms = 0
    for number, priority in enumerate(others):
        bands.put(f"busy-{number}", priority, now_ms)
    bands.put("patient", patient, now_ms)
    bound = 16 * (len(others) + 1)
    for _ in range(bound):
        picked = bands.pick(now_ms)
        assert picked is not None
        if picked == "patient":
            break
        now_ms += pick_ms
        bands.put(picked, others[int(picked.removeprefix("busy-"))], now_ms)
    else:
        raise AssertionError(f"still waiting after {bound} picks")


def test_a_flood_of_high_priority_keeps_a_low_one_waiting_ten_seconds_at_the_most() -> None:
    """A worker that delivers 200 a second, 500 urgent topics that always have more: the low ones get through."""
    bands: Bands[str] = Bands()
    urgent = [f"urgent-{n}" for n in range(500)]
    low = {"quiet": 0, "negative": -1000, "just-below": -1}
    for name in urgent:
        bands.put(name, 1000, 0)
    for name, priority in low.items():
        bands.put(name, priority, 0)
    longest = dict.fromkeys(low, 0)
    since = dict.fromkeys(low, 0)
    for now_ms in range(0, 60_000, 5):
        served = bands.pick(now_ms)
        assert served is not None
        if served in low:
            longest[served] = max(longest[served], now_ms - since[served])
            since[served] = now_ms
        bands.put(served, low.get(served, 1000), now_ms)
    assert all(now_ms - at <= 10_000 for at in since.values()), "served to the end"
    assert max(longest.values()) <= 10_000


def test_the_negative_band_stands_still_when_told_and_rises_out_of_it() -> None:
    bands: Bands[str] = Bands()
    bands.put("deep", -1000, 0)
    bands.put("shallow", -100, 0)
    assert bands.pick(999, negatives=False) is None
    assert bands.pick(1000, negatives=False) == "shallow", "100 points in a second"
    assert bands.pick(9_999, negatives=False) is None
    assert bands.depths == (0, 0, 0, 0, 1)
    assert bands.pick(10_000, negatives=False) == "deep"


def test_nothing_piles_up_behind_the_scenes() -> None:
    """Heaps keep stale entries for a while; not for ever."""
    bands: Bands[int] = Bands()
    for turn in range(20_000):
        bands.put(turn % 7, -1000 + turn % 13, turn)
        if turn % 3 == 0:
            bands.discard(turn % 5)
    held = sum(len(heap) for heap in bands._bands) + len(bands._rising)
    assert held < 1000


def test_the_floors_descend() -> None:
    assert sorted(FLOORS, reverse=True) == list(FLOORS)
