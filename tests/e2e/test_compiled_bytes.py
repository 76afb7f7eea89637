"""What reads and writes single bytes does the same where it is compiled: its tests again, on compiled modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ops.compiled.build import CannotCompile, check_tools

ROOT = Path(__file__).parents[2]
FILES = (
    "tests/property/test_other_topics_props.py",
    "tests/property/test_plain_frames.py",
    "tests/unit/gateway/test_topic_names.py",
    "tests/unit/shared/test_append_frame.py",
    "tests/unit/shared/test_frame_buffers.py",
    "tests/unit/shared/test_packing.py",
    "tests/unit/shared/test_routing.py",
    "tests/unit/shard_worker/test_moved_ends.py",
)
NOT_COMPILED = 99
CODE = f"""
import sys
from shared.io.compiled import use_compiled
if not use_compiled():
    sys.exit({NOT_COMPILED})
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *sys.argv[1:]]))
"""


def test_the_compiled_modules_pass_the_tests_of_their_sources() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TOPICSD_COMPILED": ""}
    environment.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(
        [sys.executable, "-c", CODE, *FILES], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    if done.returncode == NOT_COMPILED:
        try:
            check_tools()
        except CannotCompile as err:
            pytest.skip(f"nothing is compiled here: {err}")
    assert done.returncode != NOT_COMPILED, (
        "hot modules have changed, or do not compile: run `topicsd compile`"
    )
    assert done.returncode == 0, done.stdout + done.stderr
