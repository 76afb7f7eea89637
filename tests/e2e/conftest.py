"""One server for all tests that need no settings of their own, and a client for either lane.

Tests share it, so each works on topics of its own (`tests.support.api_client.fresh`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.api_client import LANES, ApiClient
from tests.support.live_server import LiveServer


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("shared") / "data", shards=3) as running:
        yield running.wait_serving()
        # Whatever the tests did to it, it was in good health all the time and stops as it should.
        assert running.failures() == []
        assert running.stop() == 0


@pytest.fixture(scope="session", params=LANES)
def client(server: LiveServer, request: pytest.FixtureRequest) -> Iterator[ApiClient]:
    with server.client(request.param) as connected:
        yield connected


@pytest.fixture(scope="session")
def plain_client(server: LiveServer) -> Iterator[ApiClient]:
    """For tests in which the lane makes no difference."""
    with server.client() as connected:
        yield connected
