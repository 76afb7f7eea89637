"""`spark.readStream.format("topics")`: one topic over the HTTP API, from where the checkpoint says.

An offset is the last seq that was read, and the epoch it belongs to. Seqs are never reused and records never change,
so a range that is read again gives the same rows. What was lost to a cap or a TTL, or with a topic that was deleted and
created again, is a row of its own that says which seqs are missing and why; what somebody deleted on purpose is left
out, as in every read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ops.coldstore.stream_api import Record, StreamError, TopicApi

STREAM_FIELDS: Final[dict[str, str]] = {
    "topic": "string",
    "epoch": "long",
    "seq": "long",
    "ts": "long",
    "node": "string",
    "tag": "string",
    "key": "string",
    "meta": "string",
    "data": "string",
    "gap_from": "long",
    "gap_to": "long",
    "gap_reason": "string",
}
RANGE_SEQS: Final = 50_000
Row = tuple[Any, ...]
Offset = dict[str, int]


class SeqRange(InputPartition):
    """The seqs behind `after`, up to `upto`. Without an `upto` all that is known is that they are lost."""

    def __init__(self, epoch: int, after: int, upto: int | None) -> None:
        super().__init__(None)
        self.epoch, self.after, self.upto = epoch, after, upto


class TopicsStreamReader(DataSourceStreamReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        for name in ("url", "topic"):
            if not options.get(name):
                raise StreamError(f'a stream needs .option("{name}", …)')
        self._topic = options["topic"]
        self._from = options.get("from_seq", "0")
        self._range = int(options.get("range_seqs", RANGE_SEQS))
        self._api = TopicApi(options["url"], self._topic, options.get("api_key"))

    def initialOffset(self) -> Offset:
        state = self._api.state()
        epoch = state.epoch if state else 0
        if self._from == "latest":
            return {"seq": state.head_seq if state else 0, "epoch": epoch}
        return {"seq": int(self._from), "epoch": epoch}

    def latestOffset(self, start: Offset | None = None, limit: object = None) -> Offset:
        state = self._api.state()
        if state is None:
            # Deleted, or not there yet. If it comes again, under another epoch, the batch after tells.
            return start if start is not None else self.initialOffset()
        return {"seq": state.head_seq, "epoch": state.epoch}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        found: list[InputPartition] = []
        after = start["seq"]
        if start["epoch"] != end["epoch"]:
            if start["epoch"]:
                found.append(SeqRange(start["epoch"], after, None))
            after = 0 if start["epoch"] else after
        while after < end["seq"]:
            upto = min(after + self._range, end["seq"])
            found.append(SeqRange(end["epoch"], after, upto))
            after = upto
        return found

    def read(self, partition: InputPartition) -> Iterator[Row]:
        assert isinstance(partition, SeqRange)
        epoch, after, upto = partition.epoch, partition.after, partition.upto
        if upto is None:
            yield self._gap(epoch, after + 1, None, "recreated")
            return
        while after < upto:
            page = self._api.page(after)
            # Asked behind the page: an epoch never comes back, so the page is of this one if it still stands.
            state = self._api.state()
            if page is None or state is None or state.epoch != epoch:
                reason = "deleted" if state is None else "recreated"
                yield self._gap(epoch, after + 1, upto, reason)
                return
            lost = page.tombstone
            if lost is not None and lost.gap_from <= upto:
                yield self._gap(epoch, max(lost.gap_from, after + 1), min(lost.gap_to, upto), lost.reason)
            for record in page.records:
                if record.seq <= upto:
                    yield self._row(epoch, record)
            if page.next_from_seq <= after:
                raise StreamError(
                    f"topic {self._topic} has nothing behind seq {after}, where {upto} was promised"
                )
            after = page.next_from_seq

    def _row(self, epoch: int, record: Record) -> Row:
        meta = bytes(record.meta).decode() or None
        data = bytes(record.data).decode()
        labels = (record.node, record.tag, record.key)
        return (self._topic, epoch, record.seq, record.ts, *labels, meta, data, None, None, None)

    def _gap(self, epoch: int, first: int, last: int | None, reason: str) -> Row:
        return (self._topic, epoch, None, None, None, None, None, None, None, first, last, reason)
