"""Errors: each has the code that the node gave, what failed, why, and what to do about it."""
from __future__ import annotations

import json
from typing import Any, List, Mapping, Optional


class RhizomeError(Exception):
    """Something did not work. `code` is for programs, the rest for people."""

    code: str
    message: str
    hint: Optional[str]
    causes: List[str]
    status: int

    def __init__(
        self,
        code: str,
        message: str,
        *,
        hint: Optional[str] = None,
        causes: Optional[List[str]] = None,
        status: int = 0,
        retry_after: Optional[float] = None,
    ) -> None:
        self.code = code
        self.message = message
        self.hint = hint
        self.causes = causes or []
        self.status = status
        self.retry_after = retry_after
        super().__init__(message)

    def __str__(self) -> str:
        text = f"{self.message} ({self.code})"
        for cause in self.causes:
            text += f"\n  cause: {cause}"
        if self.hint:
            text += f"\n  hint: {self.hint}"
        return text


class InvalidRequest(RhizomeError):
    """The request makes no sense: 400, 405, 413, 422."""


class Unauthorized(RhizomeError):
    """The token is missing, unknown, revoked or over: 401."""


class Denied(RhizomeError):
    """The caller may not do that: 403."""


class NotFound(RhizomeError):
    """What was asked for is not here: 404."""


class Conflict(RhizomeError):
    """It does not fit what is there: 409."""


class IdempotencyMismatch(Conflict):
    """The idempotency key was used for another request."""


class Gone(RhizomeError):
    """It was here and has ended: 410. Trying again does not help."""


class RateLimited(RhizomeError):
    """Too much at once, or a limit is reached: 429."""


class Unavailable(RhizomeError):
    """The node, or another, cannot do it now: 502, 503, 504, 507."""


class ServerError(RhizomeError):
    """The node failed: 500. A bug."""


class Unreachable(RhizomeError):
    """The daemon cannot be reached, or the connection broke."""


class TimedOut(Unreachable):
    """The daemon did not answer in time."""


class StreamCut(Unreachable):
    """A stream ended before its work did."""


_BY_STATUS = {
    400: InvalidRequest,
    401: Unauthorized,
    403: Denied,
    404: NotFound,
    405: InvalidRequest,
    408: Unavailable,
    409: Conflict,
    410: Gone,
    413: InvalidRequest,
    422: InvalidRequest,
    426: InvalidRequest,
    429: RateLimited,
    500: ServerError,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
    507: Unavailable,
}

_BY_CODE = {
    "idempotency_mismatch": IdempotencyMismatch,
    "sandbox_gone": Gone,
    "state_lost": Gone,
    "bad_request": InvalidRequest,
    "denied": Denied,
    "not_found": NotFound,
    "limit_reached": RateLimited,
    "quota_exceeded": RateLimited,
    "busy": RateLimited,
    "internal": ServerError,
    "no_sandboxes": Unavailable,
    "name_taken": Conflict,
    "timeout": Unavailable,
}


def from_info(info: Mapping[str, Any], status: int = 0, retry_after: Optional[float] = None) -> RhizomeError:
    """Makes an error of what the node said."""
    code = str(info.get("code", "unknown"))
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status)
    if kind is None:
        kind = NotFound if code.startswith(("unknown_", "no_such_")) else RhizomeError
        if status >= 500:
            kind = ServerError
    return kind(
        code,
        str(info.get("message", "the request failed")),
        hint=info.get("hint"),
        causes=[str(cause) for cause in info.get("causes", [])],
        status=status,
        retry_after=retry_after,
    )


def from_answer(status: int, headers: Mapping[str, str], body: bytes) -> RhizomeError:
    """Makes an error of an answer that is not a success."""
    after = headers.get("retry-after", "")
    retry_after = float(after) if after.isdigit() else None
    try:
        info = json.loads(body)["error"]
        return from_info(info, status, retry_after)
    except (ValueError, KeyError, TypeError, AttributeError):
        text = body[:200].decode("utf-8", "replace")
        return from_info({"code": f"http_{status}", "message": text or f"HTTP {status}"}, status, retry_after)
