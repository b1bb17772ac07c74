"""Official clients, with bounds that they do not have: one deadline for a whole call, one limit for a whole answer."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import ollama

MAX_BODY_BYTES = 4 * 1024 * 1024
"""Most bytes of one HTTP answer: a stream wraps every token in some 200 bytes of JSON."""


class Overrun(Exception):
    """Raised inside the transport when the call's deadline or size limit is reached."""


class _Limits:
    def __init__(self, until: float) -> None:
        self.until = until
        self.bytes_left = MAX_BODY_BYTES


class _BoundedStream(httpx.SyncByteStream):
    """A response body that ends with the call's total deadline, however slowly the bytes trickle."""

    def __init__(self, stream: httpx.SyncByteStream, limits: _Limits) -> None:
        self._stream, self._limits = stream, limits

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._stream:
            self._limits.bytes_left -= len(chunk)
            if self._limits.bytes_left < 0:
                raise Overrun("size")
            if time.monotonic() > self._limits.until:
                raise Overrun("deadline")
            yield chunk

    def close(self) -> None:
        self._stream.close()


class _BoundedTransport(httpx.HTTPTransport):
    def __init__(self, limits: _Limits, proxy: str | None) -> None:
        super().__init__(proxy=proxy)
        self._limits = limits

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        remaining = self._limits.until - time.monotonic()  # of the whole call, redirects included
        if remaining <= 0:
            raise Overrun("deadline")
        timeout = request.extensions.get("timeout", {})
        request.extensions["timeout"] = {k: remaining if v is None else min(v, remaining) for k, v in timeout.items()}
        response = super().handle_request(request)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            response.close()
            raise Overrun("encoding")  # compressed, a small answer may hide a huge one
        if isinstance(response.stream, httpx.SyncByteStream):
            response.stream = _BoundedStream(response.stream, self._limits)
        return response


def http_url(host: str) -> httpx.URL:
    """
    :param host: address with or without a scheme
    :return: the address with one
    """
    return httpx.URL(host if "://" in host else f"http://{host}")


@contextmanager
def bounded_call(host: str, seconds: float, until: float | None = None) -> Iterator[dict[str, Any]]:
    """
    Arguments for an ``httpx.Client`` with a deadline on the whole of each call, and a limit on the size of an answer. At the
    deadline the connection is closed under it, so that not even a header that trickles in byte by byte outlives it.

    :param host: address of the server; a proxy from the environment is used, except for addresses on this machine
    :param seconds: time-out of each gap between bytes, and of the call if ``until`` is None
    :param until: end of the call, on the clock of ``time.monotonic``
    :raises Overrun: in place of whatever a connection raises that was closed at the deadline
    """
    limits = _Limits(time.monotonic() + seconds if until is None else until)
    url = http_url(host)
    local = url.host in ("localhost", "127.0.0.1", "::1", "0.0.0.0")
    proxy = None if local or urllib.request.proxy_bypass(url.host) else urllib.request.getproxies().get(url.scheme)
    transport = _BoundedTransport(limits, proxy)
    watchdog = threading.Timer(max(0.0, limits.until - time.monotonic()) + 0.2, transport.close)
    watchdog.daemon = True
    watchdog.start()
    try:
        # trust_env off: a proxy taken from the environment by the client itself would go past the bounded transport
        yield {
            "timeout": httpx.Timeout(seconds, connect=min(seconds, 10.0)),
            "transport": transport,
            "trust_env": False,
            "headers": {"Accept-Encoding": "identity"},
        }
    except Exception as error:
        if not isinstance(error, Overrun) and time.monotonic() > limits.until:
            raise Overrun("deadline") from error  # whatever a closed connection happens to raise
        raise
    finally:
        watchdog.cancel()


@contextmanager
def bounded_client(host: str, seconds: float, until: float | None = None) -> Iterator[ollama.Client]:
    """:return: Ollama's official client, bounded as ``bounded_call`` says"""
    with bounded_call(host, seconds, until) as arguments, ollama.Client(host=host, **arguments) as client:
        yield client
