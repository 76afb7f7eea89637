"""Makes the start image (`shared/io/start_image.py`) beside the compiled modules, and tells whether it is current."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from shared.io.start_image import StartImage, image_path

PARTS: Final = ("all", "supervisor", "children", "gateway", "worker")


def write_image(directory: Path) -> bool:
    """False: there is none now, because a start does not find its modules where it would look for them."""
    # As a server would start: what somebody's shell adds to the places of modules is not part of the installation.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with tempfile.TemporaryDirectory(prefix="start-", dir=directory) as workshop:
        done = subprocess.run(  # noqa: S603 - nothing in it comes from outside
            [sys.executable, "-P", "-m", "topicsd.record_start", workshop],
            cwd="/",
            env=environment,
            capture_output=True,
        )
        for part in PARTS:
            if done.returncode == 0:
                os.replace(image_path(workshop, part), image_path(str(directory), part))
            else:
                Path(image_path(str(directory), part)).unlink(missing_ok=True)
    return done.returncode == 0


def image_is_current(directory: Path) -> bool:
    for part in PARTS:
        image = StartImage()
        image.open(str(directory), part)
        current = image.is_current()
        image.close()
        if not current:
            return False
    return True
