"""Why a `topics` command ends, as its exit code and one line say it (docs/cli.md, "Exit codes")."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    OK = 0
    REFUSED = 1
    USAGE = 2
    UNREACHABLE = 3
    BAD_INPUT = 4
    JOBS_FAILED = 5
    INTERRUPTED = 130
    OUTPUT_CLOSED = 141


class ClientError(Exception):
    """Ends the command. The message is one line that says what to do next."""

    exit_code: Exit

    def as_json(self) -> dict[str, object]:
        return {"code": self.exit_code.name.lower(), "message": str(self)}


class Refused(ClientError):
    """The server said no. `hint` is what to do about it."""

    exit_code = Exit.REFUSED

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        detail: dict[str, object] | None = None,
        retry_after_s: float | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(f"{message} ({status} {code})" + (f"; {hint}" if hint else ""))
        self.status = status
        self.code = code
        self.message = message
        self.detail = detail or {}
        self.retry_after_s = retry_after_s
        self.hint = hint

    @property
    def passes(self) -> bool:
        """May the same request succeed in a while?"""
        return self.status == 503 or (self.status == 429 and "limit" not in self.detail)

    def with_hint(self, hint: str) -> Refused:
        return Refused(
            self.status,
            self.code,
            self.message,
            detail=self.detail,
            retry_after_s=self.retry_after_s,
            hint=hint,
        )

    def as_json(self) -> dict[str, object]:
        found: dict[str, object] = {"code": self.code, "message": self.message, "status": self.status}
        if self.detail:
            found["detail"] = self.detail
        if self.hint:
            found["hint"] = self.hint
        return found


class Unreachable(ClientError):
    """No answer: the server is down, or the connection broke. Whether a request was carried out is unknown."""

    exit_code = Exit.UNREACHABLE


class BadInput(ClientError):
    """What came on stdin is not what the command reads."""

    exit_code = Exit.BAD_INPUT


class Usage(ClientError):
    """The command line itself is wrong, beyond what the option parser sees."""

    exit_code = Exit.USAGE


class JobsFailed(ClientError):
    """A worker is done, and some of its jobs failed."""

    exit_code = Exit.JOBS_FAILED


class OutputClosed(ClientError):
    """Whoever read our stdout has left (`| head -1`). Nothing to say, and nobody to say it to.

    Not an OSError: click takes a broken pipe for a failure of its own and would exit with 1.
    """

    exit_code = Exit.OUTPUT_CLOSED
