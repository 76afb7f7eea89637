"""One Spark session for all tests here: starting one takes as long as all of them together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from ops.coldstore.spark_session import open_session

    # Queries here are tiny: compiling them well costs more than running them badly.
    quick = {"spark_driver_extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    quick["spark_sql_shuffle_partitions"] = "1"
    session = open_session("local[2,2]", app_name="tests", **quick)
    yield session
    session.stop()
