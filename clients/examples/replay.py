"""A model that says what it said once: an HTTP server on loopback that replays recorded answers."""
from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Iterator, List

RECORDED = Path(__file__).resolve().parent / "recorded"


@contextmanager
def recorded(name: str) -> Iterator[str]:
    """Serves the answers in recorded/<name>.json, one a request, and yields the server's address.

    Each may say what the request has to hold, so that a client that asks otherwise is found out.
    """
    answers: List[dict] = json.loads((RECORDED / f"{name}.json").read_text())
    problems: List[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
            answer = answers.pop(0) if answers else None
            if answer is None:
                problems.append("one request more than were recorded")
            else:
                problems.extend(
                    f"a request lacks {wanted!r}" for wanted in answer.get("expects", []) if wanted not in asked
                )
            body = json.dumps(answer["answer"] if answer else {"error": "nothing more is recorded"}).encode()
            self.send_response(200 if answer else 500)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
    if problems or answers:
        raise SystemExit(f"not as recorded: {problems}, {len(answers)} answers were not asked for")
