"""Compressed parts of segment files, with a bound on what decompression may allocate."""

from collections.abc import Callable

import zstandard

from shared.format_errors import BadBytes

LEVEL = 1
# A context takes longer to make than a block's columns to unpack. They must not be shared between threads, so
# whoever needs one takes it out of this list, which is one step, and puts it back.
_idle: list[zstandard.ZstdDecompressor] = []


def compressor() -> Callable[[bytes], bytes]:
    """For many parts in a row. Not to be shared between threads: it keeps its tables from one part to the next."""
    return zstandard.ZstdCompressor(level=LEVEL).compress


def compress(raw: bytes) -> bytes:
    return compressor()(raw)


def decompress(stored: bytes | memoryview, raw_len: int) -> bytes:
    """Exactly `raw_len` bytes, or BadBytes before anything of another size is allocated."""
    if raw_size(stored) != raw_len:
        raise BadBytes(f"a zstd frame of other than {raw_len} bytes")
    try:
        context = _idle.pop()
    except IndexError:
        context = zstandard.ZstdDecompressor()
    try:
        raw = context.decompress(stored, allow_extra_data=False)
    except zstandard.ZstdError as err:
        raise BadBytes(f"zstd: {err}") from err
    finally:
        _idle.append(context)
    if len(raw) != raw_len:
        raise BadBytes(f"zstd gives {len(raw)} bytes of {raw_len}")
    return raw


def raw_size(stored: bytes | memoryview) -> int:
    """What the zstd frame says about itself; huge if it does not say."""
    try:
        return zstandard.get_frame_parameters(stored).content_size
    except zstandard.ZstdError as err:
        raise BadBytes(f"zstd: {err}") from err
