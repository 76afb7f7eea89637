"""Where compiled code lies: what requests run through stands together, what only errors run through stands apart.

After a pause a lone request takes several times as long as one that follows another closely, and the less its code is
scattered, the less so (docs/decisions/0020). mypyc puts the ways out of every possible error between the steps of a
function, and functions in the order of their sources: what a request needs is strewn over megabytes.

The compiler is told about both by attributes, at the end of the header that declares all functions of a group: `cold`
for what is called on the way out of an error, so that whatever leads there is moved away; `hot` for the functions in
`hot_functions.txt`, which get a section of their own. That list is measured (`python -m perf.hot_functions`), by
Python's names; whoever is not in it runs as well, from further away.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ops.compiled.hot_modules import GROUPS
from shared.io.compiled import source_path

HOT_FUNCTIONS: Final = Path(__file__).with_name("hot_functions.txt")
FLAGS: Final = ("-freorder-blocks-and-partition", "-freorder-functions")  # gcc does neither at -O1

_COLD: Final = ("CPy_AddTraceback", "CPy_TypeErrorTraceback", "CPy_AttributeError", "CPy_DecRef")
_PREFIXES: Final = ("CPyDef_", "CPyPy_")  # of a function, and of what takes Python's arguments apart for it
_DECLARED: Final = re.compile(r"\b(CPy\w+)\(")
_END: Final = "#endif"


def listed(c_name: str) -> str:
    """How a function is called in the list: `gateway.api.Api.handle` for `CPyDef_gateway___api___Api___handle`."""
    for prefix in _PREFIXES:
        c_name = c_name.removeprefix(prefix)
    return c_name.replace("___", ".")


def digest() -> str:
    """Of everything that decides where code lies."""
    return hashlib.sha256(HOT_FUNCTIONS.read_bytes() + Path(__file__).read_bytes()).hexdigest()


def defined() -> Iterator[str]:
    """The functions, classes and methods of all modules that are compiled, by the names of the list."""
    for module in (module for modules in GROUPS.values() for module in modules):
        for node in ast.parse(Path(source_path(module)).read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{module}.{node.name}"
            if isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                        yield f"{module}.{node.name}.{inner.name}"


def arrange(directory: Path) -> None:
    """Tell the compiler, in the headers that mypyc has written there."""
    hot = set(HOT_FUNCTIONS.read_text().split())
    for header in directory.glob("__native_internal_*.h"):
        text, end, rest = header.read_text().rpartition(_END)
        names = sorted(name for name in set(_DECLARED.findall(text)) if listed(name) in hot)
        lines = [_attributed(name, "cold") for name in _COLD] + [_attributed(name, "hot") for name in names]
        header.write_text(text + "".join(lines) + end + rest)


def _attributed(name: str, attribute: str) -> str:
    return f"extern __typeof__({name}) {name} __attribute__(({attribute}));\n"
