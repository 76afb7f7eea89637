"""Numbers come out as `struct` packs them, to the largest that fit."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from shared.packing import put_u32, put_u64, put_u64_be


@given(st.lists(st.integers(0, 2**32 - 1)))
@example([0, 2**31 - 1, 2**31, 2**32 - 1])
def test_numbers_of_32_bits(numbers: list[int]) -> None:
    writer = BytesWriter()
    for number in numbers:
        put_u32(writer, number)
    assert writer.getvalue() == pack(f"<{len(numbers)}I", *numbers)


@given(st.lists(st.integers(0, 2**64 - 1)))
@example([0, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1])
def test_numbers_of_64_bits(numbers: list[int]) -> None:
    little, big = BytesWriter(), BytesWriter()
    for number in numbers:
        put_u64(little, number)
        put_u64_be(big, number)
    assert little.getvalue() == pack(f"<{len(numbers)}Q", *numbers)
    assert big.getvalue() == pack(f">{len(numbers)}Q", *numbers)


@pytest.mark.parametrize("number", [2**64, -1, -(2**63), -(2**70)])
def test_what_does_not_fit_is_refused(number: int) -> None:
    with pytest.raises(OverflowError):
        put_u32(BytesWriter(), min(number, 2**32))
    with pytest.raises(OverflowError):
        put_u64(BytesWriter(), number)
    with pytest.raises(OverflowError):
        put_u64_be(BytesWriter(), number)
