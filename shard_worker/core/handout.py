"""What one claim gets: its share of the jobs, their tokens, and the text that shows them.

A stretch of plain jobs is one read, one pass over its text and one lease, however many they are. Where that does not
do (tags, sealed or damaged records, more bytes than fit an answer) it goes record by record.
"""

from __future__ import annotations

from shard_worker.core.job_json import JobTexts, readable_records, stored_stretch, stretch_text
from shard_worker.core.lease_queue import LeaseQueue
from shard_worker.core.lease_tokens import token_list, token_of
from shard_worker.core.piece import PieceSource
from shard_worker.core.stretches import Stretch, seqs_of, stretches_of
from shard_worker.core.topic import Topic
from shared.control_frames import LeaseRow
from shared.errors import DataDamage
from shared.limits import CLAIM_MAX_BYTES


class Handout:
    __slots__ = (
        "_deadline_ms",
        "_prefix",
        "_queue",
        "_room",
        "_texts",
        "_topic",
        "count",
        "first_deliveries",
        "leases",
        "number",
    )

    def __init__(
        self, topic: Topic, queue: LeaseQueue, token_prefix: str, number: int, deadline_ms: int
    ) -> None:
        """`number` is that of the last token given out."""
        self._topic = topic
        self._queue = queue
        self._prefix = token_prefix
        self._deadline_ms = deadline_ms
        self._room = CLAIM_MAX_BYTES
        self._texts: list[tuple[int, bytes]] = []  # by seq
        self.number = number
        self.count = 0
        self.leases: list[tuple[int, int, int]] = []  # stretch, and the number in the token of its first job
        # When jobs were written that are delivered for the first time, and how many they are.
        self.first_deliveries: list[tuple[int, int]] = []

    def add(self, taken: list[Stretch], source: PieceSource) -> dict[int, DataDamage]:
        """These jobs, in this order, as far as there is room; what is left of them is ready again.

        Returns what is wrong with those that cannot be read.
        """
        others: list[Stretch] = []
        for first, last in taken:
            # Single ones that were written one by one are read together, below.
            if not ((last > first or len(taken) == 1) and self._add_together(first, last, source)):
                others.append((first, last))
        return self._add_each(others, source) if others else {}

    def answer(self) -> bytes:
        """The open body; the queue is settled."""
        topic, texts = self._topic, self._texts
        return b'{"topic":"%b","claimed":[%b],"count":%d,"ready":%d' % (
            topic.name.encode(),
            texts[0][1] if len(texts) == 1 else b",".join([text for _, text in sorted(texts)]),
            self.count,
            self._queue.ready(topic),
        )

    def rows(self, node: str) -> list[LeaseRow]:
        """The leases one by one, as the log has them."""
        return [
            LeaseRow(seq, token, self._deadline_ms, self._queue.jobs[seq].deliveries + 1, node)
            for first, last, number in self.leases
            for seq, token in zip(
                range(first, last + 1), token_list(self._prefix, number, last - first + 1), strict=True
            )
        ]

    def _add_together(self, first: int, last: int, source: PieceSource) -> bool:
        topic, count, job = self._topic, last - first + 1, self._queue.jobs[first]
        try:
            stored = stored_stretch(topic, first, last, source, self._room)
        except DataDamage:
            return False  # one by one, then: the neighbours of a damaged one are handed out all the same
        if stored is None:
            return False
        records, ts = stored
        text = stretch_text(
            records, ts, count, job.deliveries + 1, self._prefix, self.number + 1, self._deadline_ms
        )
        if text is None or len(text) > self._room:
            return False
        self._note(first, last, text)
        if not job.deliveries:
            self._note_first(ts, count)
        return True

    def _add_each(self, stretches: list[Stretch], source: PieceSource) -> dict[int, DataDamage]:
        queue, texts, given = self._queue, JobTexts(), set()
        number = self.number
        records, damaged = readable_records(self._topic, seqs_of(stretches), source)
        for seq, piece, place in records:
            if self._room <= 0:
                queue.stay(seq)
                continue
            number += 1
            job = queue.jobs[seq]
            token = token_of(self._prefix, number)
            text = texts.of(LeaseRow(seq, token, self._deadline_ms, job.deliveries + 1, ""), piece, place)
            self._texts.append((seq, text))
            self._room -= len(text)
            given.add(seq)
            if not job.deliveries:
                times = piece.times
                self._note_first(times if isinstance(times, int) else times[place], 1)
        for first, last in stretches:
            # In the order of their numbers, which is that of the seqs. Whoever stays has got an entry of its own.
            for low, high in stretches_of(given.intersection(range(first, last + 1))):
                self._lease(low, high)
        return damaged

    def _note(self, first: int, last: int, text: bytes) -> None:
        self._texts.append((first, text))
        self._room -= len(text)
        self._lease(first, last)

    def _lease(self, first: int, last: int) -> None:
        self.leases.append((first, last, self.number + 1))
        self.number += last - first + 1
        self.count += last - first + 1

    def _note_first(self, written_ms: int, count: int) -> None:
        noted = self.first_deliveries
        if noted and noted[-1][0] == written_ms:
            noted[-1] = (written_ms, noted[-1][1] + count)
        else:
            noted.append((written_ms, count))


def shared_out(taken: list[Stretch], wanted: list[int]) -> list[list[Stretch]]:
    """Divide jobs evenly over those who want so many: round by round, so that nobody has two while another has none."""
    counts = _even_counts(sum(last - first + 1 for first, last in taken), wanted)
    if len(taken) == 1:
        # Written together and all alike: who gets which does not matter, and neighbours are cheap.
        first = taken[0][0]
        shares: list[list[Stretch]] = []
        for count in counts:
            shares.append([(first, first + count - 1)] if count else [])
            first += count
        return shares
    dealt: list[list[int]] = [[] for _ in wanted]
    seqs = iter(seqs_of(taken))
    for level in range(max(counts, default=0)):
        for count, share in zip(counts, dealt, strict=True):
            if count > level:
                share.append(next(seqs))
    return [_in_stretches(share, taken) for share in dealt]


def _in_stretches(seqs: list[int], taken: list[Stretch]) -> list[Stretch]:
    """Neighbours among `seqs`, but never of two stretches."""
    ends = {last for _, last in taken}
    found: list[Stretch] = []
    for first, last in stretches_of(seqs):
        for seq in range(first, last):
            if seq in ends:
                found.append((first, seq))
                first = seq + 1
        found.append((first, last))
    return found


def _even_counts(jobs: int, wanted: list[int]) -> list[int]:
    counts = [0] * len(wanted)
    hungry = [place for place, most in enumerate(wanted) if most]
    while jobs and hungry:
        each = max(1, jobs // len(hungry))
        for place in hungry:
            given = min(each, wanted[place] - counts[place], jobs)
            counts[place] += given
            jobs -= given
        hungry = [place for place in hungry if counts[place] < wanted[place]]
    return counts
