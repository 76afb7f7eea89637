"""The OpenAPI document says what the router dispatches, and a live server does what the document says.

The fuzz run is derandomized: it sends the same requests every time, and a red run is the change's fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import jsonschema_rs
import pytest
import schemathesis
from schemathesis import HookContext
from schemathesis.checks import load_all_checks
from schemathesis.config import GenerationConfig
from schemathesis.openapi.checks import UndefinedStatusCode

from gateway.full_lane.openapi import OPERATIONS, build_document, openapi_path
from gateway.handlers import all_routes
from shared import errors
from shared.settings import load_settings
from tests.support.live_server import LiveServer
