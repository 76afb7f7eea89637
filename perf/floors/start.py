"""A process that loads the libraries of the product and nothing of the product. A yardstick for how soon it can be up.

python -m perf.floors.start PORT
"""

from __future__ import annotations

import sys

import cbor2  # noqa: F401
import httptools  # noqa: F401
import msgspec  # noqa: F401
import trio  # noqa: F401
import xxhash  # noqa: F401

from perf.floors.answers import write_answer
from perf.floors.gateway import answer_alone, listen

if __name__ == "__main__":
    answer_alone(listen(int(sys.argv[1])), write_answer(1), hold=1)
