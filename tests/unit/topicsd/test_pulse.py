"""When the server may say that it moves."""

from __future__ import annotations

import pytest

from topicsd.core.pulse import PulseLimits, Sign, stuck

LIMITS = PulseLimits(silent_s=5.0, start_s=60.0)


@pytest.mark.parametrize(
    ("sign", "reason"),
    [
        (Sign(name="shard-0", silent_s=4.9, spoke=True), None),
        (Sign(name="shard-0", silent_s=5.1, spoke=True), "shard-0 is silent"),
        (Sign(name="shard-0", silent_s=59.0, spoke=False), None),
        (Sign(name="shard-0", silent_s=61.0, spoke=False), "shard-0 is silent"),
        (Sign(name="shard-0", silent_s=0.1, spoke=True, unanswered_s=4.9), None),
        (
            Sign(name="shard-0", silent_s=0.1, spoke=True, unanswered_s=5.1),
            "shard-0 does not answer the gateway",
        ),
    ],
)
def test_a_child_is_stuck_if_it_is_silent_or_gives_no_answers(sign: Sign, reason: str | None) -> None:
    others = [Sign(name="gateway", silent_s=0.0, spoke=True)]
    assert stuck([*others, sign], LIMITS) == ([] if reason is None else [reason])


def test_a_server_without_children_is_not_stuck() -> None:
    assert stuck([], LIMITS) == []
