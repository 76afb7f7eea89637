"""`spark.read.format("topics")`: sealed records, or the blocks they are in, as a DataFrame.

    spark.dataSource.register(TopicsDataSource)
    spark.read.format("topics").option("path", "/var/lib/topicsd").option("cold", "/mnt/cold").load()

Spark has no way to ask a Python source for some columns only, so they are an option. Options, columns and what a
bad block means: docs/cold-data.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructField, StructType

from ops.coldstore.block_rows import BLOCK_FIELDS, block_rows
from ops.coldstore.key_rows import BINS_JOINED, KEY_FIELDS, key_rows
from ops.coldstore.places import SegmentPlace, filesystem_for, find_places
from ops.coldstore.record_rows import record_rows
from ops.coldstore.segment_files import open_index
from ops.coldstore.stream import STREAM_FIELDS, TopicsStreamReader
from shared.cold_plan import BIN_BYTES, Bin, LiveRules, Query, SegmentSlice, pack_bins, slice_segment
from shared.io.durable_fs import FileSystem

RECORDS, BLOCKS, KEYS = "records", "blocks", "keys"
RECORD_FIELDS: Final[dict[str, str]] = {
    "topic": "string",
    "shard": "int",
    "epoch": "long",
    "seq": "long",
    "ts": "long",
    "node": "string",
    "tag": "string",
    "key": "string",
    "meta": "string",
    "data": "string",
    "segment": "long",
    "block": "int",
}
_FIELDS = {RECORDS: RECORD_FIELDS, BLOCKS: BLOCK_FIELDS, KEYS: KEY_FIELDS}
_SPARK_TYPES: Final[dict[str, DataType]] = {"string": StringType(), "long": LongType(), "int": IntegerType()}


class BadOption(ValueError):
    """An option of the data source that cannot be followed."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    path: str
    cold: str | None
    mode: str
    columns: tuple[str, ...]
    query: Query
    include_deleted: bool
    bin_bytes: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """Spark gives option names in lower case."""
        path = options.get("path")
        if not path:
            raise BadOption('say where the store is: .option("path", DIR)')
        mode = options.get("mode", RECORDS)
        if mode not in _FIELDS:
            raise BadOption(f"mode is {RECORDS}, {KEYS} or {BLOCKS}, not {mode}")
        known = tuple(_FIELDS[mode])
        columns = _names(options.get("columns")) or known
        for name in columns:
            if name not in known:
                raise BadOption(f"there is no column {name} in mode {mode}; there are {', '.join(known)}")
        topics = _names(options.get("topics"))
        query = Query(
            frozenset(topics) if topics else None,
            *(_number(options, name) for name in ("from_seq", "to_seq", "from_ts", "to_ts")),
        )
        return cls(
            path,
            options.get("cold"),
            mode,
            columns,
            query,
            options.get("include_deleted", "false").lower() == "true",
            _number(options, "bin_bytes") or BIN_BYTES,
        )


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise BadOption(f"{name} is a whole number, not {text!r}") from None


class TopicsDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "topics"

    def schema(self) -> StructType:
        if "url" in self.options:
            return _struct(STREAM_FIELDS)
        options = ReadOptions.parse(self.options)
        return _struct({name: _FIELDS[options.mode][name] for name in options.columns})

    def reader(self, schema: StructType) -> DataSourceReader:
        return TopicsReader(ReadOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TopicsStreamReader(self.options)


def _struct(fields: Mapping[str, str]) -> StructType:
    return StructType([StructField(name, _SPARK_TYPES[kind], True) for name, kind in fields.items()])


@dataclass(frozen=True, slots=True)
class Unopened:
    """Whole files for one task, which reads their footers itself: so planning touches no tiny file."""

    places: tuple[SegmentPlace, ...]
    rules: dict[int, LiveRules]
    """By shard, as far as they speak of these files. A shard without an entry shows every record."""

    def open(self, fs: FileSystem, query: Query) -> Bin:
        slices = (_open_slice(fs, place, query, self.rules.get(place.shard)) for place in self.places)
        return Bin(tuple(each for each in slices if each is not None))


class BinPartition(InputPartition):
    def __init__(self, work: Bin | Unopened) -> None:
        super().__init__(None)
        self.work = work


class TopicsReader(DataSourceReader):
    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        return [BinPartition(work) for work in plan_tasks(self._options)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, BinPartition)
        options = self._options
        fs = filesystem_for(options.path)
        work = partition.work
        if isinstance(work, Unopened):
            work = work.open(fs, options.query)
        if options.mode == RECORDS:
            yield from record_rows(fs, work, options.columns, options.query)
        elif options.mode == KEYS:
            yield from key_rows(fs, work, options.columns, options.query)
        else:
            yield from block_rows(fs, work, options.columns)


def plan_bins(options: ReadOptions) -> list[Bin]:
    """Every task, footers read. One that cannot be read is an error: its records would be missing."""
    fs = filesystem_for(options.path)
    opened = (
        work.open(fs, options.query) if isinstance(work, Unopened) else work for work in plan_tasks(options)
    )
    return [work for work in opened if work.slices]


def plan_tasks(options: ReadOptions) -> list[Bin | Unopened]:
    """Files that are known to fit into a task go there unopened; of the others the footers are read here."""
    fs = filesystem_for(options.path)
    places = find_places(fs, options.path, options.cold)
    hiding = options.mode != BLOCKS and not options.include_deleted
    rules = places.rules if hiding else {}
    target = options.bin_bytes * (BINS_JOINED if options.mode == KEYS else 1)
    small, slices = [], []
    for place in places.segments:
        if place.size is not None and place.size <= target // 2:
            small.append(place)
        elif (found := _open_slice(fs, place, options.query, rules.get(place.shard))) is not None:
            slices.append(found)
    return [*pack_bins(slices, target), *pack_places(small, rules, target)]


def _open_slice(
    fs: FileSystem, place: SegmentPlace, query: Query, rules: LiveRules | None
) -> SegmentSlice | None:
    header, index = open_index(fs, place)
    return slice_segment(place.path, header.shard, header.number, index, query, rules)


def pack_places(
    places: Iterable[SegmentPlace], rules: Mapping[int, LiveRules], target: int
) -> Iterator[Unopened]:
    by_segment: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for shard, topics in rules.items():
        for topic, rule in topics.items():
            for number in rule.segments:
                by_segment.setdefault((shard, number), []).append(topic)
    held: list[SegmentPlace] = []
    size = 0
    for place in places:
        if held and size + (place.size or 0) > target:
            yield Unopened(tuple(held), _rules_for(held, rules, by_segment))
            held, size = [], 0
        held.append(place)
        size += place.size or 0
    if held:
        yield Unopened(tuple(held), _rules_for(held, rules, by_segment))


def _rules_for(
    places: Iterable[SegmentPlace],
    rules: Mapping[int, LiveRules],
    by_segment: Mapping[tuple[int, int], list[tuple[str, int]]],
) -> dict[int, LiveRules]:
    """What the rules say of these files and of no others: rules of a whole store may be large."""
    numbers: dict[int, set[int]] = {}
    topics: dict[int, set[tuple[str, int]]] = {}
    for place in places:
        if place.shard in rules:
            numbers.setdefault(place.shard, set()).add(place.number)
            topics.setdefault(place.shard, set()).update(by_segment.get((place.shard, place.number), ()))
    return {
        shard: {
            topic: replace(rules[shard][topic], segments=rules[shard][topic].segments & numbers[shard])
            for topic in topics[shard]
        }
        for shard in numbers
    }
