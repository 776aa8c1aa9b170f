"""What needs no node: places, requests, errors, models, retries."""
from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

from rhizome import RateLimited, Rhizome, Unreachable, models
from rhizome._errors import Gone, IdempotencyMismatch, NotFound, from_answer
from rhizome._sync import Transport, wait_before_retry
from rhizome._wire import Call, Place, input_frames, place_of, request_head, with_query


class Places(unittest.TestCase):
    def test_the_environment_names_the_node(self) -> None:
        self.assertEqual(place_of(environ={"RHIZOME_URL": "http://127.0.0.1:4580"}).port, 4580)
        self.assertEqual(place_of(environ={"RHIZOME_SOCKET": "/s"}).socket, "/s")
        self.assertEqual(place_of(environ={"RHIZOME_DATA": "/d"}).socket, "/d/api.sock")
        self.assertEqual(place_of(url="http://localhost:1", token="t", environ={}).token, "t")
        with self.assertRaises(ValueError):
            place_of(url="ftp://x", environ={})

    def test_a_long_path_is_followed(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "api.path").write_text("/run/x.sock")
            self.assertEqual(place_of(data_dir=directory).socket, "/run/x.sock")


class Requests(unittest.TestCase):
    def test_no_header_can_be_smuggled_in(self) -> None:
        for headers in [{"Idempotency-Key": "a\r\nX: y"}]:
            with self.assertRaises(ValueError):
                request_head(Place(socket="/s"), "POST", "/v1/memory", headers, 0)
        self.assertEqual(with_query("/v1/memory", {"space": "a b&c", "kind": None}), "/v1/memory?space=a+b%26c")

    def test_input_is_cut_into_frames(self) -> None:
        frames = input_frames(b"x" * 100_000)
        self.assertEqual([len(frame) for frame in frames], [65_541, 34_469, 5])
        self.assertEqual(input_frames(b""), [b"\x01\x00\x00\x00\x00"])


class Errors(unittest.TestCase):
    def test_errors_are_typed_by_code_and_status(self) -> None:
        body = b'{"error":{"code":"idempotency_mismatch","message":"m","hint":"h"}}'
        error = from_answer(422, {}, body)
        self.assertIsInstance(error, IdempotencyMismatch)
        self.assertEqual((error.code, error.hint, error.status), ("idempotency_mismatch", "h", 422))
        self.assertIn("hint: h", str(error))
        limited = from_answer(429, {"retry-after": "2"}, b'{"error":{"code":"rate_limited","message":"m"}}')
        self.assertIsInstance(limited, RateLimited)
        self.assertEqual(limited.retry_after, 2.0)
        self.assertIsInstance(from_answer(410, {}, b'{"error":{"code":"sandbox_gone","message":"m"}}'), Gone)
        self.assertIsInstance(from_answer(404, {}, b'{"error":{"code":"unknown_space","message":"m"}}'), NotFound)
        self.assertEqual(from_answer(500, {}, b"\xff<html>").status, 500)

    def test_only_what_is_safe_is_sent_again(self) -> None:
        once = Call("POST", "/x", dict)
        keyed = Call("POST", "/x", dict, key="k")
        refused = Unreachable("unreachable", "m")
        broken = Unreachable("broken", "m")
        self.assertIsNotNone(wait_before_retry(once, refused, 0))
        self.assertIsNone(wait_before_retry(once, broken, 0))
        self.assertIsNotNone(wait_before_retry(keyed, broken, 0))
        self.assertIsNone(wait_before_retry(once, RateLimited("busy", "m", status=429), 0))
        self.assertEqual(wait_before_retry(keyed, RateLimited("rate_limited", "m", status=429, retry_after=3), 0), 3)
        self.assertIsNone(wait_before_retry(keyed, RateLimited("quota_exceeded", "m", status=429), 0))

    def test_a_daemon_that_is_not_there_is_said_so(self) -> None:
        with self.assertRaises(Unreachable) as raised:
            Rhizome(socket="/nonexistent/api.sock", retries=0).me()
        self.assertIn("rhizome up", str(raised.exception))

    def test_a_keyed_call_is_sent_again_with_its_key(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "s")
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(path)
            listener.listen()
            keys = []

            def serve() -> None:
                for number in range(2):
                    connection, _ = listener.accept()
                    with connection, connection.makefile("rb") as reader:
                        length = 0
                        while (line := reader.readline().strip()):
                            name, _, value = line.decode().partition(": ")
                            if name == "Idempotency-Key":
                                keys.append(value)
                            if name == "Content-Length":
                                length = int(value)
                        reader.read(length)
                        if number == 1:
                            body = b'{"schema":1,"id":"i","doc":"d","space":"s","seq":0,"at_ms":1}'
                            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

            thread = threading.Thread(target=serve)
            thread.start()
            made = Rhizome(socket=path).remember("once")
            thread.join()
            listener.close()
            self.assertEqual(made.id, "i")
            self.assertEqual(len(keys), 2)
            self.assertEqual(keys[0], keys[1])


class Models(unittest.TestCase):
    def test_models_are_made_of_json_and_back(self) -> None:
        value = {"schema": 1, "later": True, "hits": [{"id": "f", "author": {"id": "a", "name": "n"}, "score": 1.5}]}
        made = models.Recalled.from_json(value)
        self.assertEqual(made.hits[0].author.name, "n")
        self.assertEqual(made.hits[0].score, 1.5)
        self.assertIsNone(made.hits[0].task)
        self.assertEqual(made.to_json()["hits"][0]["author"], {"id": "a", "name": "n"})

    def test_what_is_generated_is_what_is_checked_in(self) -> None:
        tool = Path(__file__).resolve().parents[1] / "tools" / "generate.py"
        if not tool.parents[3].joinpath("docs/openapi.json").is_file():
            self.skipTest("not in the repository")
        subprocess.run([sys.executable, str(tool), "--check"], check=True)


if __name__ == "__main__":
    unittest.main()
