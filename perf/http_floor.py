"""What a comfortable stack does with the same requests: a Quart route on Hypercorn's trio worker.

    python -m perf.http_floor PORT

It reads the body and answers as many bytes as topicsd does; it keeps nothing.
"""

from __future__ import annotations

import sys

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from quart import Response, request
from quart_trio import QuartTrio

_ANSWER = (
    b'{"topic":"orders","first_seq":1000000,"last_seq":1000000,"seqs":[1000000],"head_seq":1000000,"count":1,'
    b'"created":false,"deduped":false,"performance":{"server_total_ms":0.5,"wal_append_ms":0.05,"fsync_ms":0}}'
)

app = QuartTrio(__name__)


@app.post("/v0/topics/<topic>")
async def write(topic: str) -> Response:
    await request.get_data()
    return Response(_ANSWER, content_type="application/json")


if __name__ == "__main__":
    config = Config()
    config.bind = [f"127.0.0.1:{sys.argv[1]}"]
    config.errorlog = None
    trio.run(serve, app, config)
