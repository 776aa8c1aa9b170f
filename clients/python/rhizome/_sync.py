"""Requests over blocking sockets."""
from __future__ import annotations

import json
import socket
import time
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Mapping, Optional, Tuple, TypeVar

from . import _errors as errors
from ._wire import END, EXEC_PROTOCOL, MAX_ANSWER, MAX_FRAME, MAX_LINE, STDERR, STDOUT
from ._wire import Call, Place, header_of, input_frames, request_head, status_of

T = TypeVar("T")
#: How a command ended: its standard output, its standard error, and the last frame.
Ended = Tuple[bytes, bytes, Any]


class Answer:
    """An answer whose body is read as it comes."""

    def __init__(self, connection: socket.socket, reader: BinaryIO, status: int, headers: Dict[str, str]) -> None:
        self.connection = connection
        self.reader = reader
        self.status = status
        self.headers = headers
        length = headers.get("content-length", "")
        self._left: Optional[int] = int(length) if length.isdigit() else None
        self._chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        self._chunk = 0
        self._over = status in (101, 204, 304)

    def pieces(self) -> Iterator[bytes]:
        """The body, piece by piece; a body that is cut off raises."""
        while not self._over:
            if self._chunked:
                if self._chunk == 0:
                    size = self.reader.readline(MAX_LINE).split(b";")[0].strip()
                    if not size:
                        raise errors.StreamCut("cut", "the answer ended before it was whole")
                    self._chunk = int(size, 16)
                    if self._chunk == 0:
                        while self.reader.readline(MAX_LINE).strip():
                            pass
                        self._over = True
                        return
                piece = self.reader.read1(min(self._chunk, 65_536))  # type: ignore[attr-defined]
                self._chunk -= len(piece)
                if piece and self._chunk == 0:
                    self.reader.readline(MAX_LINE)
            elif self._left is not None:
                if self._left == 0:
                    self._over = True
                    return
                piece = self.reader.read1(min(self._left, 65_536))  # type: ignore[attr-defined]
                self._left -= len(piece)
            else:
                piece = self.reader.read1(65_536)  # type: ignore[attr-defined]
                if not piece:
                    self._over = True
                    return
            if not piece:
                raise errors.StreamCut("cut", "the answer ended before it was whole")
            yield piece

    def body(self) -> bytes:
        whole = bytearray()
        for piece in self.pieces():
            whole += piece
            if len(whole) > MAX_ANSWER:
                raise errors.RhizomeError("too_large", f"the answer is larger than {MAX_ANSWER} bytes")
        return bytes(whole)

    def lines(self) -> Iterator[bytes]:
        pending = bytearray()
        for piece in self.pieces():
            pending += piece
            while (end := pending.find(b"\n")) >= 0:
                line = bytes(pending[:end])
                del pending[: end + 1]
                if line:
                    yield line
            if len(pending) > MAX_LINE:
                raise errors.RhizomeError("too_large", "a line of the stream is too long")

    def close(self) -> None:
        try:
            self.reader.close()
        finally:
            self.connection.close()

    def __enter__(self) -> "Answer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Transport:
    """Sends requests to one node."""

    def __init__(self, place: Place, timeout: float, retries: int, sleep: Callable[[float], None] = time.sleep) -> None:
        self.place = place
        self.timeout = timeout
        self.retries = retries
        self.sleep = sleep

    def connect(self, timeout: Optional[float]) -> socket.socket:
        try:
            if self.place.socket is not None:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                connection.settimeout(timeout)
                try:
                    connection.connect(self.place.socket)
                except BaseException:
                    connection.close()
                    raise
                return connection
            connection = socket.create_connection((self.place.host, self.place.port), timeout)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        except OSError as error:
            raise unreachable(self.place, error) from error

    def open(
        self,
        method: str,
        target: str,
        payload: Optional[bytes],
        headers: Mapping[str, str],
        timeout: Optional[float],
    ) -> Answer:
        """Sends a request and returns its answer, whatever its status."""
        length = len(payload) if payload is not None else (0 if method in ("POST", "PUT") else None)
        head = request_head(self.place, method, target, headers, length)
        connection = self.connect(timeout)
        reader = connection.makefile("rb")
        try:
            try:
                connection.sendall(head + (payload or b""))
            except (BrokenPipeError, ConnectionResetError):
                pass  # It may have answered already, and that says why.
            line = reader.readline(MAX_LINE)
            if not line:
                raise errors.Unreachable("broken", f"the daemon at {self.place.name} closed the connection")
            status = status_of(line)
            answered: Dict[str, str] = {}
            while (line := reader.readline(MAX_LINE).strip()):
                name, value = header_of(line)
                answered[name] = value
            return Answer(connection, reader, status, answered)
        except BaseException as error:
            reader.close()
            connection.close()
            if isinstance(error, (OSError, ValueError)):
                raise broken(self.place, error) from error
            raise

    def send(self, call: Call[T]) -> T:
        """Sends a call; again, where that is safe and the failure may pass."""
        attempt = 0
        while True:
            try:
                return self.once(call)
            except errors.RhizomeError as error:
                wait = wait_before_retry(call, error, attempt)
                if wait is None or attempt >= self.retries:
                    raise
                attempt += 1
                self.sleep(wait)

    def once(self, call: Call[T]) -> T:
        timeout = call.timeout if call.timeout is not None else self.timeout
        with self.open(call.method, call.target(), call.payload(), call.headers(), timeout) as answer:
            try:
                if answer.status >= 300:
                    raise errors.from_answer(answer.status, answer.headers, answer.body())
                if call.progress:
                    return call.made(result_of(answer.lines()))
                body = answer.body()
            except OSError as error:
                raise broken(self.place, error) from error
        return call.made(body) if call.raw else call.made(json.loads(body))

    def stream(self, target: str, timeout: Optional[float]) -> Answer:
        """Opens a stream of lines."""
        answer = self.open("GET", target, None, {}, timeout)
        if answer.status >= 300:
            with answer:
                raise errors.from_answer(answer.status, answer.headers, answer.body())
        return answer

    def run(
        self,
        target: str,
        body: Dict[str, Any],
        data: bytes,
        timeout: Optional[float],
        on_output: Optional[Callable[[int, bytes], None]],
    ) -> Ended:
        """Runs a command to its end."""
        headers = {"Connection": "upgrade", "Upgrade": EXEC_PROTOCOL}
        payload = json.dumps(body, ensure_ascii=False).encode()
        with self.open("POST", target, payload, headers, self.timeout) as answer:
            if answer.status != 101:
                raise errors.from_answer(answer.status, answer.headers, answer.body())
            answer.connection.settimeout(timeout)
            output: Dict[int, List[bytes]] = {STDOUT: [], STDERR: []}
            try:
                if body.get("stdin"):
                    send_input(answer.connection, data)
                while True:
                    kind, payload = read_frame(answer.reader)
                    if kind == END:
                        return b"".join(output[STDOUT]), b"".join(output[STDERR]), json.loads(payload)
                    if kind in output:
                        output[kind].append(payload)
                        if on_output is not None:
                            on_output(kind, payload)
            except OSError as error:
                raise broken(self.place, error) from error


def send_input(connection: socket.socket, data: bytes) -> None:
    """Sends the input from a thread: a command that writes before it reads holds nobody up."""
    import threading

    def send() -> None:
        try:
            for piece in input_frames(data):
                connection.sendall(piece)
        except OSError:
            pass  # The command ended without reading it all.

    threading.Thread(target=send, daemon=True).start()


def read_frame(reader: BinaryIO) -> Tuple[int, bytes]:
    head = reader.read(5)
    if len(head) < 5:
        raise errors.StreamCut("cut", "the connection of the command broke", hint="the daemon may be gone")
    length = int.from_bytes(head[1:], "big")
    if length > MAX_FRAME:
        raise errors.RhizomeError("bad_frame", "a frame is longer than it may be")
    payload = reader.read(length)
    if len(payload) < length:
        raise errors.StreamCut("cut", "the connection of the command broke")
    return head[0], payload


def result_of(lines: Iterator[bytes]) -> Any:
    """Follows progress to its result."""
    for line in lines:
        value = json.loads(line)
        if "done" in value:
            return value["done"]
        if "error" in value:
            raise errors.from_info(value["error"])
    raise errors.StreamCut("cut", "the answer ended before the work did")


def wait_before_retry(call: Call[Any], error: errors.RhizomeError, attempt: int) -> Optional[float]:
    """How long to wait before a call is sent again; None if it is not."""
    pause: float = min(0.1 * 2.0**attempt, 2.0)
    refused = isinstance(error, errors.Unreachable) and error.code == "unreachable"
    if refused:
        return pause  # Nothing was sent.
    if not call.repeatable:
        return None
    if error.code == "idempotency_in_progress":
        return pause
    if isinstance(error, errors.Unreachable) and not isinstance(error, errors.TimedOut):
        return pause
    if error.status in (429, 503) and error.code in ("rate_limited", "busy", "stopping"):
        return error.retry_after if error.retry_after is not None else pause
    return None


def unreachable(place: Place, error: BaseException) -> errors.Unreachable:
    hint = "start it with `rhizome up`"
    return errors.Unreachable(
        "unreachable", f"cannot reach the daemon at {place.name}", hint=hint, causes=[str(error)]
    )


def broken(place: Place, error: BaseException) -> errors.Unreachable:
    if isinstance(error, TimeoutError):
        return errors.TimedOut("timed_out", f"the daemon at {place.name} did not answer in time")
    return errors.Unreachable(
        "broken", f"the connection to the daemon at {place.name} broke", causes=[str(error)]
    )
