"""Frames: round trips, chunking, damage, garbage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from shared.format_errors import NewerVersion
from shared.frame import (
    FRAME_MAGIC,
    FRAME_MAX_BYTES,
    BadFrame,
    Blank,
    Frame,
    Kind,
    NeedMore,
    build_frame,
    decode_frame,
)
from shared.frame_scan import End, Stop, Torn, find_valid_frame, is_blank, scan_frames
from tests.support.format_samples import U64, every_flip, flip, pread_of

BASE = 5 << 32
KINDS = st.sampled_from([kind for kind in Kind if kind != Kind.FILE_END])
BODIES = st.one_of(st.binary(max_size=200), st.just(b"x" * 20_000), st.just(FRAME_MAGIC * 30))


@st.composite
def frame_streams(draw: st.DrawFn) -> list[bytes]:
    frames = []
    at = 64
    for _ in range(draw(st.integers(0, 6))):
        frames.append(build_frame(draw(KINDS), draw(st.integers(0, 65535)), BASE + at, 9, 77, draw(BODIES)))
        at += len(frames[-1])
    return frames


def scan(content: bytes, chunk_bytes: int = 4 << 20) -> tuple[list[tuple[object, ...]], Stop]:
    *frames, stop = scan_frames(pread_of(content), 64, len(content), BASE, chunk_bytes)
    assert isinstance(stop, Stop)
    return [(*frame[:5], bytes(frame.body), frame.end) for frame in frames if isinstance(frame, Frame)], stop


def resealed(frame: bytes, at: int, value: int) -> bytes:
    """The frame with one byte changed and the checksum made right again."""
    changed = bytearray(frame[:-8])
    changed[at] = value
    return bytes(changed) + xxh3_64_intdigest(changed).to_bytes(8, "little")


@given(KINDS, st.integers(0, 65535), U64, U64, U64, st.lists(BODIES, max_size=4))
def test_a_frame_decodes_to_what_was_built(
    kind: Kind, flags: int, lsn: int, topic_id: int, ts_ms: int, parts: list[bytes]
) -> None:
    frame = build_frame(kind, flags, lsn, topic_id, ts_ms, parts)
    assert frame == build_frame(kind, flags, lsn, topic_id, ts_ms, b"".join(parts))
    found = decode_frame(memoryview(b"??" + frame + b"!"), 2, lsn, 100)
    assert isinstance(found, Frame)
    assert found[:5] == (kind, flags, lsn, topic_id, ts_ms)
    assert bytes(found.body) == b"".join(parts)
    assert found.end == 102 + len(frame)


@given(frame_streams(), st.integers(4, 300), st.sampled_from([b"", bytes(20), bytes(500), b"junk" * 30]))
def test_every_chunk_size_scans_alike(frames: list[bytes], chunk_bytes: int, tail: bytes) -> None:
    content = bytes(64) + b"".join(frames) + tail
    found = scan(content, chunk_bytes)
    assert found == scan(content)
    assert len(found[0]) == len(frames)
    assert found[1].offset == len(content) - len(tail)
    expected = Torn if b"j" in tail else Blank if tail else End
    assert isinstance(found[1].verdict, expected)


@given(frame_streams().filter(bool), st.data())
def test_a_cut_stream_keeps_its_whole_frames(frames: list[bytes], data: st.DataObject) -> None:
    content = bytes(64) + b"".join(frames)
    cut = data.draw(st.integers(64, len(content) - 1))
    found, stop = scan(content[:cut], data.draw(st.integers(4, 200)))
    whole = [end for *_, end in scan(content)[0] if isinstance(end, int) and end <= cut]
    assert [row[-1] for row in found] == whole
    assert stop.offset == (whole[-1] if whole else 64)
    assert isinstance(stop.verdict, End if stop.offset == cut else Torn)


def test_any_flipped_bit_of_a_small_frame_is_refused() -> None:
    frame = build_frame(Kind.APPEND, 3, BASE + 64, 9, 77, b"the body")
    assert isinstance(decode_frame(memoryview(frame), 0, BASE + 64), Frame)
    for damaged in every_flip(frame):
        assert isinstance(decode_frame(memoryview(damaged), 0, BASE + 64), BadFrame | NeedMore)


@given(BODIES, st.data())
def test_any_flipped_bit_of_a_frame_is_refused(body: bytes, data: st.DataObject) -> None:
    frame = build_frame(Kind.APPEND, 3, BASE + 64, 9, 77, body)
    damaged = flip(frame, data.draw(st.integers(0, len(frame) * 8 - 1)))
    assert not isinstance(decode_frame(memoryview(damaged), 0, BASE + 64), Frame)


@given(U64, U64)
def test_w17_a_frame_at_another_place_is_refused(lsn: int, place: int) -> None:
    frame = memoryview(build_frame(Kind.APPEND, 0, lsn, 9, 77, b"body"))
    assert isinstance(decode_frame(frame, 0, place), Frame if lsn == place else BadFrame)


@pytest.mark.parametrize(("at", "value"), [(9, 2), (9, 255), (8, 99), (8, 200), (8, 255)])
def test_w22_an_intact_frame_of_a_newer_writer_is_refused_by_name(at: int, value: int) -> None:
    frame = resealed(build_frame(Kind.APPEND, 0, BASE + 64, 9, 77, b"body"), at, value)
    with pytest.raises(NewerVersion) as caught:
        decode_frame(memoryview(frame), 0, BASE + 64)
    assert caught.value.found == value
    assert find_valid_frame(pread_of(bytes(64) + frame), 0, 64 + len(frame), BASE) == 64


@pytest.mark.parametrize("length", [0, 1, 47, FRAME_MAX_BYTES + 1, 2**32 - 1])
def test_w08_a_garbage_length_is_refused_without_reading_on(length: int) -> None:
    frame = bytearray(build_frame(Kind.APPEND, 0, BASE + 64, 9, 77, b"body"))
    frame[4:8] = length.to_bytes(4, "little")
    assert isinstance(decode_frame(memoryview(frame), 0, BASE + 64), BadFrame)


def test_a_plausible_length_beyond_the_end_is_torn_without_reading_that_much() -> None:
    frame = bytearray(build_frame(Kind.APPEND, 0, BASE + 64, 9, 77, b"body"))
    frame[4:8] = FRAME_MAX_BYTES.to_bytes(4, "little")
    asked = []

    def pread(length: int, offset: int) -> bytes:
        asked.append(length)
        return (bytes(64) + frame)[offset : offset + length]

    (stop,) = scan_frames(pread, 64, 64 + len(frame), BASE)
    assert isinstance(stop, Stop) and isinstance(stop.verdict, Torn)
    assert max(asked) <= len(frame)


@given(st.binary(max_size=300), st.integers(4, 100))
def test_garbage_is_a_verdict_and_never_an_error(garbage: bytes, chunk_bytes: int) -> None:
    found, stop = scan(bytes(64) + garbage, chunk_bytes)
    assert found == []
    assert stop.offset == 64
    assert isinstance(stop.verdict, Torn if garbage.strip(b"\0") else Blank if garbage else End) or (
        # Zeros for as long as a frame header, then garbage: blank at this place.
        isinstance(stop.verdict, Blank) and not garbage[:48].strip(b"\0")
    )


@given(frame_streams().filter(bool), BODIES, st.integers(4, 300))
def test_a_valid_frame_is_found_behind_damage(frames: list[bytes], junk: bytes, chunk_bytes: int) -> None:
    # The junk may be full of magics, but none of them stands where its lsn says.
    shifted = []
    at = 64 + len(junk)
    for frame in frames:
        found = decode_frame(memoryview(frame), 0, int.from_bytes(frame[16:24], "little"))
        assert isinstance(found, Frame)
        shifted.append(build_frame(found.kind, found.flags, BASE + at, 9, 77, bytes(found.body)))
        at += len(shifted[-1])
    content = bytes(64) + junk + b"".join(shifted)
    found_at = find_valid_frame(pread_of(content), 64, len(content), BASE, chunk_bytes)
    assert found_at == 64 + len(junk)
    padded = content + bytes(500)
    at_zeros = len(content)
    assert find_valid_frame(pread_of(padded), 64, len(padded), BASE, chunk_bytes, at_zeros) == found_at
    # Only where a frame begins matters: it may end in zeros of its own.
    assert find_valid_frame(pread_of(padded), 64, len(padded), BASE, chunk_bytes, found_at + 4) == found_at
    assert find_valid_frame(pread_of(padded), 64, len(padded), BASE, chunk_bytes, found_at) is None
    nothing = bytes(64) + junk + shifted[0][:-1]
    assert find_valid_frame(pread_of(nothing), 64, len(nothing), BASE, chunk_bytes) is None


def test_scanning_ends_at_the_end_of_file_frame() -> None:
    end = build_frame(Kind.FILE_END, 0, BASE + 64, 0, 77, b"")
    content = bytes(64) + end + bytes(4096)
    *frames, stop = scan_frames(pread_of(content), 64, len(content), BASE)
    assert len(frames) == 1
    assert stop == Stop(64 + len(end), End())


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 9))
def test_blank_means_nothing_but_zeros(before: int, behind: int, chunk_bytes: int) -> None:
    content = bytes(before) + b"\1" + bytes(behind)
    assert is_blank(pread_of(content), 0, before, chunk_bytes)
    assert not is_blank(pread_of(content), 0, before + 1, chunk_bytes)
    assert is_blank(pread_of(content), before + 1, len(content), chunk_bytes)


def test_a_frame_above_the_limit_is_not_built() -> None:
    with pytest.raises(ValueError, match="exceeds"):
        build_frame(Kind.APPEND, 0, 0, 0, 0, [memoryview(bytes(FRAME_MAX_BYTES))])
