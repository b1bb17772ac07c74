"""An HTTP server on loopback that answers Ollama's routes as a test tells it to: for failures no healthy server shows."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Script = Callable[["Exchange"], None]


class Exchange:
    """One POST to /api/chat: what was asked, and ways to answer."""

    def __init__(self, handler: BaseHTTPRequestHandler, body: dict[str, Any], number: int) -> None:
        self._handler, self.body, self.number = handler, body, number

    def send(self, data: bytes, status: int = 200, kind: str = "application/x-ndjson", length: int | None = None) -> None:
        self._handler.send_response(status)
        self._handler.send_header("Content-Type", kind)
        self._handler.send_header("Content-Length", str(len(data) if length is None else length))
        self._handler.end_headers()
        self._handler.wfile.write(data)
        self._handler.wfile.flush()

    def reply(self, content: str, done_reason: str = "stop", **extra: Any) -> None:
        head = {"model": self.body["model"], "created_at": "2026-01-01T00:00:00Z"}
        parts = [
            {**head, "message": {"role": "assistant", "content": content}, "done": False},
            {
                **head,
                "message": {"role": "assistant", "content": ""},
                "done": True,
                "done_reason": done_reason,
                "prompt_eval_count": 300,
                "eval_count": 50,
                **extra,
            },
        ]
        self.send(b"".join(json.dumps(part).encode() + b"\n" for part in parts))

    def error(self, status: int, text: str) -> None:
        self.send(json.dumps({"error": text}).encode(), status, "application/json")

    def trickle(self, stop: threading.Event, gap: float = 0.1) -> None:
        """One space at a time, without end."""
        self._handler.send_response(200)
        self._handler.send_header("Content-Type", "application/x-ndjson")
        self._handler.end_headers()
        while not stop.wait(gap):
            try:
                self._handler.wfile.write(b" ")
                self._handler.wfile.flush()
            except OSError:
                return

    def drop(self) -> None:
        self._handler.connection.shutdown(socket.SHUT_RDWR)
        self._handler.connection.close()


class FakeOllama:
    """
    :param script: called for each chat request
    :param models: names that /api/tags lists
    :param page: what is answered in the list's place, by something that is not Ollama
    """

    def __init__(self, script: Script, models: tuple[str, ...] = ("fake:latest",), page: bytes = b"") -> None:
        self.requests: list[dict[str, Any]] = []
        self.stop = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                if page:
                    return Exchange(self, {}, 0).send(page, kind="text/html")
                listed = [{"model": name, "digest": "d" * 64} for name in models]
                Exchange(self, {}, 0).send(json.dumps({"models": listed}).encode(), kind="application/json")

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append(body)
                try:
                    script(Exchange(self, body, len(outer.requests)))
                except OSError:
                    pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.host = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self) -> FakeOllama:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._server.shutdown()
        self._server.server_close()


def sleep_until(stop: threading.Event, seconds: float = 60.0) -> None:
    """Accept and never answer."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not stop.wait(0.1):
        pass


GOOD = json.dumps(
    {
        "rules": [
            {
                "thresholds": [{"feature": "pole_angle", "op": ">", "value": 0.02}],
                "action": "push_right",
                "confidence": 0.8,
                "why": "The pole leans right.",
            }
        ]
    }
)
