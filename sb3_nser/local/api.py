"""Ollama's chat API as data: a request body becomes a ``ChatRequest``, anything wrong an ``ApiError``.

Nothing here touches the network or a model. Status codes and the shape of errors follow Ollama, so that code written
for the one meets the same behaviour at the other.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any, Literal

DEFAULT_KEEP_ALIVE = 300.0
ROLES = ("system", "user", "assistant", "tool")
THINK_LEVELS = ("low", "medium", "high", "max")

_INT32 = 1 << 31
_SEEDS = (1 << 32) - 1  # the runtime's seeds have 32 bits, and the last one means "draw one"
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")


class ApiError(Exception):
    """An answer other than 200.

    :param status: HTTP status code
    :param message: Text of the ``error`` field
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    def body(self) -> dict[str, str]:
        return {"error": self.message}


@dataclass(frozen=True)
class Options:
    """Sampling options with Ollama's defaults. Options that Ollama knows and this server ignores are not listed."""

    num_ctx: int = 4096
    num_predict: int = -1
    num_keep: int = 4
    seed: int = -1
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.9
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChatRequest:
    """One call of ``/api/chat``, checked.

    :param model: Name as the client wrote it
    :param messages: Empty to load or unload only
    :param stream: Whether pieces are sent as they come
    :param format: None for free text, ``"json"`` for any JSON object, or a JSON schema
    :param keep_alive: Seconds the model stays loaded after the call; ``inf`` for ever
    :param keep_alive_given: Whether the client wrote it
    :param think: What the client asked for; None if nothing
    :param options: Sampling options
    """

    model: str
    messages: tuple[dict[str, str], ...]
    stream: bool = True
    format: Literal["json"] | dict[str, Any] | None = None
    keep_alive: float = DEFAULT_KEEP_ALIVE
    keep_alive_given: bool = False
    think: bool | str | None = None
    options: Options = field(default_factory=Options)

    @property
    def unloads(self) -> bool:
        return not self.messages and self.keep_alive_given and self.keep_alive == 0


def parse_json(raw: bytes) -> dict[str, Any]:
    """Read a request body.

    :param raw: The body
    :return: The object in it
    :raises ApiError: 400 if there is none
    """
    if not raw.strip():
        raise ApiError(400, "missing request body")
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the request body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise ApiError(400, "the request body must be a JSON object")
    return body


def parse_duration(value: object) -> float:
    """Read a ``keep_alive``: seconds, or a text like ``5m`` or ``1h30m``; negative means for ever.

    :param value: Number, text or None
    :return: Seconds, 0 or more, possibly ``inf``; None gives Ollama's default of five minutes
    :raises ApiError: 400 if the value is neither
    """
    if value is None:
        return DEFAULT_KEEP_ALIVE
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value):
        return math.inf if value < 0 else float(value)
    if isinstance(value, str):
        digits = value[1:] if value[:1] in ("+", "-") else value
        parts = _DURATION.findall(digits)
        if digits == "0" or (parts and "".join(number + unit for number, unit in parts) == digits):
            seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
            return math.inf if value.startswith("-") and seconds > 0 else seconds
    raise ApiError(400, f'invalid keep_alive {json.dumps(value)}: expected seconds or a duration like "5m"')


_KINDS: dict[str, str] = {
    **dict.fromkeys(("num_ctx", "num_predict", "num_keep", "seed", "top_k", "repeat_last_n"), "integer"),
    # Ollama knows these and checks their type; here they have no effect
    **dict.fromkeys(("num_thread", "num_batch", "num_gpu", "main_gpu", "draft_num_predict"), "integer"),
    **dict.fromkeys(("temperature", "top_p", "min_p", "typical_p"), "float32"),
    **dict.fromkeys(("repeat_penalty", "presence_penalty", "frequency_penalty"), "float32"),
    "stop": "array",
    "use_mmap": "boolean",
}


def _number(key: str, value: int | float) -> int:
    number = int(value)
    if key == "seed" and number != -1:
        return number % _SEEDS  # any integer is a seed, also one drawn from 64 bits
    if not -_INT32 <= number < _INT32:
        raise ApiError(400, f'option "{key}" must lie between {-_INT32} and {_INT32 - 1}, got {number}')
    return number


def _option(key: str, value: object) -> Any:
    kind = _KINDS[key]
    if kind in ("integer", "float32"):
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return _number(key, value) if kind == "integer" else float(value)
    elif kind == "boolean":
        if isinstance(value, bool):
            return value
    elif isinstance(value, list):
        if all(isinstance(item, str) for item in value):
            return tuple(value)
        raise ApiError(500, f'option "{key}" must be an array of strings')
    raise ApiError(500, f'option "{key}" must be of type {kind}')


def parse_options(value: object) -> Options:
    """Check sampling options. Unknown ones and nulls are ignored, as Ollama does.

    :param value: The ``options`` object or None
    :return: Options with defaults filled in
    :raises ApiError: 500 for a wrong type (Ollama's status), 400 for a context size below 2
    """
    if value is None:
        return Options()
    if not isinstance(value, dict):
        raise ApiError(400, "options must be an object")
    known = {key: _option(key, given) for key, given in value.items() if key in _KINDS and given is not None}
    options = Options(**{key: given for key, given in known.items() if key in Options.__dataclass_fields__})
    if options.num_ctx < 2:  # the runtime aborts its process with 1
        raise ApiError(400, f'option "num_ctx" must be at least 2, got {options.num_ctx}')
    return options


def parse_format(value: object) -> Literal["json"] | dict[str, Any] | None:
    """Check ``format``.

    :param value: None, ``""``, ``"json"`` or a JSON schema object
    :return: None, ``"json"`` or the schema
    :raises ApiError: 500 for anything else (Ollama's status)
    """
    if value is None or value == "":
        return None
    if value == "json":
        return "json"
    if isinstance(value, dict):
        return value
    raise ApiError(500, f'invalid format: {json.dumps(value)}; expected "json" or a valid JSON Schema object')


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_messages(value: object, model: str) -> tuple[dict[str, str], ...]:
    """Check a conversation.

    :param value: List of messages or None
    :param model: Name for the error
    :return: Messages with ``role`` and ``content`` only
    :raises ApiError: 400 for a malformed message or one with images, 501 for tool calls
    """
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ApiError(400, "messages must be an array")
    messages = []
    for index, message in enumerate(value):
        if not isinstance(message, dict):
            raise ApiError(400, f"messages[{index}] must be an object")
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or role.lower() not in ROLES:
            raise ApiError(400, f"messages[{index}].role must be one of {', '.join(ROLES)}, got {json.dumps(role)}")
        if content is not None and not isinstance(content, str):
            raise ApiError(400, f"messages[{index}].content must be a string")
        if content is not None and not _is_unicode(content):
            raise ApiError(400, f"messages[{index}].content holds half of a surrogate pair, which is no character")
        if message.get("images"):
            raise ApiError(400, f'"{model}" does not support images')
        if message.get("tool_calls"):
            raise ApiError(501, "tool calls are not supported by the embedded server; use Ollama for them")
        messages.append({"role": role.lower(), "content": content or ""})
    return tuple(messages)


def parse_think(value: object) -> bool | str | None:
    """Check ``think``.

    :param value: None, a truth value or a level
    :return: The same
    :raises ApiError: 400 for anything else
    """
    if value is None or isinstance(value, bool) or value in THINK_LEVELS:
        return value
    levels = ", ".join(f'"{level}"' for level in THINK_LEVELS)
    raise ApiError(400, f"invalid think value: {json.dumps(value)} (must be {levels}, true, or false)")


def parse_model(body: dict[str, Any]) -> str:
    """Take the model's name from a body (``model``, or ``name`` as older clients write).

    :param body: A request body
    :return: The name
    :raises ApiError: 400 if there is none
    """
    name = body.get("model") or body.get("name")
    if not name:
        raise ApiError(400, "model is required")
    if not isinstance(name, str):
        raise ApiError(400, "model must be a string")
    return name


def parse_chat(body: dict[str, Any]) -> ChatRequest:
    """Check a whole chat request.

    :param body: The request body
    :return: The request
    :raises ApiError: with Ollama's status for the first thing that is wrong
    """
    model = parse_model(body)
    if body.get("tools"):
        raise ApiError(501, "tools are not supported by the embedded server; use Ollama for them")
    if body.get("logprobs") or body.get("top_logprobs"):
        raise ApiError(501, "logprobs are not supported by the embedded server; use Ollama for them")
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise ApiError(400, "stream must be true or false")
    return ChatRequest(
        model=model,
        messages=parse_messages(body.get("messages"), model),
        stream=stream is not False,
        format=parse_format(body.get("format")),
        keep_alive=parse_duration(body.get("keep_alive")),
        keep_alive_given=body.get("keep_alive") is not None,
        think=parse_think(body.get("think")),
        options=parse_options(body.get("options")),
    )
