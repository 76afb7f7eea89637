"""What the compiler is told about where code lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.compiled import layout

HEADER = """#ifndef GUARD
#if X
#endif
extern PyObject *CPyDef_gateway___api___Api___handle(PyObject *cpy_r_self);
extern PyObject *CPyPy_gateway___api___Api___handle(PyObject *self, PyObject *const *args);
extern char CPyDef_gateway___api____private(void);
extern char CPyDef_gateway___api___rare(void);
#endif
"""


@pytest.mark.parametrize(
    ("c_name", "name"),
    [
        ("CPyDef_gateway___fast_lane___head___parse_method", "gateway.fast_lane.head.parse_method"),
        ("CPyPy_shared___wire___Answer", "shared.wire.Answer"),
        ("CPyDef_gateway___service___Api____settle", "gateway.service.Api._settle"),
        ("CPyDef_shared___wire___Answer_____init__", "shared.wire.Answer.__init__"),
    ],
)
def test_functions_are_listed_by_their_names_in_python(c_name: str, name: str) -> None:
    assert layout.listed(c_name) == name


def test_listed_functions_and_the_ways_out_of_errors_are_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = tmp_path / "names"
    names.write_text("gateway.api.Api.handle\ngateway.api._private\ngateway.api.absent\n")
    monkeypatch.setattr(layout, "HOT_FUNCTIONS", names)
    header = tmp_path / "__native_internal_gateway.h"
    header.write_text(HEADER)
    layout.arrange(tmp_path)
    before, after = HEADER.rsplit("#endif", 1)
    text = header.read_text()
    assert text.startswith(before) and text.endswith("#endif" + after)
    added = text[len(before) : -len("#endif" + after)].splitlines()
    hot = [line for line in added if line.endswith("__attribute__((hot));")]
    assert [line.split()[2] for line in hot] == [
        "CPyDef_gateway___api___Api___handle",
        "CPyDef_gateway___api____private",
        "CPyPy_gateway___api___Api___handle",
    ]
    cold = [line for line in added if line.endswith("__attribute__((cold));")]
    assert "CPy_AddTraceback" in {line.split()[2] for line in cold}
    assert len(hot) + len(cold) == len(added)


def test_defined_names_methods_and_functions() -> None:
    names = set(layout.defined())
    assert {"shared.wire.Answer", "shared.wire.encode_answers", "shared.session.FrameSplitter.find"} <= names
