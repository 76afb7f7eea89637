"""The one exception tree.

Four families, by who must act:

- `CallerError`: the request cannot succeed as it is; the caller changes it.
- `Unavailable`: nothing is wrong with the request; it may succeed later.
- `DataDamage`: stored bytes are not what was written; an operator looks (`topicsd verify`).
- `Bug`: ours.

Every error has a stable `code`, a `status_hint` for the HTTP edge, and says whether a `retry` makes
sense. `str(error)` is for logs and operators. What a client sees comes from `public()` alone, which
for damage, disk faults and bugs leaves out paths and internals.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import ClassVar

import msgspec

from shared.limits import RETRY_AFTER_DEFAULT_MS

Detail = dict[str, object]


class Retry(Enum):
    NEVER = "never"
    """The same request would fail again."""

    LATER = "later"
    """Nothing was done; the same request may succeed later."""

    IDEMPOTENT = "idempotent"
    """The outcome may be unknown: repeat reads, PUT, DELETE and writes with an idempotency key."""


class TopicsError(Exception):
    """Root of everything we raise on purpose. Only its concrete subclasses are raised."""

    code: ClassVar[str]
    status_hint: ClassVar[int]
    retry: ClassVar[Retry]

    def __init__(
        self, message: str, *, detail: Mapping[str, object] | None = None, retry_after_ms: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.detail: Detail | None = dict(detail) if detail is not None else None
        self.retry_after_ms = retry_after_ms

    def public(self) -> tuple[str, str, Detail | None]:
        """The code, message and detail that may leave the process."""
        return self.code, self.message, self.detail

    def to_json_body(self) -> bytes:
        code, message, detail = self.public()
        error: Detail = {"code": code, "message": message}
        if detail is not None:
            error["detail"] = detail
        body = {"error": error}
        try:
            return msgspec.json.encode(body)
        except UnicodeEncodeError:
            # A message may quote what a caller sent, lone surrogates included. Escaping them keeps
            # the promise that every failure has a JSON body.
            return json.dumps(body, separators=(",", ":")).encode("ascii")

    def to_wire(self) -> tuple[int, bytes, int | None]:
        """Status, body and retry hint as they cross a link; the gateway passes them on as they are."""
        return self.status_hint, self.to_json_body(), self.retry_after_ms


# --- the caller must change something ---------------------------------------------------------


class CallerError(TopicsError):
    retry = Retry.NEVER


class InvalidRequest(CallerError):
    code, status_hint = "invalid_request", 400


class BatchTooLarge(CallerError):
    code, status_hint = "batch_too_large", 400

    def __init__(self, *, what: str, count: int, max: int) -> None:
        super().__init__(f"{count} {what} in one call, at most {max} are allowed", detail={"max": max})


class RecordTooLarge(CallerError):
    code, status_hint = "record_too_large", 400


class Unauthorized(CallerError):
    code, status_hint = "unauthorized", 401

    def __init__(self, message: str = "a valid API key is required: Authorization: Bearer <key>") -> None:
        super().__init__(message)


class Forbidden(CallerError):
    code, status_hint = "forbidden", 403


class TopicNotFound(CallerError):
    code, status_hint = "topic_not_found", 404

    def __init__(self, *, topic: str) -> None:
        super().__init__(f"topic {topic} does not exist", detail={"topic": topic})
        self.topic = topic


class RouterNotFound(CallerError):
    code, status_hint = "router_not_found", 404

    def __init__(self, *, router: str) -> None:
        super().__init__(f"router {router} does not exist", detail={"router": router})
        self.router = router


class NotFound(CallerError):
    code, status_hint = "not_found", 404

    def __init__(self, message: str = "there is nothing at this path") -> None:
        super().__init__(message)


class MethodNotAllowed(CallerError):
    code, status_hint = "method_not_allowed", 405

    def __init__(self, *, allow: Sequence[str]) -> None:
        super().__init__(f"this path answers {', '.join(allow)}")
        self.allow = tuple(allow)


class NotAcceptable(CallerError):
    code, status_hint = "not_acceptable", 406

    def __init__(self, message: str = "this path answers text/event-stream only") -> None:
        super().__init__(message)


class RouterCycle(CallerError):
    code, status_hint = "router_cycle", 409

    def __init__(self, *, cycle: Sequence[str]) -> None:
        super().__init__(
            f"this router would close the cycle {' > '.join(cycle)}; set allow_cycle if it is meant",
            detail={"cycle": list(cycle)},
        )
        self.cycle = tuple(cycle)


class TopicExistsIncompatible(CallerError):
    code, status_hint = "topic_exists_incompatible", 409


class TopicNotEmpty(CallerError):
    code, status_hint = "topic_not_empty", 409

    def __init__(self, *, topic: str, count: int) -> None:
        super().__init__(
            f"topic {topic} still holds {count} records", detail={"topic": topic, "count": count}
        )
        self.topic = topic


class NotAQueue(CallerError):
    code, status_hint = "not_a_queue", 409

    def __init__(self, *, topic: str) -> None:
        super().__init__(f'topic {topic} is not of type "queue"', detail={"topic": topic})
        self.topic = topic


class PayloadTooLarge(CallerError):
    code, status_hint = "payload_too_large", 413

    def __init__(self, *, max_bytes: int) -> None:
        super().__init__(
            f"the body is larger than {max_bytes} bytes (decompressed)", detail={"max_bytes": max_bytes}
        )


class UnsupportedMediaType(CallerError):
    code, status_hint = "unsupported_media_type", 415

    def __init__(self, message: str = "send the body with Content-Type: application/json") -> None:
        super().__init__(message)


class TopicFull(CallerError):
    code, status_hint = "topic_full", 422
    # Room appears when somebody deletes or records expire, and nothing was appended.
    retry = Retry.LATER

    def __init__(self, *, topic: str) -> None:
        super().__init__(
            f'topic {topic} has reached its cap and discards nothing (discard "reject")',
            detail={"topic": topic},
        )
        self.topic = topic


class BadSetting(CallerError):
    """The operator's request to start: refused before anything is touched. Never carries a secret."""

    code, status_hint = "bad_setting", 400

    def __init__(self, *, key: str, source: str, message: str) -> None:
        super().__init__(f"{key} ({source}): {message}")
        self.key = key
        self.source = source


# --- it may work later ------------------------------------------------------------------------


class Unavailable(TopicsError):
    retry = Retry.LATER
    status_hint = 503

    def __init__(
        self,
        message: str,
        *,
        detail: Mapping[str, object] | None = None,
        retry_after_ms: int = RETRY_AFTER_DEFAULT_MS,
    ) -> None:
        super().__init__(message, detail=detail, retry_after_ms=retry_after_ms)


class Throttled(Unavailable):
    """Either pressure (`retry_after_ms`) or a cap (`limit`, the setting's name, and `max`)."""

    code, status_hint = "throttled", 429

    def __init__(
        self, *, retry_after_ms: int | None = None, limit: str | None = None, max: int | None = None
    ) -> None:
        if limit is not None:
            assert max is not None, "a cap is named together with its value"
            message, detail = f"{limit} of {max} is reached", {"limit": limit, "max": max}
            super().__init__(
                message,
                detail=detail,
                retry_after_ms=RETRY_AFTER_DEFAULT_MS if retry_after_ms is None else retry_after_ms,
            )
        else:
            assert retry_after_ms is not None, "pressure always says when to come back"
            super().__init__(
                "the server is busy; nothing was done, try again later",
                detail={"retry_after_ms": retry_after_ms},
                retry_after_ms=retry_after_ms,
            )


class NotReady(Unavailable):
    code = "not_ready"

    def __init__(self, *, replay_progress: float) -> None:
        super().__init__(
            "the write-ahead log is still being replayed", detail={"replay_progress": replay_progress}
        )


class ShuttingDown(Unavailable):
    code = "shutting_down"

    def __init__(self) -> None:
        super().__init__("the server is shutting down")


class ShardUnavailable(Unavailable):
    """The shard is restarting or its link broke: a request may have been carried out unanswered."""

    code = "shard_unavailable"
    retry = Retry.IDEMPOTENT

    def __init__(self, *, shard: int, reason: str, retry_after_ms: int = RETRY_AFTER_DEFAULT_MS) -> None:
        super().__init__(
            f"shard {shard} is unavailable: {reason}",
            detail={"shard": shard},
            retry_after_ms=retry_after_ms,
        )
        self.shard = shard


class ReadOnlyShard(Unavailable):
    """The disk is full or nearly so. Refused before anything was written, so a retry is safe."""

    code = "shard_unavailable"

    def __init__(self, *, shard: int, free_bytes: int | None, min_free_bytes: int) -> None:
        why = "the disk is full" if free_bytes is None else f"only {free_bytes} bytes of disk are free"
        super().__init__(
            f"shard {shard} is read-only: {why}; free some space on the disk of the data directory (at least "
            f"{min_free_bytes} bytes, setting min_free_bytes), and writes resume by themselves",
            detail={"shard": shard, "reason": "read_only"},
        )
        self.shard = shard


class DiskFault(Unavailable):
    """The disk refused a write or a sync. The worker exits and replays; it never tries again, because
    the kernel may have dropped the dirty pages and a second sync could succeed over lost bytes."""

    code = "shard_unavailable"
    retry = Retry.IDEMPOTENT

    def __init__(self, *, path: str, operation: str, reason: str) -> None:
        super().__init__(f"{operation} of {path} failed: {reason}")
        self.path = path
        self.operation = operation

    def public(self) -> tuple[str, str, Detail | None]:
        return self.code, "the disk failed under this shard; it restarts from its log", None


# --- stored bytes are wrong -------------------------------------------------------------------


class DataDamage(TopicsError):
    """Its `code` is for logs and `topicsd verify`; clients see `internal` with it as the reason."""

    status_hint = 500
    retry = Retry.NEVER

    def __init__(
        self,
        *,
        path: str,
        reason: str,
        offset: int | None = None,
        topic: str | None = None,
        first_seq: int | None = None,
        last_seq: int | None = None,
    ) -> None:
        where = path if offset is None else f"{path} at byte {offset}"
        known: Detail = {"path": path, "offset": offset, "topic": topic}
        known |= {"first_seq": first_seq, "last_seq": last_seq}
        hint = "" if topic is None else f" (topic {topic}, seqs {first_seq}..{last_seq})"
        super().__init__(
            f"{self.code}: {where}: {reason}{hint}",
            detail={name: value for name, value in known.items() if value is not None},
        )
        self.path = path
        self.offset = offset
        self.reason = reason
        self.topic = topic
        self.first_seq = first_seq
        self.last_seq = last_seq

    def public(self) -> tuple[str, str, Detail | None]:
        return (
            "internal",
            "stored data is damaged; the operator's log and `topicsd verify` say where",
            {"reason": self.code},
        )


class TornTail(DataDamage):
    """The newest WAL file ends in an unfinished frame: normal after power loss, and repaired."""

    code = "torn_tail"


class CorruptFrame(DataDamage):
    """A WAL frame that is wrong with valid frames after it: never normal, never truncated."""

    code = "corrupt_frame"


class CorruptSegment(DataDamage):
    code = "corrupt_segment"


class OutOfDescriptors(CorruptSegment):
    """A segment could not be opened because this process has too many files open: our shortage, not damage.

    Among the damages, because whoever can go on without looking into a damaged block can go on here, too.
    """

    status_hint, retry = 503, Retry.LATER

    def __init__(self, *, path: str) -> None:
        super().__init__(path=path, reason="this process has no file descriptor left")
        self.retry_after_ms = 1000

    def public(self) -> tuple[str, str, Detail | None]:
        return "shard_unavailable", "the shard is short of file descriptors; try again", None


class ColdUnreachable(CorruptSegment):
    """A segment is in a cold tier that does not answer: nothing is known to be wrong with it.

    Among the damages, because whoever can go on without looking into a damaged block can go on here, too.
    """

    status_hint, retry = 503, Retry.LATER

    def __init__(self, *, path: str, reason: str) -> None:
        super().__init__(path=path, reason=reason)
        self.retry_after_ms = 5000

    def public(self) -> tuple[str, str, Detail | None]:
        return (
            "shard_unavailable",
            "these records are in the cold tier, which does not answer; try again",
            None,
        )


class CorruptSnapshot(DataDamage):
    code = "corrupt_snapshot"


class CorruptManifest(DataDamage):
    code = "corrupt_manifest"


class CorruptBackup(DataDamage):
    """An object in a place of backups is missing or is not what its name says."""

    code = "corrupt_backup"


class FormatTooNew(DataDamage):
    """Written by a later release. Nothing is damaged, but this build must not touch it."""

    code = "format_too_new"

    def __init__(
        self, *, path: str, needed_version: int, supported_version: int, offset: int | None = None
    ) -> None:
        super().__init__(
            path=path,
            offset=offset,
            reason=f"format version {needed_version} is needed and this build reads up to "
            f"{supported_version}: start a release that knows version {needed_version}",
        )
        self.needed_version = needed_version
        self.supported_version = supported_version


# --- ours -------------------------------------------------------------------------------------


class Bug(TopicsError):
    status_hint = 500
    # We do not know how far the request came.
    retry = Retry.IDEMPOTENT

    def public(self) -> tuple[str, str, Detail | None]:
        return "internal", "internal error; the server's log has the details", None


class Internal(Bug):
    code = "internal"
