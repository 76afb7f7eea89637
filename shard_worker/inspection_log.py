"""The frames of the log, as rows for people."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from shard_worker.disk.wal import Wal
from shared.control_frames import FileEnded, TopicDeleted, decode_control
from shared.errors import InvalidRequest
from shared.file_header import FILE_HEADER_BYTES
from shared.format_errors import FormatError
from shared.frame import (
    FRAME_HEADER_BYTES,
    FRAME_MAX_BYTES,
    FRAME_MIN_BYTES,
    BadFrame,
    Frame,
    Kind,
    decode_frame,
)
from shared.frame_scan import find_valid_frame
from shared.io.durable_fs import File
from shared.limits import INSPECT_MAX_BYTES
from shared.snapshot_items import decode_topic
from shared.wal_format import APPEND_HEADER_BYTES, JSON_OFFSET, lsn_of, split_lsn

Row = dict[str, object]
NameOf = Callable[[int], str]

_header = Struct("<4sIBBHIQQQ").unpack_from
_append = Struct("<QI").unpack_from
_LIST_SHOWN = 8


def lsn_text(lsn: int) -> str:
    number, offset = split_lsn(lsn)
    return f"{number}:{offset}"


def lsn_from_text(text: str) -> int:
    """`file:offset`, or the plain number."""
    number, colon, offset = text.partition(":")
    try:
        return lsn_of(int(number), int(offset)) if colon else int(number)
    except ValueError:
        raise InvalidRequest(f"{text!r} is no position in the log: file:offset is, as in 3:64") from None


def list_frames(wal: Wal, name_of: NameOf, start: str, limit: int) -> tuple[list[Row], str | None]:
    """The frames at and behind `start` ("": all), at most `limit`, and where the next page begins."""
    if not wal.files:
        return [], None
    position = lsn_from_text(start) if start else 0
    position = max(position, lsn_of(min(wal.files), FILE_HEADER_BYTES))
    rows: list[Row] = []
    read = 0
    while position < wal.written:
        if len(rows) >= limit or read >= INSPECT_MAX_BYTES:
            return rows, lsn_text(position)
        number, offset = split_lsn(position)
        file = wal.files.get(number)
        if file is None:
            later = min((at for at in wal.files if at > number), default=None)
            rows.append(
                {"lsn": lsn_text(position), "kind": "?", "bytes": 0, "damage": "this log file is missing"}
            )
            if later is None:
                break
            position = lsn_of(later, FILE_HEADER_BYTES)
            continue
        end = split_lsn(wal.written)[1] if number == split_lsn(wal.written)[0] else file.size()
        row, following = _frame_row(file, number, max(offset, FILE_HEADER_BYTES), end, name_of)
        rows.append(row)
        read += FRAME_MIN_BYTES + int(str(row["bytes"]))
        position = lsn_of(number + 1, FILE_HEADER_BYTES) if following is None else lsn_of(number, following)
    return rows, None


def _frame_row(file: File, number: int, offset: int, end: int, name_of: NameOf) -> tuple[Row, int | None]:
    """The frame at `offset`, and where the next one is (None: in the next file)."""
    lsn = lsn_of(number, offset)
    head = file.pread(JSON_OFFSET, offset)
    length = _header(head)[1] if len(head) >= FRAME_HEADER_BYTES else 0
    if not FRAME_MIN_BYTES <= length <= min(FRAME_MAX_BYTES, end - offset) or _header(head)[6] != lsn:
        return _bad_row(file, number, offset, end, "no frame is here")
    if length > INSPECT_MAX_BYTES:
        # Too much to be read in a worker's turn: by its head alone.
        return _row_of_head(head, lsn, length, name_of), offset + length
    try:
        frame = decode_frame(memoryview(file.pread(length, offset)), 0, lsn)
        if not isinstance(frame, Frame):
            reason = frame.reason if isinstance(frame, BadFrame) else "no frame is here"
            return _bad_row(file, number, offset, end, reason)
    except FormatError as err:
        return _bad_row(file, number, offset, end, str(err))
    row = _row_of_head(head, lsn, length, name_of)
    if frame.kind != Kind.APPEND:
        row["detail"] = _detail(frame)
    return row, None if frame.kind == Kind.FILE_END else offset + length


def _row_of_head(head: bytes, lsn: int, length: int, name_of: NameOf) -> Row:
    _, _, kind, _, _, _, _, topic_id, ts_ms = _header(head)
    row: Row = {"lsn": lsn_text(lsn), "kind": Kind(kind).name, "bytes": length, "ts": ts_ms}
    if topic_id:
        row["topic"] = name_of(topic_id)
    if kind == Kind.APPEND and len(head) >= FRAME_HEADER_BYTES + APPEND_HEADER_BYTES:
        first, count = _append(head, FRAME_HEADER_BYTES)
        row |= {"first_seq": first, "last_seq": first + count - 1}
    return row


def _bad_row(file: File, number: int, offset: int, end: int, reason: str) -> tuple[Row, int | None]:
    later = find_valid_frame(file.pread, offset + 1, end, lsn_of(number, 0))
    size = (end if later is None else later) - offset
    return {"lsn": lsn_text(lsn_of(number, offset)), "kind": "?", "bytes": size, "damage": reason}, later


def _detail(frame: Frame) -> Row:
    try:
        if frame.kind == Kind.TOPIC_IMPORT:
            return {"name": decode_topic(frame).name}
        control = decode_control(frame)
    except FormatError as err:
        return {"unreadable": str(err)}  # the frame is intact: what it says is for those who know its kind
    fields = {} if isinstance(control, TopicDeleted | FileEnded) else control.to_map()
    return {name: _short(name, value) for name, value in fields.items()}


def _short(name: str, value: object) -> object:
    if isinstance(value, list) and len(value) > _LIST_SHOWN:
        return [*value[:_LIST_SHOWN], f"… {len(value)} in all"]
    return lsn_text(value) if name == "lsn" and isinstance(value, int) else value
