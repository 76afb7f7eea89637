"""A Spark session for our jobs: prerequisites checked first, our code shipped to wherever the tasks run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Final

JAVA_WANTED: Final = 17
HOW_TO_GET_JAVA: Final = (
    "Spark needs Java 17 or newer. Debian, Ubuntu: sudo apt install openjdk-17-jre-headless   "
    "(elsewhere: any JRE of version 17 or newer, found through JAVA_HOME or PATH)"
)
HOW_TO_GET_SPARK: Final = (
    "Spark is not installed in this environment. Install it with: pip install 'topicsd[spark]'"
)
SHIPPED: Final = ("shared", "ops")
_DRIVER_HEAP: Final = "1g"


class CannotRun(Exception):
    """A prerequisite is missing; the message says which and how to get it."""


def check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        where = f"JAVA_HOME is {home}, but there is no {java}" if home else "there is no java on the PATH"
        raise CannotRun(f"{where}. {HOW_TO_GET_JAVA}")
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603
    found = re.search(r'version "(\d+)(?:\.(\d+))?', told)
    major = 0 if found is None else int(found[1]) if found[1] != "1" else int(found[2] or 0)
    if major < JAVA_WANTED:
        raise CannotRun(
            f"{java} is {told.splitlines()[0] if told else 'of an unknown version'}. {HOW_TO_GET_JAVA}"
        )


def check_python() -> None:
    """The tasks' Python must have our dependencies. Ours has them, so it is the default."""
    chosen = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if shutil.which(chosen) is None:
        raise CannotRun(
            f"PYSPARK_PYTHON is {chosen}, which cannot be run. Unset it to use {sys.executable}, or name a Python "
            "with topicsd[spark] installed that exists on every worker"
        )
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as err:
        raise CannotRun(HOW_TO_GET_SPARK) from err


def zip_code(target: str) -> None:
    """Our pure Python in the form in which Spark takes it: a .zip (it does not accept wheels)."""
    root = Path(__file__).parents[2]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in SHIPPED:
            for path in sorted((root / package).rglob("*.py")):
                archive.write(path, path.relative_to(root))


def open_session(
    master: str, *, app_name: str = "topicsd cold", heap: str = _DRIVER_HEAP, **conf: str
) -> Any:
    """A new session on `master` (`local[2]`, `spark://host:7077`, …), our data source registered. CannotRun if not."""
    check_java()
    check_python()
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from ops.coldstore.source import TopicsDataSource

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": heap,
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        **{name.replace("_", "."): value for name, value in conf.items()},
    }
    if master.startswith("local"):
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = "127.0.0.1"
        # Its workers import from here, whatever the current directory is. On a cluster the code comes as a zip.
        settings["spark.executorEnv.PYTHONPATH"] = str(Path(__file__).parents[2])
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except (PySparkException, OSError, RuntimeError) as err:
        raise CannotRun(f"no Spark session on {master}: {err}") from err
    spark.sparkContext.setLogLevel("ERROR")
    if not master.startswith("local"):
        directory = tempfile.mkdtemp(prefix="topicsd-spark-")
        zip_code(f"{directory}/topicsd_code.zip")
        spark.sparkContext.addPyFile(f"{directory}/topicsd_code.zip")
    spark.dataSource.register(TopicsDataSource)
    return spark
