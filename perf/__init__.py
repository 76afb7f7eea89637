"""Benches. They measure what a server runs: compiled modules if this installation has them (`make compiled`)."""

from shared.io.compiled import use_compiled

COMPILED = use_compiled()
