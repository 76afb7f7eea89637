"""Compiles the hot modules with mypyc and puts them where `shared.io.compiled` looks for them.

Everything is built in a temporary directory and moved into place at the end, so a build that fails or is stopped
leaves what was there before.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ops.compiled import layout
from ops.compiled.hot_modules import GROUPS
from ops.compiled.image import write_image
from shared.io.compiled import PACKAGE, SWITCH, source_digest, source_path

_ROOT: Final = Path(__file__).resolve().parents[2]
_CONFIG: Final = """[mypy]
python_version = {python}
mypy_path = {root}
ignore_missing_imports = true
follow_untyped_imports = true
"""
# Run in a process of its own: setuptools and mypyc both take the current directory for their workshop.
_SETUP: Final = """
from pathlib import Path
from mypyc.build import mypycify
from ops.compiled.layout import FLAGS, arrange
from setuptools import setup
groups = {groups!r}
files = [file for group, _ in groups for file in group]
modules = mypycify(
    ["--config-file=mypy.ini", *files], separate=groups, opt_level="1", debug_level="0", target_dir="c"
)
arrange(Path("c"))
for module in modules:
    module.extra_compile_args += FLAGS
setup(
    name="hot-modules",
    packages=[],
    ext_modules=modules,
    script_args=["--quiet", "build_ext", "--build-lib=lib", "--build-temp=temp", "--parallel={jobs}"],
)
"""


class CannotCompile(Exception):
    """With what to do about it."""


def target_directory() -> Path:
    return Path(sysconfig.get_path("purelib")) / PACKAGE


def up_to_date() -> bool:
    """Are compiled modules there, of this Python, this list and these sources?"""
    table = target_directory() / "__init__.py"
    try:
        return table.read_text() == _table(target_directory(), _digests())
    except FileNotFoundError:
        return False


def check_tools() -> None:
    for package in ("mypyc", "setuptools"):
        if find_spec(package) is None:
            raise CannotCompile(f"{package} is missing: pip install 'topicsd[compile]'")
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        raise CannotCompile(f"there is no C compiler ({compiler}). Debian, Ubuntu: sudo apt install gcc")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise CannotCompile("Python's C headers are missing. Debian, Ubuntu: sudo apt install python3-dev")


def build(jobs: int) -> Path:
    """Compile and install. Returns the directory of the compiled modules."""
    check_tools()
    target = target_directory()
    digests = _digests()  # of what is compiled: who edits a module meanwhile has it compiled again
    with tempfile.TemporaryDirectory(prefix="topicsd-compile-") as workshop:
        _compile(Path(workshop), jobs)
        new = Path(tempfile.mkdtemp(prefix=f"{PACKAGE}-", dir=target.parent))
        try:
            for file in sorted(Path(workshop, "lib").rglob("*.so")):
                name = ".".join(file.relative_to(Path(workshop, "lib")).parts)
                shutil.move(file, new / name)
            (new / "__init__.py").write_text(_table(new, digests))
            new.chmod(0o755)
            shutil.rmtree(target, ignore_errors=True)
            new.rename(target)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
    try:
        _check_imports()
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    write_image(target)
    return target


def _check_imports() -> None:
    """What does not even load (a class that may not be derived from, say) must not keep a server from starting."""
    modules = [module for group in GROUPS.values() for module in group]
    code = f"from shared.io.compiled import use_compiled; assert use_compiled(); import {', '.join(modules)}"
    done = subprocess.run(  # noqa: S603 - nothing in it comes from outside
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(_ROOT), SWITCH: ""},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise CannotCompile("what was compiled does not load:\n" + done.stderr.strip())


def _compile(workshop: Path, jobs: int) -> None:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    (workshop / "mypy.ini").write_text(_CONFIG.format(python=python, root=_ROOT))
    groups = [([source_path(module) for module in modules], name) for name, modules in GROUPS.items()]
    (workshop / "setup.py").write_text(_SETUP.format(groups=groups, jobs=jobs))
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    done = subprocess.run(
        [sys.executable, "-P", "setup.py"], cwd=workshop, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        told = (done.stdout + done.stderr).strip().splitlines()[-20:]
        raise CannotCompile("the compiler failed:\n" + "\n".join(told))


def _digests() -> dict[str, str | None]:
    return {module: source_digest(module) for modules in GROUPS.values() for module in modules}


def _table(directory: Path, sources: dict[str, str | None]) -> str:
    """The module that tells what is in `directory`, and of which sources it was made."""
    files = {file.name.partition(".cpython-")[0]: file.name for file in sorted(directory.glob("*.so"))}
    lines = [f'"""Written by `topicsd compile` for {sys.implementation.cache_tag}."""', ""]
    lines += [f"LAYOUT = {layout.digest()!r}"]
    for name, table in (("SOURCES", sources), ("FILES", files)):
        lines += [f"{name} = {{", *(f"    {key!r}: {value!r}," for key, value in table.items()), "}"]
    return "\n".join(lines) + "\n"
