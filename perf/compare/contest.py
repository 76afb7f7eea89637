"""A contest: one kind of work, done by each system in turns, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from perf.report import Row

OURS = "topicsd"


@dataclass(frozen=True, slots=True)
class Sample:
    """One system's share of one round."""

    value: float  # records per second, or milliseconds, or bytes: whatever the contest is about
    latency_ms: Mapping[str, float] = field(default_factory=dict)  # p50, p90, p99 of single requests
    cpu_s_per_million: float | None = None  # records
    rss_bytes: int | None = None
    cpu_us: Mapping[str, float] = field(default_factory=dict)  # per request, by kind of process


@dataclass(frozen=True, slots=True)
class Contest:
    name: str
    unit: str
    systems: Mapping[str, Callable[[], Sample]]
    aim: float | None = None  # for the ratio of ours to the best rival
    lower_is_better: bool = False
    note: str = ""
    rounds: int | None = None  # where a round is expensive


@dataclass(slots=True)
class Outcome:
    contest: Contest
    samples: dict[str, list[Sample]]

    def ratio(self) -> tuple[float, list[float], str]:
        """Ours to the rival that does best: the median over the rounds, all rounds, and who that is."""
        own = [sample.value for sample in self.samples[OURS]]
        best: tuple[float, list[float], str] | None = None
        for name, runs in self.samples.items():
            if name == OURS:
                continue
            ratios = [ours / sample.value for ours, sample in zip(own, runs, strict=True)]
            found = median(ratios)
            if best is None or (found > best[0]) is self.contest.lower_is_better:
                best = (found, ratios, name)
        assert best is not None
        return best

    @property
    def met(self) -> bool | None:
        aim = self.contest.aim
        if aim is None:
            return None
        ratio = self.ratio()[0]
        return ratio <= aim if self.contest.lower_is_better else ratio >= aim

    def row(self) -> Row:
        """As it is saved."""
        ratio, ratios, rival = self.ratio()
        return {
            "work": self.contest.name,
            "unit": self.contest.unit,
            "lower_is_better": self.contest.lower_is_better,
            "note": self.contest.note,
            "ratio": round(ratio, 3),
            "ratio_spread": [round(min(ratios), 3), round(max(ratios), 3)],
            "best_rival": rival,
            "aim": self.contest.aim,
            "met": self.met,
            "systems": {name: _summary(runs) for name, runs in self.samples.items()},
        }


def _summary(runs: Sequence[Sample]) -> Row:
    values = [run.value for run in runs]
    row: Row = {"value": _short(median(values)), "spread": [_short(min(values)), _short(max(values))]}
    for point in runs[0].latency_ms:
        row[f"{point}_ms"] = round(median(run.latency_ms[point] for run in runs), 3)
    cpu = [run.cpu_s_per_million for run in runs if run.cpu_s_per_million is not None]
    if cpu:
        row["cpu_s_per_million"] = round(median(cpu), 2)
    rss = [run.rss_bytes for run in runs if run.rss_bytes is not None]
    if rss:
        row["rss_mib"] = round(median(rss) / (1 << 20), 1)
    return row


def _short(value: float) -> float:
    return round(value) if value >= 1000 else round(value, 4)


def hold(contest: Contest, rounds: int, tell: Callable[[str], None]) -> Outcome:
    """Every system once per round, in turns; one round before that does not count."""
    samples: dict[str, list[Sample]] = {name: [] for name in contest.systems}
    counted = contest.rounds or rounds
    warm = 0 if contest.rounds else 1
    for number in range(counted + warm):
        for name, work in contest.systems.items():
            sample = work()
            if number >= warm:
                samples[name].append(sample)
        tell(f"  {contest.name}: round {number + 1} of {counted + warm}")
    return Outcome(contest, samples)
