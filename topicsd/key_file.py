"""Reading `api_keys_file`, at start and again on SIGHUP."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from shared.errors import BadSetting
from shared.settings import Settings

KEY_FILE_MAX_BYTES: Final = 1 << 20
"""More than this is not a list of keys but a mistake in the path."""


CREDENTIAL: Final = "api_keys"
"""Its name in the directory of credentials (`LoadCredential=` of the unit)."""


def credential_setting(env: Mapping[str, str]) -> dict[str, object]:
    """`api_keys_file` as the service manager provides it, weaker than any other source; empty if it does not."""
    directory = env.get("CREDENTIALS_DIRECTORY")
    path = os.path.join(directory, CREDENTIAL) if directory else ""
    return {"api_keys_file": path} if path and os.path.exists(path) else {}


def with_key_file(settings: Settings) -> Settings:
    """These settings with the keys that the file holds now; unchanged without a file. Raises BadSetting."""
    path = settings.api_keys_file
    if path is None:
        return settings
    try:
        with open(path, "rb") as file:
            data = file.read(KEY_FILE_MAX_BYTES + 1)
        if len(data) > KEY_FILE_MAX_BYTES:
            raise _bad(f"{path} is larger than {KEY_FILE_MAX_BYTES} bytes")
        text = data.decode("utf-8")
    except OSError as err:
        raise _bad(f"{path} cannot be read: {err.strerror}") from err
    except UnicodeDecodeError:
        # Without the cause, which would quote bytes of the file.
        raise _bad(f"{path} is not UTF-8 text") from None
    return settings.with_file_keys(text)


def _bad(message: str) -> BadSetting:
    return BadSetting(key="api_keys_file", source="key file", message=message)
