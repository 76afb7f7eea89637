"""An S3 server in this process (moto), and the environment that makes clients find it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

_ENV = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
}


_numbers = itertools.count()  # of the whole process: servers in one process share their buckets


@dataclass(slots=True)
class S3Server:
    endpoint: str
    env: dict[str, str]

    def new_bucket(self) -> str:
        """The name of a bucket that nobody else uses."""
        import boto3

        name = f"bucket-{next(_numbers)}"
        boto3.client("s3", endpoint_url=self.endpoint).create_bucket(Bucket=name)
        return name


@contextmanager
def s3_server() -> Iterator[S3Server]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        env = _ENV | {"AWS_ENDPOINT_URL": endpoint}
        with patch.dict("os.environ", env):
            yield S3Server(endpoint, env)
    finally:
        server.stop()
