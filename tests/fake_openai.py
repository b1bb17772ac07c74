"""An HTTP server on loopback that answers OpenAI's routes as a test tells it to: for failures no healthy server shows."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fake_ollama import Exchange


class Completion(Exchange):
    """One POST: what was asked, and ways to answer."""

    def reply(self, content: str, finish_reason: str = "stop", prompt_tokens: int = 300) -> None:
        head = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": self.body["model"]}
        first, last = {"role": "assistant", "content": content}, {}
        chunks = [
            {**head, "choices": [{"index": 0, "delta": first, "finish_reason": None}]},
            {**head, "choices": [{"index": 0, "delta": last, "finish_reason": finish_reason}]},
            {**head, "choices": [], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": 50, "total_tokens": 0}},
        ]
        self.events(*chunks)

    def events(self, *chunks: dict[str, Any], done: bool = True) -> None:
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + ["data: [DONE]\n\n"] * done
        self.send("".join(lines).encode(), kind="text/event-stream")

    def error(self, status: int, text: str) -> None:
        self.send(json.dumps({"error": {"message": text, "type": "e", "code": None}}).encode(), status, "application/json")


class FakeOpenAI:
    """
    :param script: called for each chat request
    :param models: names that /v1/models lists
    :param listing: status and body in the list's place
    """

    def __init__(
        self,
        script: Callable[[Completion], None],
        models: tuple[str, ...] = ("fake",),
        listing: tuple[int, bytes] | None = None,
    ) -> None:
        self.requests: list[dict[str, Any]] = []
        self.authorizations: list[str | None] = []
        self.paths: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                self._note()
                listed = [{"id": name, "object": "model", "created": 0, "owned_by": "x"} for name in models]
                status, body = listing or (200, json.dumps({"object": "list", "data": listed}).encode())
                Completion(self, {}, 0).send(body, status, "application/json")

            def do_POST(self) -> None:
                self._note()
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append(body)
                try:
                    script(Completion(self, body, len(outer.requests)))
                except OSError:
                    pass

            def _note(self) -> None:
                outer.authorizations.append(self.headers.get("Authorization"))
                outer.paths.append(self.path)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.host = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self) -> FakeOpenAI:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
