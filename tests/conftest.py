"""Hypothesis profiles. `ci` is in force by default; `--hypothesis-profile=exhaustive` replaces it."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Derandomized: a red run must mean that the change is at fault, not the seed.
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=60, stateful_step_count=30)
settings.register_profile(
    "exhaustive",
    deadline=None,
    max_examples=2000,
    stateful_step_count=80,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("ci")
