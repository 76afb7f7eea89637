from __future__ import annotations

from shared import limits


def test_the_largest_body_fits_a_link_frame_with_room_for_what_records_gain() -> None:
    # "$seq", "$ts" and a column entry per record of the largest batch a setting allows.
    assert limits.MAX_BODY_BYTES_CEILING + 100_000 * 128 <= limits.LINK_MAX_FRAME_BYTES


def test_a_full_read_fits_a_link_frame() -> None:
    assert limits.READ_DEFAULT_BYTES <= limits.READ_MAX_BYTES < limits.LINK_MAX_FRAME_BYTES


def test_defaults_do_not_exceed_their_maxima() -> None:
    assert limits.PAGE_SIZE_DEFAULT <= limits.PAGE_SIZE_MAX
    assert limits.SEQ_RESERVE_MIN <= limits.SEQ_RESERVE_MAX
