from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.fast_lane.topic_names import topic_name_end
from shared.names import TOPIC_NAME, TOPIC_NAME_MAX_CHARS, valid_topic_name

name_like = st.text(st.sampled_from("aZ09._:-"), max_size=6).map(str.encode)


@given(
    st.binary(max_size=3), name_like | st.binary(max_size=6), st.sampled_from([b"", b" ", b"/", b"a" * 300])
)
def test_a_name_among_other_bytes_ends_where_the_grammar_ends_it(
    before: bytes, name: bytes, behind: bytes
) -> None:
    found = TOPIC_NAME.match((name + behind).decode("latin-1"))
    length = 0 if found is None else found.end()
    assert topic_name_end(before + name + behind, len(before)) == len(before) + length


def test_the_longest_name_ends_before_what_is_too_much() -> None:
    assert topic_name_end(b"x" * 300, 0) == TOPIC_NAME_MAX_CHARS
    assert valid_topic_name("x" * TOPIC_NAME_MAX_CHARS)
    assert not valid_topic_name("x" * (TOPIC_NAME_MAX_CHARS + 1))
    assert topic_name_end(b"", 0) == 0
