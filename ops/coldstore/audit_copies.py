"""Router copies against their source, where segments hold both: a second pass, over what was copied from."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping

from ops.coldstore.engines import Engine, Wanted
from ops.coldstore.file_checks import CheckedFile
from ops.coldstore.places import SegmentPlace, filesystem_for
from ops.coldstore.segment_files import open_index
from shared.audit_findings import Finding
from shared.audit_history import TopicKey, TopicNow
from shared.audit_routers import RouterCopies, compare_copies
from shared.cold_plan import Query, SegmentSlice, slice_segment
from shared.errors import CorruptSegment


def check_copies(
    engine: Engine, files: Mapping[tuple[int, int], CheckedFile], topics: Mapping[TopicKey, TopicNow]
) -> list[Finding]:
    groups: dict[tuple[TopicKey, TopicKey], list[RouterCopies]] = {}
    for (_, number), file in sorted(files.items()):
        for copies in file.copies:
            dest = (copies.topic, copies.epoch)
            held = topics.get(dest)
            # A copy that dest holds no longer may be made again, and a segment that was replaced holds it twice.
            if held is not None and number in held.state.segments and (live := _live_part(copies, held)).seqs:
                groups.setdefault((dest, (copies.source, copies.source_epoch)), []).append(live)
    found: list[Finding] = []
    wanted: list[Wanted] = []
    owners: list[tuple[TopicKey, TopicKey]] = []
    for pair, group in groups.items():
        source = topics.get(pair[1])
        if source is None:
            count = sum(len(copies.seqs) for copies in group)
            reason = f"{count} copies of {pair[1][0]} have no source in segments to compare with"
            found.append(
                Finding(kind="router_source_gone", reason=reason, topic=pair[0][0], epoch=pair[0][1])
            )
            continue
        for part in _blocks_of(source, files, group):
            wanted.append(part)
            owners.append(pair)
    hashes: dict[tuple[TopicKey, TopicKey], dict[int, int]] = {}
    for pair, part_hashes in zip(owners, engine.source_hashes(wanted), strict=True):
        hashes.setdefault(pair, {}).update(part_hashes)
    for pair, group in groups.items():
        found += compare_copies(group, hashes.get(pair, {}))
    return found


def _live_part(copies: RouterCopies, held: TopicNow) -> RouterCopies:
    state = held.state
    kept = [place for place, seq in enumerate(copies.seqs) if seq >= state.first and seq not in state.deleted]
    return RouterCopies(
        copies.router,
        copies.source,
        copies.source_epoch,
        copies.topic,
        copies.epoch,
        copies.path,
        copies.offset,
        array("Q", [copies.seqs[place] for place in kept]),
        array("Q", [copies.source_seqs[place] for place in kept]),
        array("Q", [copies.hashes[place] for place in kept]),
    )


def _blocks_of(
    source: TopicNow, files: Mapping[tuple[int, int], CheckedFile], group: list[RouterCopies]
) -> list[Wanted]:
    """The source's blocks that hold what was copied, file by file."""
    seqs = sorted({seq for copies in group for seq in copies.source_seqs})
    query = Query(frozenset({source.state.name}), from_seq=seqs[0], to_seq=seqs[-1])
    found: list[Wanted] = []
    for run in source.runs:
        file = files.get((source.state.shard, run.segment))
        asked = seqs[bisect_left(seqs, run.first) : bisect_right(seqs, run.last)]
        if file is None or not asked:
            continue
        try:
            _, index = open_index(filesystem_for(file.path), SegmentPlace(file.path, file.shard, file.number))
        except (CorruptSegment, OSError):
            continue  # a bad header, reported by the pass before, or dropped since then
        whole = slice_segment(file.path, file.shard, file.number, index, query)
        if whole is None:
            continue
        blocks = tuple(each for each in whole.blocks if each[1].topic_id == run.topic_id)
        found.append(
            (SegmentSlice(file.path, file.shard, file.number, blocks, whole.topics), array("Q", asked))
        )
    return found
