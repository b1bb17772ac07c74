"""One model over the llama.cpp runtime: load, generate with cancellation, unload when its time is over.

The runtime (``xllamacpp``) is imported on the first load, never before.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sb3_nser.errors import ConfigurationError
from sb3_nser.local.api import ApiError, ChatRequest
from sb3_nser.local.gguf_info import GGUFInfo
from sb3_nser.local.turnstile import Turnstile

# The prompt is read in slices of this many tokens. Between two slices a cancelled call is noticed: about a second on
# one slow core. Larger slices are hardly faster on a CPU.
PROMPT_SLICE = 128


@dataclass(frozen=True)
class Piece:
    """Text that has just been generated; both parts are empty while the prompt is being read."""

    content: str = ""
    thinking: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a call ended. Durations in nanoseconds; ``prompt_tokens`` includes those found in the prompt cache."""

    done_reason: str
    prompt_tokens: int
    prompt_ns: int
    tokens: int
    tokens_ns: int


def require_runtime() -> None:
    """Check that the runtime is installed, without importing it.

    :raises ConfigurationError: if it is not
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise ConfigurationError(
            'The embedded model server needs the package xllamacpp: install it with pip install "sb3-nser[local]".'
        )


def _runtime() -> Any:
    # Idle llama threads that spin take the core from whoever else computes, and slow generation by a factor of ten
    # and more. OpenMP reads this variable once, when the native library is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import xllamacpp

    return xllamacpp


class Engine:
    """One model. Not safe for two threads at once: hold ``turnstile`` around ``load``, ``generate`` and ``unload``.

    :param name: Name with tag under which the model is served
    :param info: Description of its file
    :param threads: Threads that compute; more than the free cores makes it slower by far
    """

    def __init__(self, name: str, info: GGUFInfo, threads: int = 1) -> None:
        self.name = name
        self.info = info
        self.threads = threads
        self.turnstile = Turnstile()
        self.num_ctx = 0
        self._server: Any = None
        self._expires = math.inf  # on time.monotonic's scale

    @property
    def loaded(self) -> bool:
        return self._server is not None

    @property
    def seconds_left(self) -> float:
        """Seconds until the model is unloaded if nobody asks again; possibly ``inf``, never negative."""
        return max(0.0, self._expires - time.monotonic())

    def load(self, num_ctx: int) -> None:
        """Load the model, or load it anew if the context size has changed.

        :param num_ctx: Context in tokens; capped at what the model was trained for. More of it costs memory.
        :raises ApiError: 500 if the runtime cannot load it
        """
        num_ctx = min(num_ctx, self.info.context_length or num_ctx)
        if self._server is not None and self.num_ctx == num_ctx:
            return
        self.unload()
        runtime = _runtime()
        params = runtime.CommonParams()
        params.model.path = str(self.info.path)
        params.n_ctx = num_ctx
        params.n_parallel = 1
        params.n_batch = params.n_ubatch = PROMPT_SLICE
        # Unless told otherwise the runtime keeps the state of old prompts in memory, up to 8 GB of it. The newest prompt,
        # which is all that calls with a common beginning need, is kept anyway.
        params.cache_ram_mib = 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = self.threads
        params.verbosity = 1
        # The runtime opens an HTTP port of its own. Nobody needs it, so it is on loopback, behind a key nobody knows.
        params.hostnames, params.port, params.ui = ["127.0.0.1"], 0, False
        params.api_keys = [secrets.token_hex(16)]
        params.endpoint_slots = params.endpoint_props = params.endpoint_metrics = False
        try:
            self._server = runtime.Server(params)
        except (RuntimeError, ValueError, OSError) as error:
            raise ApiError(500, f"the model {self.name} could not be loaded: {error}") from error
        self.num_ctx = num_ctx

    def unload(self) -> None:
        """Free the model's memory."""
        self._server = None
        self.num_ctx = 0
        self._expires = math.inf

    def keep(self, seconds: float) -> None:
        """Set how long the model stays loaded from now on.

        :param seconds: 0 unloads at once, ``inf`` never
        """
        if seconds == 0:
            self.unload()
        elif self.loaded:
            self._expires = time.monotonic() + seconds

    def unload_if_due(self) -> None:
        """Unload if the time is over and nobody is using or waiting for the model."""
        if self.loaded and self.seconds_left == 0:
            with self.turnstile.turn_if_idle() as held:
                if held and self.seconds_left == 0:
                    self.unload()

    def generate(self, request: ChatRequest, on_piece: Callable[[Piece], bool]) -> Outcome | None:
        """Answer a conversation with the loaded model.

        :param request: A request with messages
        :param on_piece: Called in this thread for every piece, and between the slices of the prompt; True cancels
        :return: How it ended; None if it was cancelled
        :raises ApiError: 400 if prompt or schema are refused, 500 if the runtime fails
        """
        listener = _Listener(on_piece)
        try:
            self._server.handle_chat_completions(_runtime_request(request, self.info.thinks, self.num_ctx), listener)
        except ValueError as error:
            raise ApiError(400, _explain(str(error), request)) from error
        except RuntimeError as error:
            raise ApiError(500, str(error)) from error
        if listener.failure is not None:
            raise listener.failure
        if listener.cancelled:
            return None
        if listener.refusal is not None:
            code, message = listener.refusal
            raise ApiError(code, _explain(message, request))
        if listener.outcome is None:
            raise ApiError(500, "the runtime ended without a result")
        return listener.outcome


class _Listener:
    """The runtime's callback: turns its chunks into pieces. An exception must not cross native code, so it is kept."""

    def __init__(self, on_piece: Callable[[Piece], bool]) -> None:
        self.on_piece = on_piece
        self.outcome: Outcome | None = None
        self.refusal: tuple[int, str] | None = None
        self.failure: Exception | None = None
        self.cancelled = False

    def __call__(self, chunks: Any) -> bool:
        try:
            for chunk in chunks if isinstance(chunks, list) else [chunks]:
                self._take(chunk)
        except Exception as error:
            self.failure = error
        return self.cancelled or self.failure is not None

    def _take(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            error = chunk["error"]
            self.refusal = (int(error.get("code", 500)), str(error.get("message", error)))
            return
        choices = chunk.get("choices")
        if not choices or self.cancelled:
            return
        delta = choices[0].get("delta") or {}
        self.cancelled = self.on_piece(Piece(delta.get("content") or "", delta.get("reasoning_content") or ""))
        if reason := choices[0].get("finish_reason"):
            self.outcome = _outcome(reason, chunk.get("timings") or {})


def _outcome(reason: str, timings: dict[str, Any]) -> Outcome:
    return Outcome(
        done_reason="length" if reason == "length" else "stop",
        prompt_tokens=int(timings.get("prompt_n", 0)) + int(timings.get("cache_n", 0)),
        prompt_ns=int(timings.get("prompt_ms", 0.0) * 1e6),
        tokens=int(timings.get("predicted_n", 0)),
        tokens_ns=int(timings.get("predicted_ms", 0.0) * 1e6),
    )


def _runtime_request(request: ChatRequest, thinks: bool, num_ctx: int) -> dict[str, Any]:
    """Write a request in the runtime's terms (OpenAI's chat completions with llama.cpp's additions)."""
    options = request.options
    body: dict[str, Any] = {
        "messages": list(request.messages),
        "stream": True,
        "return_progress": True,  # without it a call could not be cancelled while the prompt is read
        "cache_prompt": True,
        "n_predict": options.num_predict if options.num_predict > 0 else num_ctx,
        "n_keep": options.num_keep,
        "stop": list(options.stop),
    }
    for key in ("seed", "temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_last_n"):
        body[key] = getattr(options, key)
    for key in ("repeat_penalty", "presence_penalty", "frequency_penalty"):
        body[key] = getattr(options, key)
    if request.format == "json":
        body["response_format"] = {"type": "json_object"}
    elif request.format is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "schema", "schema": request.format}}
    if thinks:
        body["chat_template_kwargs"] = {"enable_thinking": request.think is not False}
    return body


def _explain(message: str, request: ChatRequest) -> str:
    """Say in the API's terms what the runtime refused."""
    if isinstance(request.format, dict) and (found := re.search(r"JSON schema error at (.*)", message)):
        return f"invalid JSON schema in format: at {found.group(1)}"
    if "context size" in message:
        return f'{message} with option "num_ctx"'
    return message
