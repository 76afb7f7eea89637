"""The text for scrapers is what prometheus-client would write, byte for byte."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import exposition as theirs
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from gateway.core.exposition import CONTENT_TYPE, Family, render, single

TEXTS = st.text(max_size=8) | st.sampled_from(['"', "\\", "\n", "a-1", 'back\\slash "quoted"\nnext'])
NUMBERS = (
    st.floats() | st.integers(-(10**18), 10**18) | st.sampled_from([0, 1, 999_999, 1e6, 1234567.5, 1e300])
)


class Collected:
    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self) -> tuple[Metric, ...]:
        return self._families


@given(TEXTS, st.lists(st.tuples(TEXTS, TEXTS, NUMBERS), max_size=4))
def test_gauges_and_counters_are_written_alike(about: str, rows: list[tuple[str, str, float]]) -> None:
    gauge, their_gauge = (
        Family("gauge", "topics_g", about, ["topic", "shard"]),
        GaugeMetricFamily("topics_g", about, labels=["topic", "shard"]),
    )
    counter, their_counter = (
        Family("counter", "topics_c", about, ["topic", "shard"]),
        CounterMetricFamily("topics_c", about, labels=["topic", "shard"]),
    )
    for topic, shard, value in rows:
        gauge.add([topic, shard], value)
        counter.add([topic, shard], value)
        their_gauge.add_metric([topic, shard], value)
        their_counter.add_metric([topic, shard], value)
    assert render([gauge, counter]) == theirs.generate_latest(Collected(their_gauge, their_counter))


@given(st.lists(st.tuples(st.floats(0, 1e9), st.integers(0, 10**9)), max_size=4), NUMBERS)
def test_histograms_are_written_alike(buckets: list[tuple[float, int]], total: float) -> None:
    ours = Family("histogram", "topics_h", "how long", ["shard"])
    ours.add_histogram(["0"], buckets, 7, total)
    family = HistogramMetricFamily("topics_h", "how long", labels=["shard"])
    family.add_metric(["0"], [*((repr(bound), count) for bound, count in buckets), ("+Inf", 7)], total)
    assert render([ours]) == theirs.generate_latest(Collected(family))


def test_a_number_without_labels_has_no_braces() -> None:
    assert render([single("gauge", "topics_ready", "ready", 1)]) == (
        b"# HELP topics_ready ready\n# TYPE topics_ready gauge\ntopics_ready 1.0\n"
    )


def test_the_content_type_is_the_one_of_that_format() -> None:
    assert CONTENT_TYPE == theirs.CONTENT_TYPE_PLAIN_0_0_4
