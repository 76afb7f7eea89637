"""What `ack` and `nack` share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from topicsd.client.errors import Exit
from topicsd.client.jobs import MAX_SEQS, Queue, Settled, named_jobs
from topicsd.client.options import Session
from topicsd.client.output import count, note


def settle_jobs(
    session: Session,
    verb: Literal["ack", "nack"],
    topic: str,
    words: Sequence[str],
    node: str,
    *,
    delay_ms: int = 0,
) -> Exit | None:
    """Exit 1 if jobs were skipped: they are not (any more) held by this node under that lease."""
    queue = Queue(session.server, topic, node)
    jobs = named_jobs(words)
    done = skipped = 0
    for first in range(0, len(jobs), MAX_SEQS):
        answer = queue.settle(verb, jobs[first : first + MAX_SEQS], delay_ms=delay_ms)
        result = session.server.decode(Settled, answer)
        done += result.acked + result.nacked
        skipped += result.skipped
        if session.as_json:
            session.out.line(answer)
    if not session.as_json:
        session.out.text(f"{verb}ed {count(done)} of {count(len(jobs))}")
    if skipped:
        note(
            f"{count(skipped)} skipped: not leased to {node}, or by another lease; see --node, or claim them again"
        )
    return Exit.REFUSED if skipped else None
