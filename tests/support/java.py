"""A Java runtime for the Spark tests: looked for by `make test`, installed from Debian's archive if we are root.

python -m tests.support.java
"""

from __future__ import annotations

import os
import shutil
import subprocess

from ops.coldstore.spark_session import CannotRun, check_java

PACKAGES = ("openjdk-17-jre-headless", "default-jre-headless")


def ensure() -> None:
    """Returns if Java 17 or newer is there, perhaps only now; SystemExit with what to install otherwise."""
    try:
        check_java()
        return
    except CannotRun as err:
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise SystemExit(str(err)) from err
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], check=True, env=quiet)
    for package in PACKAGES:
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
        if subprocess.run(command, env=quiet).returncode == 0:
            break
    try:
        check_java()
    except CannotRun as err:
        raise SystemExit(str(err)) from err


if __name__ == "__main__":
    ensure()
