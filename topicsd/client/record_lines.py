"""Lines of text as records of a write, in three forms, and the reverse for what is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

Form = Literal["record", "data", "raw"]

_encoder = msgspec.json.Encoder()


class BadLine(ValueError):
    """Says what is wrong with it; the caller knows which one it is."""


class RecordLine(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A record as it is written, or as `read`, `watch` and `claim` print it: so that topics can be copied by a pipe.

    Anything else in a line is a mistake that the server would ignore in silence.
    """

    data: Raw
    tag: str | None = None
    node: str | None = None
    key: str | None = None
    meta: Raw | UnsetType = UNSET
    deliver_at: int | None = None
    delay_ms: int | None = None
    priority: int | None = None
    group: str | None = None
    read_tag: str | None = msgspec.field(name="$tag", default=None)
    read_node: str | None = msgspec.field(name="$node", default=None)
    read_key: str | None = msgspec.field(name="$key", default=None)
    # Where it came from, which the copy does not keep.
    topic: str | None = msgspec.field(name="$topic", default=None)
    seq: int | None = msgspec.field(name="$seq", default=None)
    ts: int | None = msgspec.field(name="$ts", default=None)
    deliveries: int | None = None
    lease_id: str | None = None
    deadline: int | None = None

    @property
    def was_read(self) -> bool:
        return self.seq is not None or bool(self.read_tag or self.read_node or self.read_key)

    def as_written(self) -> bytes:
        return _encoder.encode(
            RecordLine(
                self.data,
                tag=self.tag or self.read_tag,
                node=self.node or self.read_node,
                key=self.key or self.read_key,
                meta=self.meta,
                deliver_at=self.deliver_at,
                delay_ms=self.delay_ms,
                priority=self.priority,
                group=self.group,
            )
        )


_line_decoder = msgspec.json.Decoder(RecordLine)
_value_decoder = msgspec.json.Decoder()


def _from_record(line: bytes) -> bytes:
    """The line as it is, unless it was read somewhere: `data` must keep its bytes."""
    try:
        _text(line)
        record = _line_decoder.decode(line)
    except msgspec.ValidationError as err:
        raise BadLine(f'{err}; a record looks like {{"data":…,"tag":…}}, or use --data or --raw') from None
    except msgspec.DecodeError as err:
        raise BadLine(f"it is not JSON ({err}); for plain text use --raw") from None
    return record.as_written() if record.was_read else line


def _from_data(line: bytes) -> bytes:
    try:
        _text(line)
        _value_decoder.decode(line)
    except msgspec.DecodeError as err:
        raise BadLine(f"it is not JSON ({err}); for plain text use --raw") from None
    return b'{"data":%b}' % line


def _from_raw(line: bytes) -> bytes:
    return b'{"data":%b}' % _encoder.encode(_text(line))


def _text(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as err:
        raise BadLine(f"it is not UTF-8 ({err.reason} at byte {err.start + 1})") from None


RECORD_OF: dict[Form, Callable[[bytes], bytes]] = {
    "record": _from_record,
    "data": _from_data,
    "raw": _from_raw,
}


class _OnlyData(msgspec.Struct):
    data: Raw


_data_decoder = msgspec.json.Decoder(_OnlyData)


def shown(record: bytes, form: Form) -> bytes:
    """A record that was read, as a line. A string in the form "raw" is its text, whatever that holds."""
    if form == "record":
        return record
    data = bytes(_data_decoder.decode(record).data)
    if form == "raw" and data.startswith(b'"'):
        text: str = _value_decoder.decode(data)
        return text.encode("utf-8", "surrogatepass")
    return data
