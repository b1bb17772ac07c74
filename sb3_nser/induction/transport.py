"""The official client, with bounds that it does not have: one deadline for a whole call, one limit for a whole answer."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def bounded_client(host: str, seconds: float, until: float | None = None) -> Iterator[ollama.Client]:
    """
    The official client with a deadline on the whole of each call, and a limit on the size of an answer. At the deadline the
    connection is closed under it, so that not even a header that trickles in byte by byte outlives it.

    :param host: address of the server; a proxy from the environment is used, except for addresses on this machine
    :param seconds: time-out of each gap between bytes, and of the call if ``until`` is None
    :param until: end of the call, on the clock of ``time.monotonic``
    """
    limits = _Limits(time.monotonic() + seconds if until is None else until)
    url = httpx.URL(host if "://" in host else f"http://{host}")
    local = url.host in ("localhost", "127.0.0.1", "::1", "0.0.0.0")
    proxy = None if local or urllib.request.proxy_bypass(url.host) else urllib.request.getproxies().get(url.scheme)
    timeout = httpx.Timeout(seconds, connect=min(seconds, 10.0))
    # trust_env off: a proxy taken from the environment by the client itself would go past the bounded transport
    headers = {"Accept-Encoding": "identity"}
    transport = _BoundedTransport(limits, proxy)
    client = ollama.Client(host=host, timeout=timeout, transport=transport, trust_env=False, headers=headers)
    watchdog = threading.Timer(max(0.0, limits.until - time.monotonic()) + 0.2, transport.close)
    watchdog.daemon = True
    watchdog.start()
    try:
        with client:
            yield client
    except Exception as error:
        if not isinstance(error, Overrun) and time.monotonic() > limits.until:
            raise Overrun("deadline") from error  # whatever a closed connection happens to raise
        raise
    finally:
        watchdog.cancel()
