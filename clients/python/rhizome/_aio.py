"""Requests over asyncio."""
from __future__ import annotations

import asyncio
import json
from typing import Any, AsyncIterator, Callable, Dict, List, Mapping, Optional, Tuple, TypeVar

from . import _errors as errors
from ._sync import Ended, broken, unreachable, wait_before_retry
from ._wire import END, EXEC_PROTOCOL, MAX_ANSWER, MAX_FRAME, MAX_LINE, STDERR, STDOUT
from ._wire import Call, Place, header_of, input_frames, request_head, status_of

T = TypeVar("T")


class Answer:
    """An answer whose body is read as it comes."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: int, headers: Dict[str, str]
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.status = status
        self.headers = headers

    async def pieces(self) -> AsyncIterator[bytes]:
        if self.status in (101, 204, 304):
            return
        try:
            if "chunked" in self.headers.get("transfer-encoding", "").lower():
                while True:
                    size = (await self.reader.readline()).split(b";")[0].strip()
                    if not size:
                        raise errors.StreamCut("cut", "the answer ended before it was whole")
                    left = int(size, 16)
                    if left == 0:
                        while (await self.reader.readline()).strip():
                            pass
                        return
                    while left:
                        piece = await self.reader.read(min(left, 65_536))
                        if not piece:
                            raise errors.StreamCut("cut", "the answer ended before it was whole")
                        left -= len(piece)
                        yield piece
                    await self.reader.readline()
            length = self.headers.get("content-length", "")
            left = int(length) if length.isdigit() else -1
            while left != 0:
                piece = await self.reader.read(65_536 if left < 0 else min(left, 65_536))
                if not piece:
                    if left < 0:
                        return
                    raise errors.StreamCut("cut", "the answer ended before it was whole")
                left = left if left < 0 else left - len(piece)
                yield piece
        except asyncio.IncompleteReadError as error:
            raise errors.StreamCut("cut", "the answer ended before it was whole") from error

    async def body(self) -> bytes:
        whole = bytearray()
        async for piece in self.pieces():
            whole += piece
            if len(whole) > MAX_ANSWER:
                raise errors.RhizomeError("too_large", f"the answer is larger than {MAX_ANSWER} bytes")
        return bytes(whole)

    async def lines(self) -> AsyncIterator[bytes]:
        pending = bytearray()
        async for piece in self.pieces():
            pending += piece
            while (end := pending.find(b"\n")) >= 0:
                line = bytes(pending[:end])
                del pending[: end + 1]
                if line:
                    yield line
            if len(pending) > MAX_LINE:
                raise errors.RhizomeError("too_large", "a line of the stream is too long")

    def close(self) -> None:
        self.writer.close()


class Transport:
    """Sends requests to one node."""

    def __init__(self, place: Place, timeout: float, retries: int) -> None:
        self.place = place
        self.timeout = timeout
        self.retries = retries

    async def connect(self) -> Tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            if self.place.socket is not None:
                return await asyncio.open_unix_connection(self.place.socket, limit=MAX_LINE)
            return await asyncio.open_connection(self.place.host, self.place.port, limit=MAX_LINE)
        except OSError as error:
            raise unreachable(self.place, error) from error

    async def open(
        self, method: str, target: str, payload: Optional[bytes], headers: Mapping[str, str]
    ) -> Answer:
        """Sends a request and returns its answer, whatever its status."""
        length = len(payload) if payload is not None else (0 if method in ("POST", "PUT") else None)
        head = request_head(self.place, method, target, headers, length)
        reader, writer = await self.connect()
        try:
            writer.write(head + (payload or b""))
            try:
                await writer.drain()
            except (BrokenPipeError, ConnectionResetError):
                pass  # It may have answered already, and that says why.
            line = await reader.readline()
            if not line:
                raise errors.Unreachable("broken", f"the daemon at {self.place.name} closed the connection")
            status = status_of(line)
            answered: Dict[str, str] = {}
            while (line := (await reader.readline()).strip()):
                name, value = header_of(line)
                answered[name] = value
            return Answer(reader, writer, status, answered)
        except BaseException as error:
            writer.close()
            if isinstance(error, (OSError, ValueError)):
                raise broken(self.place, error) from error
            raise

    async def send(self, call: Call[T]) -> T:
        """Sends a call; again, where that is safe and the failure may pass."""
        attempt = 0
        while True:
            try:
                timeout = call.timeout if call.timeout is not None else self.timeout
                try:
                    return await asyncio.wait_for(self.once(call), timeout)
                except asyncio.TimeoutError as error:
                    raise broken(self.place, TimeoutError()) from error
            except errors.RhizomeError as error:
                wait = wait_before_retry(call, error, attempt)
                if wait is None or attempt >= self.retries:
                    raise
                attempt += 1
                await asyncio.sleep(wait)

    async def once(self, call: Call[T]) -> T:
        answer = await self.open(call.method, call.target(), call.payload(), call.headers())
        try:
            if answer.status >= 300:
                raise errors.from_answer(answer.status, answer.headers, await answer.body())
            if call.progress:
                async for line in answer.lines():
                    value = json.loads(line)
                    if "done" in value:
                        return call.made(value["done"])
                    if "error" in value:
                        raise errors.from_info(value["error"])
                raise errors.StreamCut("cut", "the answer ended before the work did")
            body = await answer.body()
        except OSError as error:
            raise broken(self.place, error) from error
        finally:
            answer.close()
        return call.made(body) if call.raw else call.made(json.loads(body))

    async def stream(self, target: str) -> Answer:
        """Opens a stream of lines."""
        answer = await self.open("GET", target, None, {})
        if answer.status >= 300:
            try:
                raise errors.from_answer(answer.status, answer.headers, await answer.body())
            finally:
                answer.close()
        return answer

    async def run(
        self,
        target: str,
        body: Dict[str, Any],
        data: bytes,
        on_output: Optional[Callable[[int, bytes], None]],
    ) -> Ended:
        """Runs a command to its end."""
        headers = {"Connection": "upgrade", "Upgrade": EXEC_PROTOCOL}
        payload = json.dumps(body, ensure_ascii=False).encode()
        answer = await asyncio.wait_for(self.open("POST", target, payload, headers), self.timeout)
        sending: Optional["asyncio.Task[None]"] = None
        try:
            if answer.status != 101:
                raise errors.from_answer(answer.status, answer.headers, await answer.body())
            if body.get("stdin"):
                sending = asyncio.ensure_future(send_input(answer.writer, data))
            output: Dict[int, List[bytes]] = {STDOUT: [], STDERR: []}
            while True:
                head = await answer.reader.readexactly(5)
                length = int.from_bytes(head[1:], "big")
                if length > MAX_FRAME:
                    raise errors.RhizomeError("bad_frame", "a frame is longer than it may be")
                payload = await answer.reader.readexactly(length)
                if head[0] == END:
                    return b"".join(output[STDOUT]), b"".join(output[STDERR]), json.loads(payload)
                if head[0] in output:
                    output[head[0]].append(payload)
                    if on_output is not None:
                        on_output(head[0], payload)
        except asyncio.IncompleteReadError as error:
            raise errors.StreamCut("cut", "the connection of the command broke") from error
        except OSError as error:
            raise broken(self.place, error) from error
        finally:
            if sending is not None:
                sending.cancel()
            answer.close()


async def send_input(writer: asyncio.StreamWriter, data: bytes) -> None:
    try:
        for piece in input_frames(data):
            writer.write(piece)
            await writer.drain()
    except OSError:
        pass  # The command ended without reading it all.
