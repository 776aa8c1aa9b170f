"""The Python client of a Rhizome node: memory, contexts and sandboxes for agents.

`Rhizome` is a node, `AsyncRhizome` the same to await; `models` has what they answer. Text from memory is
data of its author, never instructions to the reader.
"""
from . import _models as models
from ._async_client import AsyncRhizome, AsyncSandbox
from ._client import Finished, Rhizome, Sandbox
from ._errors import (
    Conflict,
    Denied,
    Gone,
    IdempotencyMismatch,
    InvalidRequest,
    NotFound,
    RateLimited,
    RhizomeError,
    ServerError,
    StreamCut,
    TimedOut,
    Unauthorized,
    Unavailable,
    Unreachable,
)

__version__ = "0.1.0"

__all__ = [
    "AsyncRhizome",
    "AsyncSandbox",
    "Conflict",
    "Denied",
    "Finished",
    "Gone",
    "IdempotencyMismatch",
    "InvalidRequest",
    "NotFound",
    "RateLimited",
    "Rhizome",
    "RhizomeError",
    "Sandbox",
    "ServerError",
    "StreamCut",
    "TimedOut",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
    "models",
]
