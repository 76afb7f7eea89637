"""The command `topicsd`: everything but a plain `topicsd serve` is click's (`topicsd/cli.py`).

A server is started much more often than its flags are read by people, and does without click: it would be 3 MB and the
fourth part of what this process loads. Other words than flags with values are left to click, which explains them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from shared.io.start_image import start_image

TYPE_CHECKING = False  # `typing` itself is loaded later, with everything else
if TYPE_CHECKING:
    from topicsd.loader_start import ForkedLoader, Loader


def main() -> None:
    words = sys.argv[1:]
    if words[:1] == ["serve"] and words[-1] not in ("-h", "--help"):
        try:
            _serve_if_plain(words[1:])
        except KeyboardInterrupt:
            sys.exit("Aborted!")  # as click puts it
    from topicsd.cli import main as by_click

    by_click(prog_name="topicsd")


def _serve_if_plain(words: Sequence[str]) -> None:
    """Returns only if there is more to understand than flags and values."""
    # Before anything else: the children have more to load than we do.
    loader = _start_loader()
    with start_image("supervisor"):
        from topicsd.forerunners import Forerunners
        from topicsd.serving import run_server
        from topicsd.settings_in_force import settings_or_exit

    with Forerunners(loader) as forerunners:
        given = plain_flags(words)
        if given is not None:
            config_file = given.pop("config", None)
            sys.exit(run_server(settings_or_exit(config_file, given), loading=forerunners))


def _start_loader() -> Loader | ForkedLoader | None:
    with start_image("all"):
        from topicsd.loader_start import SECRET_ENV, ForkedLoader, Loader, child_environment, raise_file_limit

        raise_file_limit()
        has_secrets = any(name in os.environ for name in SECRET_ENV)
        if not has_secrets:
            from topicsd.loader import load_what_all_share

            load_what_all_share()
    try:
        if has_secrets:
            return Loader(env=child_environment(os.environ))
        loader = ForkedLoader()
    except OSError:
        return None  # every child can be started by itself
    if loader.is_copy:
        loader.run()
    return loader


def plain_flags(words: Sequence[str]) -> dict[str, str] | None:
    """Settings by name, and the file as `config`; None if click should look at these words."""
    from shared.settings import SETTINGS

    # A boolean may stand without a value.
    names = {row.flag: row.name for row in SETTINGS if row.flag is not None and row.type_name != "boolean"}
    names["--config"] = "config"
    found: dict[str, str] = {}
    rest = list(reversed(words))
    while rest:
        flag, is_there, value = rest.pop().partition("=")
        if not is_there:
            if not rest or rest[-1].startswith("-"):
                return None
            value = rest.pop()
        if flag not in names:
            return None
        found[names[flag]] = value
    return None if os.path.isdir(found.get("config", "")) else found
