"""The HTTP side of the embedded model server: Ollama's routes over engines, with nothing but the standard library.

Served are ``/api/chat``, ``/api/tags``, ``/api/show``, ``/api/ps``, ``/api/version`` and ``/``, and for clients of OpenAI's
API ``/v1/chat/completions`` and ``/v1/models``, whose key is not looked at. Where it differs from Ollama:

- ``/api/generate``, ``/api/embed``, ``/api/pull`` and the other routes that change models answer 501, as do ``tools`` and
  ``logprobs`` in a chat; images answer 400.
- A conversation longer than the context answers 400 instead of losing its oldest messages.
- Calls for one model are served one after the other, in the order of arrival; the number of threads is the server's.
- A call whose client has left is cancelled, streamed or not.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import selectors
import socket
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from sb3_nser.errors import ConfigurationError
from sb3_nser.local.api import ApiError, parse_chat, parse_json, parse_model
from sb3_nser.local.chat import ChatCall
from sb3_nser.local.completions import CompletionCall, error_body, model_body, models_body, parse_completion
from sb3_nser.local.engine import Engine
from sb3_nser.local.responses import API_VERSION, ps_body, show_body, tags_body
from sb3_nser.local.turnstile import Abandoned, QueueFull

MAX_BODY = 8 << 20
"""Largest request body in bytes; more is refused with 413."""

# poll needs no descriptor of its own, and unlike select it takes descriptors above 1023
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)
NOT_SERVED = ("generate", "embed", "embeddings", "pull", "push", "create", "copy", "delete", "blobs")
CLIENT_GONE = (BrokenPipeError, ConnectionResetError, ConnectionAbortedError, TimeoutError)


def is_loopback(host: str) -> bool:
    """Say whether a host name or address is this machine only.

    :param host: Name or address, without a port
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_of_origin(origin: str) -> str:
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:  # no address at all
        return ""


def _host_of(netloc: str) -> str:
    try:
        return urlsplit(f"//{netloc}").hostname or ""
    except ValueError:
        return ""


class ModelServer(ThreadingHTTPServer):
    """A server for a fixed set of models; ``serve_forever`` and ``shutdown`` as in the standard library.

    :param engines: Engines by name with tag
    :param host: Address to listen on
    :param port: Port; 0 takes a free one
    :raises ConfigurationError: if the port is taken or the address cannot be used
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    allow_reuse_address = os.name != "nt"  # on Windows the option would let two servers share a port

    def __init__(self, engines: Mapping[str, Engine], host: str = "127.0.0.1", port: int = 0) -> None:
        self.engines = dict(engines)
        self.loopback_only = is_loopback(host)
        self._ended = threading.Event()
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise ConfigurationError(_listen_error(host, port, error)) from error
        threading.Thread(target=self._expire, name="model-expiry", daemon=True).start()

    @property
    def url(self) -> str:
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def server_bind(self) -> None:
        # The standard library looks up the host's full name here, which may wait for a name server; nobody needs it.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(self.allow_reuse_address))
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    @property
    def stopping(self) -> bool:
        return self._ended.is_set()

    def shutdown(self) -> None:
        self._ended.set()
        super().shutdown()

    def server_close(self) -> None:
        """Close the port, cancel what is being generated, and free the models."""
        self._ended.set()
        super().server_close()
        deadline = time.monotonic() + 3.0
        for engine in self.engines.values():
            while engine.turnstile.busy and time.monotonic() < deadline:
                time.sleep(0.02)
            if not engine.turnstile.busy:
                engine.unload()

    def _expire(self) -> None:
        while not self._ended.wait(0.5):
            for engine in self.engines.values():
                engine.unload_if_due()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that goes away is no error, and the handler answers every other one itself."""


def _listen_error(host: str, port: int, error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"Port {port} on {host} is taken (perhaps Ollama itself is running there); choose another with --port."
    if isinstance(error, OSError) and error.errno == errno.EACCES:
        return f"Port {port} on {host} may not be used by this user; choose one above 1023 with --port."
    return f"The server cannot listen on {host}:{port}: {error}."


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = "sb3-nser"
    sys_version = ""
    timeout = 120  # seconds a client may neither send nor take anything; it frees the model from a stuck reader
    server: ModelServer
    started = False  # whether the answer's head has been sent

    def log_message(self, format: str, *args: Any) -> None:
        return None

    def do_GET(self) -> None:
        self._answer("GET")

    def do_HEAD(self) -> None:
        self._answer("HEAD")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def _answer(self, method: str) -> None:
        self.started = False
        try:
            try:
                body = self._read_body()
                self._check_sender()
                self._route(method, urlsplit(self.path).path, body)
            except QueueFull as error:
                raise ApiError(503, "server busy, please try again: too many requests are waiting") from error
        except ApiError as error:
            self._refuse(error)
        except (Abandoned, *CLIENT_GONE):
            self.close_connection = True
        except Exception as error:  # a fault of this server must not leave the client without an answer
            self._refuse(ApiError(500, f"internal error: {type(error).__name__}: {error}"))

    @property
    def _openai(self) -> bool:
        return self.path.startswith("/v1/")

    def _refuse(self, error: ApiError) -> None:
        body = error_body(error) if self._openai else error.body()
        try:
            if self.started:  # too late for a status: Ollama, too, puts the error on a line of its own
                self.send_event(body) if self._openai else self.send_line(body)
                self.end_lines()
            else:
                self.send_json(body, error.status)
        except CLIENT_GONE:
            self.close_connection = True

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding"):
            self.close_connection = True
            raise ApiError(411, "the request must carry a Content-Length")
        given = self.headers.get("Content-Length", "0").strip()
        if not (given.isascii() and given.isdigit() and len(given) <= 18):
            self.close_connection = True
            raise ApiError(400, f"invalid Content-Length {given!r}")
        if int(given) > MAX_BODY:
            self.close_connection = True  # the body is not read, so the connection cannot be used again
            self._drain(int(given))
            raise ApiError(413, f"the request body has {given} bytes, the limit is {MAX_BODY}")
        return self.rfile.read(int(given))

    def _drain(self, count: int) -> None:
        """Read and forget a body of moderate size: closing with unread data would reset the connection under the answer."""
        count = min(count, 4 * MAX_BODY)
        while count > 0 and (data := self.rfile.read(min(count, 1 << 16))):
            count -= len(data)

    def _check_sender(self) -> None:
        """Refuse what a web page sends from elsewhere, also through a name of its own that leads to this machine."""
        if not self.server.loopback_only:
            return
        host, origin = self.headers.get("Host"), self.headers.get("Origin")
        if host is not None and not is_loopback(_host_of(host)):
            raise ApiError(403, f"the Host header names {host!r}, but this server is for this machine only")
        if origin is not None and not is_loopback(_host_of_origin(origin)):
            raise ApiError(403, f"requests from pages of {origin!r} are not served")

    def _route(self, method: str, path: str, body: bytes) -> None:
        engines = self.server.engines
        if method in ("GET", "HEAD") and path == "/":
            self._send(b"Ollama is running", 200, "text/plain; charset=utf-8")
        elif method in ("GET", "HEAD") and path == "/api/version":
            self.send_json({"version": API_VERSION})
        elif method in ("GET", "HEAD") and path == "/api/tags":
            self.send_json(tags_body(engines.values()))
        elif method == "GET" and path == "/api/ps":
            self.send_json(ps_body(engines.values()))
        elif method == "POST" and path == "/api/show":
            self.send_json(show_body(self._engine(parse_model(parse_json(body)))))
        elif method == "POST" and path == "/api/chat":
            request = parse_chat(parse_json(body))
            ChatCall(request, self._engine(request.model), self, time.perf_counter_ns()).run()
        elif path.startswith("/v1/"):
            self._route_openai(method, path, body)
        elif path.startswith("/api/") and path.split("/")[2] in NOT_SERVED:
            raise ApiError(501, f"{path} is not supported by the embedded server; use Ollama for it")
        elif path in ("/api/chat", "/api/show", "/api/tags", "/api/ps", "/api/version"):
            raise ApiError(405, f"method {method} is not allowed for {path}")
        else:
            raise ApiError(404, f"{path} not found")

    def _route_openai(self, method: str, path: str, body: bytes) -> None:
        if method == "GET" and path == "/v1/models":
            self.send_json(models_body(self.server.engines.values()))
        elif method == "GET" and path.startswith("/v1/models/"):
            self.send_json(model_body(self._engine(unquote(path.removeprefix("/v1/models/")))))
        elif method == "POST" and path == "/v1/chat/completions":
            request = parse_completion(parse_json(body))
            CompletionCall(request, self._engine(request.chat.model), self, time.perf_counter_ns()).run()
        elif path in ("/v1/models", "/v1/chat/completions"):
            raise ApiError(405, f"method {method} is not allowed for {path}")
        else:
            raise ApiError(404, f"{path} is not served; of OpenAI's API there are /v1/chat/completions and /v1/models")

    def _engine(self, name: str) -> Engine:
        full = name if ":" in name.rsplit("/", 1)[-1] else f"{name}:latest"
        engine = self.server.engines.get(full)
        if engine is None:
            raise ApiError(404, f"model '{name}' not found")
        return engine

    # What follows is the connection as a call sees it.

    def gone(self) -> bool:
        """Say whether nobody waits for the answer: the client has closed its side, or the server is being stopped."""
        if self.server.stopping:
            return True
        try:
            with _Selector() as selector:
                selector.register(self.connection, selectors.EVENT_READ)
                return bool(selector.select(0)) and self.connection.recv(1, socket.MSG_PEEK) == b""
        except (OSError, ValueError):
            return True

    def send_json(self, body: dict[str, Any], status: int = 200) -> None:
        self._send(json.dumps(body).encode(), status, "application/json; charset=utf-8")

    def _send(self, data: bytes, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def send_line(self, body: dict[str, Any]) -> None:
        """Send one line of a streamed answer, and the answer's head before the first."""
        self._send_chunk(json.dumps(body).encode() + b"\n", "application/x-ndjson")

    def send_event(self, body: dict[str, Any] | None) -> None:
        """Send one server-sent event; None is the one that ends a stream of OpenAI's API."""
        data = b"[DONE]" if body is None else json.dumps(body).encode()
        self._send_chunk(b"data: %s\n\n" % data, "text/event-stream")

    def _send_chunk(self, data: bytes, kind: str) -> None:
        if not self.started:
            self.started = True
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def end_lines(self) -> None:
        self.wfile.write(b"0\r\n\r\n")
