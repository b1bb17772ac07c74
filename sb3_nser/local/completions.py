"""OpenAI's chat completions over the same engines, as Ollama, too, serves them under ``/v1``.

A request becomes the ``ChatRequest`` that ``/api/chat`` uses, and the answer is written the other way. Parameters that only
hosted models know (``n``, ``user``, ``metadata``...) are ignored; tools and log-probabilities answer 501.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
import time
from collections.abc import Iterable
from typing import Any

from sb3_nser.local.api import ApiError, ChatRequest, parse_chat
from sb3_nser.local.chat import ChatCall
from sb3_nser.local.engine import Engine, Outcome, Piece

_SAME = ("temperature", "top_p", "seed", "presence_penalty", "frequency_penalty")
_KINDS = {400: "invalid_request_error", 404: "not_found_error", 501: "not_supported_error", 503: "overloaded_error"}


def error_body(error: ApiError) -> dict[str, Any]:
    """Write an error as OpenAI's clients expect it.

    :param error: The error
    """
    kind = _KINDS.get(error.status, "api_error")
    return {"error": {"message": error.message, "type": kind, "param": None, "code": None}}


def models_body(engines: Iterable[Engine]) -> dict[str, Any]:
    """Answer ``/v1/models``.

    :param engines: All engines
    """
    return {"object": "list", "data": [model_body(engine) for engine in engines]}


def model_body(engine: Engine) -> dict[str, Any]:
    """Answer ``/v1/models/NAME``.

    :param engine: The engine asked for
    """
    created = int(engine.info.modified_at.timestamp())
    return {"id": engine.name, "object": "model", "created": created, "owned_by": "library"}


@dataclasses.dataclass(frozen=True)
class CompletionRequest:
    """One call of ``/v1/chat/completions``, checked.

    :param chat: The same as a call of ``/api/chat``
    :param usage: Whether a stream ends with the tokens used
    """

    chat: ChatRequest
    usage: bool


def parse_completion(body: dict[str, Any]) -> CompletionRequest:
    """Check a request.

    :param body: The request body
    :return: The request
    :raises ApiError: for the first thing that is wrong
    """
    options: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0}  # OpenAI's defaults
    options |= {key: body[key] for key in _SAME if body.get(key) is not None}
    limit = body.get("max_completion_tokens") if body.get("max_completion_tokens") is not None else body.get("max_tokens")
    if limit is not None:
        options["num_predict"] = limit
    stop = body.get("stop")
    if stop is not None:
        options["stop"] = [stop] if isinstance(stop, str) else stop
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be an array with at least one message")
    stream = body.get("stream")
    chat = {
        "model": body.get("model"),
        "messages": [_plain(message, index) for index, message in enumerate(messages)],
        "stream": False if stream is None else stream,
        "format": _format(body.get("response_format")),
        "options": options,
        "tools": body.get("tools"),
        "logprobs": body.get("logprobs"),
    }
    try:
        request = parse_chat(chat)
    except ApiError as error:  # a wrong type is the client's fault here, not the server's
        raise ApiError(400 if error.status == 500 else error.status, error.message) from error
    extras = body.get("stream_options")
    return CompletionRequest(request, isinstance(extras, dict) and extras.get("include_usage") is True)


def _plain(message: Any, index: int) -> Any:
    """:return: the message with its text in one piece, and in the roles that templates know"""
    if not isinstance(message, dict):
        return message
    content = message.get("content")
    if isinstance(content, list):
        if not all(isinstance(part, dict) and part.get("type") == "text" for part in content):
            raise ApiError(400, f"messages[{index}].content may hold text only; images and sound are not supported")
        content = "".join(str(part.get("text", "")) for part in content)
    role = "system" if message.get("role") == "developer" else message.get("role")
    return {**message, "role": role, "content": content}


def _format(given: Any) -> Any:
    """:return: ``response_format`` in Ollama's terms"""
    if given is None:
        return None
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return "json"
    if kind == "json_schema":
        outer = given.get("json_schema")
        schema = outer.get("schema") if isinstance(outer, dict) else None
        if isinstance(schema, dict):
            return schema
        raise ApiError(400, "response_format.json_schema.schema must be a JSON schema object")
    shown = json.dumps(kind)[:80]
    raise ApiError(400, f"response_format.type must be text, json_object or json_schema, got {shown}")


class CompletionCall(ChatCall):
    """One call of ``/v1/chat/completions``.

    :param request: The checked request
    :param engine: The model asked for
    :param client: Who asked
    :param started: ``time.perf_counter_ns()`` when the request came
    """

    def __init__(self, request: CompletionRequest, engine: Engine, client: Any, started: int) -> None:
        super().__init__(request.chat, engine, client, started)
        self.usage = request.usage
        self.id = f"chatcmpl-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self.begun = False

    def _num_ctx(self) -> int:
        # the API has no such setting: a model that is loaded keeps what it has
        return self.engine.num_ctx or self.request.options.num_ctx

    def _send_piece(self, piece: Piece) -> None:
        delta = {"content": piece.content}
        if piece.thinking:
            delta["reasoning_content"] = piece.thinking
        if not self.begun:
            self.begun = True
            delta = {"role": "assistant", **delta}
        self.client.send_event(self._chunk([{"index": 0, "delta": delta, "finish_reason": None}]))

    def _answer(self, outcome: Outcome, load_ns: int) -> dict[str, Any]:
        usage = {
            "prompt_tokens": outcome.prompt_tokens,
            "completion_tokens": outcome.tokens,
            "total_tokens": outcome.prompt_tokens + outcome.tokens,
        }
        if self.request.stream:
            last = self._chunk([{"index": 0, "delta": {}, "finish_reason": outcome.done_reason}])
            return {"last": last, "usage": {**self._chunk([]), "usage": usage}}
        piece = self._joined()
        message = {"role": "assistant", "content": piece.content}
        if piece.thinking:
            message["reasoning_content"] = piece.thinking
        choice = {"index": 0, "message": message, "finish_reason": outcome.done_reason}
        return {**self._chunk([choice]), "object": "chat.completion", "usage": usage}

    def _finish(self, answer: dict[str, Any]) -> None:
        if not self.request.stream:
            self.client.send_json(answer)
            return
        self.client.send_event(answer["last"])
        if self.usage:
            self.client.send_event(answer["usage"])
        self.client.send_event(None)
        self.client.end_lines()

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.request.model}
        return {**head, "choices": choices}
