"""The process that loads the code of the first children once, and forks them: `python -m topicsd.loader`.

Nearly all of a start is Python loading code, and most of it is the same code in every child. The supervisor starts this
process or forks it (`topicsd/loader_start.py`) before it does anything else, and asks it over a socket, its stdin, for
one child after the other: a message is the name of a module, with the child's ends of its control socket and its status
pipe, and the answer is a pid. At the end of the socket it is done and exits, and the children become the supervisor's
own (`topicsd/forerunners.py`).

Nothing runs here when a child is forked, no loop and no thread. What a child does then is what `python -m` would do.
A child that is started again later is started from scratch, by argv.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import runpy
import socket
import sys
from contextlib import suppress
from typing import Final, Never

from shared.io.late_modules import lighten_trio
from shared.io.start_image import start_image

MESSAGE_MAX_BYTES: Final = 4096
# What the supervisor needs as well as its children, and nothing that is compiled: it does without.
_OF_ALL: Final = ("shared.io.child_channel", "shared.io.logs")
# Modules of all children, and of one kind: loaded before the first of them is forked. The gateway comes first, so that
# it does not carry the worker's.
COMMON: Final = (*_OF_ALL, "shared.io.idle_turns", "shared.session")
_OF_ONE_KIND: Final = {"shard_worker": "shard_worker.worker"}


def load_what_all_share() -> None:
    """Ahead of `main`, in a process that this one is then forked from."""
    lighten_trio()
    for name in _OF_ALL:
        importlib.import_module(name)


def load_what_children_share() -> None:
    load_what_all_share()
    # Not before: the supervisor takes a name from here and has nothing that is compiled.
    from shared.io.compiled import use_compiled

    use_compiled()
    for name in COMMON:
        importlib.import_module(name)


def main() -> Never:
    """Ends with this process, and in each that it forks with the child."""
    with start_image("children"):
        load_what_children_share()
    with socket.socket(fileno=os.dup(0)) as link:
        while True:
            message, fds, _, _ = socket.recv_fds(link, MESSAGE_MAX_BYTES, 2)
            if not message:
                # At once: the supervisor waits for this end before it looks after the children.
                os._exit(0)
            module = message.decode()
            if module in _OF_ONE_KIND:
                with start_image("worker"):
                    importlib.import_module(_OF_ONE_KIND[module])
            control_fd, status_fd = fds
            # What is loaded stays for good: collections need not look at it, and it stays shared between processes.
            gc.freeze()
            pid = os.fork()
            if pid == 0:
                break
            link.send(b"%d" % pid)
            os.close(control_fd)
            os.close(status_fd)
    _become(module, control_fd, status_fd)
    sys.exit()


def _become(module: str, control_fd: int, status_fd: int) -> None:
    # Out of the terminal's reach: Ctrl-C is for the supervisor, which then drains in order.
    os.setsid()
    os.dup2(control_fd, 0)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != status_fd:
            with suppress(OSError):  # that of the listing itself
                os.close(int(name))
    argv = ["--status-fd", str(status_fd)]
    # The room is that of the command line we were forked from, which may be as short as `topicsd serve`.
    words = [sys.executable, "-P", "-m", module, *argv]
    _show_as(words) or _show_as(["python", *words[1:]]) or _show_as(["python", "-m", module])
    sys.argv[1:] = argv
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _show_as(argv: list[str]) -> bool:
    """Put this into the place of our command line, for `ps` and whoever else looks for a process by name.

    False: there is no room for it."""
    with open("/proc/self/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start, arg_end: proc(5)
    text = b"".join(os.fsencode(word) + b"\0" for word in argv)
    if not start or len(text) > end - start:
        return False
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)
    return True


if __name__ == "__main__":
    with start_image("all"):
        load_what_all_share()
    main()
