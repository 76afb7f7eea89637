"""The least HTTP server that Python can be, alone or in front of a second process. A yardstick, not a product.

    python -m perf.floors.gateway PORT [--records N] [--hold N] [--behind [OPTION OF THE WORKER ...]]

One epoll set over non-blocking sockets. A turn takes what all ready connections have sent and finds the ends of the
requests by their Content-Length; that is all it understands. Alone it answers itself. With a worker behind it, all
bodies of a turn go out as one frame over a Unix socket, and the answers come back in frames, in the same order.

`--hold 2` answers only when two requests are there, the first one first: a reader that waits, and the write that it
waits for.
"""

from __future__ import annotations

import argparse
import select
import socket
import struct
import subprocess
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator

from perf.floors.answers import write_answer

RECEIVE_BYTES = 1 << 16
HEAD = struct.Struct("<II")  # of a frame, both ways: bytes behind it, requests in it

Send = Callable[[bytes], int]


def listen(port: int) -> socket.socket:
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it
    listener.setblocking(False)
    return listener


def turns(
    listener: socket.socket, link: socket.socket | None
) -> Iterator[tuple[list[Send], list[bytes], bool]]:
    """Whom to answer, the body of each, and whether the link has something."""
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    door, behind = listener.fileno(), -1
    if link is not None:
        behind = link.fileno()
        poll.register(link, select.EPOLLIN)
    open_sockets: dict[int, socket.socket] = {}
    begun: dict[int, bytes] = {}  # requests of which more is to come
    while True:
        sends: list[Send] = []
        bodies: list[bytes] = []
        answered = False
        for fd, _ in poll.poll():
            if fd == behind:
                answered = True
                continue
            if fd == door:
                sock = listener.accept()[0]
                sock.setblocking(False)
                open_sockets[sock.fileno()] = sock
                poll.register(sock, select.EPOLLIN)
                continue
            sock = open_sockets[fd]
            try:
                data = sock.recv(RECEIVE_BYTES)
            except OSError:
                data = b""
            if not data:
                begun.pop(fd, None)
                open_sockets.pop(fd).close()  # leaves the set with this
                continue
            if begun and fd in begun:
                data = begun.pop(fd) + data
            start = data.find(b"\r\n\r\n") + 4
            at = data.find(b"Content-Length: ", 0, start)
            if start >= 4 and (at < 0 or len(data) - start >= int(data[at + 16 : data.find(b"\r", at)])):
                sends.append(sock.send)
                bodies.append(data[start:])
            else:
                begun[fd] = data
        yield sends, bodies, answered


def answer_alone(listener: socket.socket, answer: bytes, hold: int) -> None:
    held: list[Send] = []
    for sends, _, _ in turns(listener, None):
        if hold > 1:
            held += sends
            if len(held) < hold:
                continue
            sends, held = held, []
        for send in sends:
            try:  # noqa: SIM105  # costs nothing, a context manager does
                send(answer)
            except OSError:
                pass  # closed meanwhile; the next turn sees it


def answer_behind(listener: socket.socket, link: socket.socket) -> None:
    waiting: deque[Send] = deque()
    told = b""
    for sends, bodies, answered in turns(listener, link):
        if sends:
            waiting += sends
            sizes = array("I", map(len, bodies)).tobytes()
            content = b"".join((sizes, *bodies))
            link.sendall(HEAD.pack(len(content), len(bodies)) + content)
        if not answered:
            continue
        data = link.recv(RECEIVE_BYTES)
        if not data:
            raise SystemExit("the worker has ended")
        told = told + data if told else data
        while len(told) >= HEAD.size:
            size, count = HEAD.unpack_from(told)
            end = HEAD.size + size
            if len(told) < end:
                break
            each = size // count
            for start in range(HEAD.size, end, each):
                try:  # noqa: SIM105
                    waiting.popleft()(told[start : start + each])
                except OSError:
                    pass
            told = told[end:]


def start_worker(options: list[str]) -> socket.socket:
    """Returns the link to it, once it is ready. It ends when the link does."""
    near, far = socket.socketpair()
    command = [sys.executable, "-m", "perf.floors.shard_worker", str(far.fileno()), *options]
    subprocess.Popen(command, pass_fds=[far.fileno()])
    far.close()
    near.recv(1)
    return near


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m perf.floors.gateway", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--records", type=int, default=1, help="of a write, as far as its answer tells")
    parser.add_argument("--hold", type=int, default=1)
    parser.add_argument(
        "--behind", nargs=argparse.REMAINDER, help="with a worker, started with these options"
    )
    options = parser.parse_args()
    if options.behind is None:
        answer_alone(listen(options.port), write_answer(options.records), options.hold)
    else:
        shared = ["--records", str(options.records), "--hold", str(options.hold)]
        link = start_worker([*shared, *options.behind])
        answer_behind(listen(options.port), link)


if __name__ == "__main__":
    main()
