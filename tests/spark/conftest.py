"""One Spark session for all tests here: starting one takes as long as all of them together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from ops.coldstore.spark_session import open_session

    session = open_session("local[2,2]", app_name="tests")
    yield session
    session.stop()
