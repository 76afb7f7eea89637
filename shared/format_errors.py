"""What the codecs of the file formats raise: two errors, both without a path.

A codec sees bytes, not files. Whoever knows the file turns these into the errors of that file; see
docs/disk-format.md, "What is refused, and how".
"""


class FormatError(ValueError):
    """The bytes are not something this version can read."""


class BadBytes(FormatError):
    """The bytes contradict the format. `offset` counts from the start of what the codec was given."""

    def __init__(self, reason: str, offset: int = 0) -> None:
        super().__init__(f"{reason} at offset {offset}")
        self.reason = reason
        self.offset = offset


class NewerVersion(FormatError):
    """Intact, but from a newer writer: refuse it, never skip it."""

    def __init__(self, found: int, known: int, what: str = "version") -> None:
        super().__init__(f"{what} {found} needs a newer topicsd, this one knows up to {known}")
        self.found = found
        self.known = known
        self.what = what
