"""Where the Unix sockets of one server live: a directory that only its own user can enter."""

from __future__ import annotations

import os
import stat
from typing import Final

from shared.io.child_channel import socket_path
from topicsd.exits import Exit, StartRefused

# sun_path has 108 bytes, one of them for the terminating zero (unix(7)).
SOCKET_PATH_MAX_BYTES: Final = 107
_HIGHEST_SHARD: Final = 9999


def find_socket_dir(data_dir: str) -> str:
    """`DATA_DIR/run`, or a directory under the system's temporary one if that path is too long for a socket.

    The same for the same data directory each time, so that other programs find a running server.
    """
    wanted = os.path.join(os.path.abspath(data_dir), "run")
    if len(os.fsencode(socket_path(wanted, _HIGHEST_SHARD))) <= SOCKET_PATH_MAX_BYTES:
        return wanted
    # With OpenSSL and several formats of compression: for the paths that need it.
    import hashlib
    import tempfile

    place = hashlib.sha256(os.fsencode(os.path.realpath(data_dir))).hexdigest()[:16]
    return os.path.join(tempfile.gettempdir(), f"topicsd-{os.getuid()}-{place}")


def make_socket_dir(data_dir: str) -> str:
    path = find_socket_dir(data_dir)
    if len(os.fsencode(socket_path(path, _HIGHEST_SHARD))) > SOCKET_PATH_MAX_BYTES:
        raise StartRefused(
            Exit.BAD_SETTINGS,
            f"data_dir: the path is too long for sockets, and so is {path}: use a shorter data_dir or TMPDIR",
        )
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        # In a directory that all may write to, somebody else may have been there first.
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise StartRefused(
                Exit.BAD_SETTINGS, f"data_dir: {path}, for the sockets, is not a directory of this user"
            ) from None
        os.chmod(path, 0o700)
    return path
