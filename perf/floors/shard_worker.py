"""The least process that can stand behind a gateway. A yardstick, not a product.

    python -m perf.floors.shard_worker FD [--records N] [--hold N] [--log FILE] [--decode] [--sync inline|thread]

A turn takes all frames that have arrived and answers each with a frame. `--log` writes the bodies of a turn to a
file; `--decode` decodes each of them into the typed request first, and takes one checksum: a log can do no less.
`--sync` answers a turn after an fdatasync: either before the next turn is taken, or in a thread while more arrive.
"""

from __future__ import annotations

import argparse
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator

from xxhash import xxh3_64_intdigest

from perf.floors.answers import write_answer
from perf.floors.gateway import HEAD
from shared.api_types import decode_write

_RECEIVE_BYTES = 1 << 20
_LOG_BYTES = 1 << 28  # then from its start again, so that a long run does not fill the disk

Frame = tuple[int, memoryview]  # requests in it; the size of each as 32 bits, then the bodies


def turns(link: socket.socket) -> Iterator[list[Frame]]:
    """The memory of a turn is used again for the next."""
    buffer = bytearray(_RECEIVE_BYTES)
    view = memoryview(buffer)
    filled = 0
    while True:
        got = link.recv_into(view[filled:])
        if not got:
            return
        filled += got
        frames: list[Frame] = []
        at = 0
        while filled - at >= HEAD.size:
            size, count = HEAD.unpack_from(buffer, at)
            end = at + HEAD.size + size
            if end > filled:
                break
            frames.append((count, view[at + HEAD.size : end]))
            at = end
        if frames:
            yield frames
        filled -= at
        if at and filled:
            buffer[:filled] = buffer[at : at + filled]


class Log:
    def __init__(self, path: str, decode: Callable[[bytes], object] | None) -> None:
        self._decode = decode
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.posix_fallocate(self.fd, 0, _LOG_BYTES)
        os.fsync(self.fd)
        self._end = 0

    def write(self, frames: list[Frame]) -> None:
        parts = [content[4 * count :] for count, content in frames]
        if self._decode is not None:
            for count, content in frames:
                start = 4 * count
                for size in content[:start].cast("I"):
                    self._decode(bytes(content[start : start + size]))
                    start += size
            for part in parts:
                xxh3_64_intdigest(part)
        if self._end + sum(map(len, parts)) > _LOG_BYTES:
            self._end = 0
        self._end += os.pwritev(self.fd, parts, self._end)


class Answers:
    """One frame for all requests that are due."""

    def __init__(self, link: socket.socket, answer: bytes, hold: int) -> None:
        self._link = link
        self._answer = answer
        self._hold = hold
        self._held = 0

    def send(self, count: int) -> None:
        count += self._held
        if count < self._hold:
            self._held = count
            return
        self._held = 0
        self._link.sendall(HEAD.pack(len(self._answer) * count, count) + self._answer * count)


def sync_in_thread(fd: int, answers: Answers) -> Callable[[int], None]:
    """Returns what to call with the number of requests that were written: they are answered once synced."""
    written: queue.SimpleQueue[int] = queue.SimpleQueue()

    def sync() -> None:
        while True:
            count = written.get()
            while not written.empty():
                count += written.get()
            os.fdatasync(fd)
            answers.send(count)

    threading.Thread(target=sync, daemon=True).start()
    return written.put


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m perf.floors.shard_worker", description=__doc__)
    parser.add_argument("fd", type=int)
    parser.add_argument("--records", type=int, default=1)
    parser.add_argument("--hold", type=int, default=1)
    parser.add_argument("--log")
    parser.add_argument("--decode", action="store_true")
    parser.add_argument("--sync", choices=("inline", "thread"))
    options = parser.parse_args()
    link = socket.socket(fileno=options.fd)
    log = Log(options.log, decode_write if options.decode else None) if options.log else None
    answers = Answers(link, write_answer(options.records), options.hold)
    answer: Callable[[int], None] = answers.send
    if log is not None and options.sync == "thread":
        answer = sync_in_thread(log.fd, answers)
    link.sendall(b"!")
    for frames in turns(link):
        if log is not None:
            log.write(frames)
            if options.sync == "inline":
                os.fdatasync(log.fd)
        answer(sum(count for count, _ in frames))


if __name__ == "__main__":
    main()
