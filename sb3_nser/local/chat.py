"""One call of ``/api/chat``: wait for the model, load it, generate, answer in one piece or line by line."""

from __future__ import annotations

import time
from typing import Any, Protocol

from sb3_nser.local.api import ApiError, ChatRequest
from sb3_nser.local.engine import Engine, Outcome, Piece
from sb3_nser.local.responses import timestamp
from sb3_nser.local.turnstile import Abandoned


class Client(Protocol):
    """The connection, as far as a call needs it."""

    def gone(self) -> bool: ...

    def send_json(self, body: dict[str, Any], status: int = 200) -> None: ...

    def send_line(self, body: dict[str, Any]) -> None: ...

    def send_event(self, body: dict[str, Any] | None) -> None: ...

    def end_lines(self) -> None: ...


class ChatCall:
    """One call.

    :param request: The checked request
    :param engine: The model asked for
    :param client: Who asked
    :param started: ``time.perf_counter_ns()`` when the request came
    """

    def __init__(self, request: ChatRequest, engine: Engine, client: Client, started: int) -> None:
        self.request = request
        self.engine = engine
        self.client = client
        self.started = started
        self.pieces: list[Piece] = []

    def run(self) -> None:
        """Serve the call.

        :raises ApiError: if something in it cannot be served
        :raises QueueFull: if too many wait for the model
        :raises Abandoned: if the client leaves
        """
        if self.request.think and not self.engine.info.thinks:
            raise ApiError(400, f'"{self.request.model}" does not support thinking')
        with self.engine.turnstile.turn(self.client.gone):
            if self.request.unloads:
                self.engine.unload()
                answer = self._body(Piece(), done=True, done_reason="unload")
            else:
                self.engine.load(self._num_ctx())
                try:
                    answer = self._generate() if self.request.messages else self._body(Piece(), done=True, done_reason="load")
                finally:
                    self.engine.keep(self.request.keep_alive)
        # the turn is over before the last bytes are sent, so that a slow reader keeps nobody waiting
        self._finish(answer)

    def _num_ctx(self) -> int:
        return self.request.options.num_ctx

    def _finish(self, answer: dict[str, Any]) -> None:
        if self.request.messages and self.request.stream:
            self.client.send_line(answer)
            self.client.end_lines()
        else:
            self.client.send_json(answer)

    def _generate(self) -> dict[str, Any]:
        loaded = time.perf_counter_ns()
        outcome = self.engine.generate(self.request, self._take)
        if outcome is None:
            raise Abandoned
        return self._answer(outcome, loaded - self.started)

    def _answer(self, outcome: Outcome, load_ns: int) -> dict[str, Any]:
        text = Piece() if self.request.stream else self._joined()
        return self._body(text, done=True, **self._metrics(outcome, load_ns))

    def _send_piece(self, piece: Piece) -> None:
        self.client.send_line(self._body(piece, done=False))

    def _take(self, piece: Piece) -> bool:
        if self.client.gone():
            return True
        if piece.content or piece.thinking:
            if self.request.stream:
                self._send_piece(piece)
            else:
                self.pieces.append(piece)
        return False

    def _joined(self) -> Piece:
        return Piece("".join(p.content for p in self.pieces), "".join(p.thinking for p in self.pieces))

    def _metrics(self, outcome: Outcome, load_ns: int) -> dict[str, Any]:
        return {
            "done_reason": outcome.done_reason,
            "total_duration": time.perf_counter_ns() - self.started,
            "load_duration": load_ns,
            "prompt_eval_count": outcome.prompt_tokens,
            "prompt_eval_duration": outcome.prompt_ns,
            "eval_count": outcome.tokens,
            "eval_duration": outcome.tokens_ns,
        }

    def _body(self, piece: Piece, **fields: Any) -> dict[str, Any]:
        message = {"role": "assistant", "content": piece.content}
        if piece.thinking:
            message["thinking"] = piece.thinking
        return {"model": self.request.model, "created_at": timestamp(), "message": message, **fields}
