"""The least server of one file: a head and one sendfile per GET. A yardstick, not a product.

python -m perf.floors.file_server PORT FILE
"""

from __future__ import annotations

import os
import select
import socket
import sys

from perf.floors.answers import http_head
from perf.floors.gateway import RECEIVE_BYTES, listen

_SEND_BUFFER = 1 << 20  # as much as the kernel grants: an answer should fit, then one call sends all of it


def serve(port: int, path: str) -> None:
    listener = listen(port)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    door = listener.fileno()
    file = os.open(path, os.O_RDONLY)
    size = os.fstat(file).st_size
    head = http_head(size)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    open_sockets: dict[int, socket.socket] = {}
    sent: dict[int, int] = {}  # bytes of the file, where some did not fit
    while True:
        for fd, _ in poll.poll():
            if fd == door:
                sock = listener.accept()[0]
                sock.setblocking(False)
                open_sockets[sock.fileno()] = sock
                poll.register(sock, select.EPOLLIN)
                continue
            sock = open_sockets[fd]
            try:
                at = sent.pop(fd, 0)
                if not at:
                    if not sock.recv(RECEIVE_BYTES).endswith(b"\r\n\r\n"):
                        raise ConnectionError("closed, or not the request of this bench")
                    sock.send(head, socket.MSG_MORE)
                done = at + os.sendfile(fd, file, at, size - at)
                if done < size:
                    sent[fd] = done
                    poll.modify(fd, select.EPOLLOUT)
                elif at:
                    poll.modify(fd, select.EPOLLIN)
            except OSError:
                open_sockets.pop(fd).close()


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2])
