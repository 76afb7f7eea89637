"""Transport-neutral handlers, called by both lanes. The routes of all of them are the API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.core.router import Route
from gateway.handlers import admin, queues, records, routers, topics, watch

if TYPE_CHECKING:
    from gateway.service import Handler


def all_routes() -> list[Route[Handler]]:
    return [
        *topics.ROUTES,
        *records.ROUTES,
        *queues.ROUTES,
        *routers.ROUTES,
        *watch.ROUTES,
        *admin.ROUTES,
    ]
