"""What travels: where the node is, how a request is written, how an answer is read.

Nothing here opens a socket; `_sync` and `_aio` do.
"""
from __future__ import annotations

import json
import os
import uuid
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Generic, List, Mapping, Optional, Tuple, TypeVar, Union
from urllib.parse import quote, urlencode, urlsplit

T = TypeVar("T")

#: The longest line of a header or of a stream that is read, in bytes.
MAX_LINE = 4 * 1024 * 1024
#: The longest answer that is read in one piece, in bytes.
MAX_ANSWER = 256 * 1024 * 1024
#: The name in the `Upgrade` header of a command's connection.
EXEC_PROTOCOL = "rhizome-exec/1"
#: The longest payload of a frame.
MAX_FRAME = 65_536
STDIN, END_OF_INPUT, STDOUT, STDERR, END = 0, 1, 16, 17, 18


@dataclass(frozen=True)
class Place:
    """Where a node listens: a Unix socket, or a host and a port."""

    socket: Optional[str] = None
    host: str = "127.0.0.1"
    port: int = 0
    token: Optional[str] = None
    prefix: str = ""

    @property
    def name(self) -> str:
        return self.socket or f"http://{self.host}:{self.port}"


def place_of(
    socket: Optional[str] = None,
    url: Optional[str] = None,
    token: Optional[str] = None,
    data_dir: Optional[str] = None,
    environ: Optional[Mapping[str, str]] = None,
) -> Place:
    """Finds the node: what is given, else `$RHIZOME_URL`, `$RHIZOME_SOCKET`, `$RHIZOME_DATA`, the
    data directory of this user."""
    env = os.environ if environ is None else environ
    if socket is None and url is None and data_dir is None:
        url = env.get("RHIZOME_URL") or None
        socket = None if url else env.get("RHIZOME_SOCKET") or None
    if url is not None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"`{url}` is no http:// address")
        return Place(
            host=parts.hostname,
            port=parts.port or 80,
            token=token or env.get("RHIZOME_TOKEN") or None,
            prefix=parts.path.rstrip("/"),
        )
    if socket is None:
        socket = socket_of(data_dir or env.get("RHIZOME_DATA") or default_data_dir(env))
    return Place(socket=socket)


def default_data_dir(env: Mapping[str, str]) -> str:
    if os.geteuid() == 0:
        return "/var/lib/rhizome"
    share = env.get("XDG_DATA_HOME", "")
    if not os.path.isabs(share):
        share = os.path.join(env.get("HOME", "/"), ".local/share")
    return os.path.join(share, "rhizome")


def socket_of(data_dir: str) -> str:
    try:
        with open(os.path.join(data_dir, "api.path"), encoding="utf-8") as pointer:
            return pointer.read()
    except OSError:
        return os.path.join(data_dir, "api.sock")


@dataclass
class Call(Generic[T]):
    """One request and what becomes of its answer."""

    method: str
    path: str
    made: Callable[[Any], T]
    query: Dict[str, Any] = field(default_factory=dict)
    body: Optional[Dict[str, Any]] = None
    data: Optional[bytes] = None
    #: Lines of progress, then a result.
    progress: bool = False
    #: The answer is bytes, not JSON.
    raw: bool = False
    #: Changes nothing, so it may be sent again.
    safe: bool = False
    #: With a key it may be sent again too: the node does it once.
    key: Optional[str] = None
    timeout: Optional[float] = None

    @property
    def repeatable(self) -> bool:
        return self.safe or self.key is not None

    def headers(self) -> Dict[str, str]:
        headers: Dict[str, str] = {}
        if self.key is not None:
            headers["Idempotency-Key"] = self.key
        return headers

    def target(self) -> str:
        return with_query(self.path, self.query)

    def payload(self) -> Optional[bytes]:
        if self.data is not None:
            return self.data
        if self.body is not None:
            return json.dumps(self.body, ensure_ascii=False).encode()
        return None


def new_key() -> str:
    """Draws an idempotency key."""
    return str(uuid.uuid4())


def part(text: str) -> str:
    """One part of a path."""
    return quote(text, safe="")


def with_query(path: str, query: Mapping[str, Any]) -> str:
    given = {name: _word(value) for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def without_none(**fields: Any) -> Dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def request_head(
    place: Place, method: str, target: str, headers: Mapping[str, str], length: Optional[int]
) -> bytes:
    host = "rhizome" if place.socket else f"{place.host}:{place.port}"
    lines = [f"{method} {place.prefix}{target} HTTP/1.1", f"Host: {host}"]
    if place.token:
        lines.append(f"Authorization: Bearer {place.token}")
    if length is not None:
        lines.append(f"Content-Length: {length}")
        lines.append("Content-Type: application/json")
    names = {name.lower() for name in headers}
    if "connection" not in names:
        lines.append("Connection: close")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    text = "\r\n".join(lines)
    if any(char in line for line in lines for char in "\r\n"):
        raise ValueError("a header or a path holds a line end")
    return (text + "\r\n\r\n").encode("latin-1")


def status_of(line: bytes) -> int:
    parts = line.split(None, 2)
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/1.") or not parts[1].isdigit():
        raise ValueError("the answer is no HTTP")
    return int(parts[1])


def header_of(line: bytes) -> Tuple[str, str]:
    name, _, value = line.decode("latin-1").partition(":")
    return name.strip().lower(), value.strip()


def frame(kind: int, payload: bytes = b"") -> bytes:
    return bytes([kind]) + len(payload).to_bytes(4, "big") + payload


def input_frames(data: bytes) -> List[bytes]:
    pieces = [data[at : at + MAX_FRAME] for at in range(0, len(data), MAX_FRAME)]
    return [frame(STDIN, piece) for piece in pieces] + [frame(END_OF_INPUT)]


def text_or_bytes(data: Union[str, bytes]) -> bytes:
    return data.encode() if isinstance(data, str) else data
