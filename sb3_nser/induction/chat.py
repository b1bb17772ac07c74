"""What all inducers that ask a chat model over HTTP have in common: one deadline, bounded answers, one kind of failure."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

import httpx
from pydantic import ValidationError

from sb3_nser.arguments import as_int, as_number
from sb3_nser.errors import ConfigurationError, printable
from sb3_nser.induction.base import InductionFailure, InductionReply, InductionRequest
from sb3_nser.induction.transport import Overrun, http_url
from sb3_nser.rules.schema import MAX_REPLY_CHARACTERS

CHECK_SECONDS = 10.0
CHARACTERS_PER_TOKEN = 3.0
"""Lower bound for English with JSON and names; used to keep a prompt inside the context window."""


@dataclass(frozen=True)
class Answer:
    """
    One streamed answer, put together.

    :param text: what the model wrote
    :param reason: why it ended: ``stop``, ``length`` (cut), ``load`` (the model was only being loaded)
    :param evaluated: tokens of the prompt, 0 if unknown
    :param generated: tokens of the reply, 0 if unknown
    """

    text: str
    reason: str
    evaluated: int = 0
    generated: int = 0


class ChatInducer(ABC):
    """Base of the inducers that ask a chat model, with structured output.

    A client's own time-out counts the gaps between bytes, not the call; here the whole call has one deadline, and the answer
    one size limit.

    :param model: name of the model
    :param host: address of the server
    :param deadline: seconds for one whole call, above 0
    :param first_deadline: seconds for the first call, which may have to load the model; default three times ``deadline``
    :param num_ctx: context window in tokens, at least 512
    :param num_predict: most tokens of one reply, at least 64
    :param temperature: randomness of the reply, 0 to 2
    :param seed: base seed
    :raises ConfigurationError: if an argument is out of range
    """

    api = "Ollama"
    """Whose API is spoken, for messages."""

    def __init__(
        self,
        model: str,
        host: str,
        *,
        deadline: float,
        first_deadline: float | None,
        num_ctx: int,
        num_predict: int,
        temperature: float,
        seed: int,
    ) -> None:
        if not isinstance(model, str) or not model.strip():
            raise ConfigurationError(f"llm={model!r} must be the name of a model, as the server lists it.")
        self.model = model.strip()
        self.host = host
        try:
            if not http_url(host).host or any(character.isspace() for character in host):
                raise ValueError(host)
            self._try_host()
        except ConfigurationError:
            raise
        except Exception:
            raise ConfigurationError(
                f"host={self.host!r} is not an address; write it like 'http://127.0.0.1:11434'."
            ) from None
        self.deadline = as_number("deadline", deadline, 0.0, open_low=True)
        self.first_deadline = (
            3 * self.deadline if first_deadline is None else as_number("first_deadline", first_deadline, 0.0, open_low=True)
        )
        self.num_ctx = as_int("num_ctx", num_ctx, 512)
        self.num_predict = as_int("num_predict", num_predict, 64)
        self.temperature = as_number("temperature", temperature, 0.0, 2.0)
        self.seed = as_int("seed", seed, 0)
        self._predict_now = self.num_predict
        self._succeeded = False
        self._digest = ""
        self._notes: dict[str, str] = {}  # what the server was found not to do; said with every reply, warned about once
        if self.prompt_budget < 1000:
            raise ConfigurationError(
                f"num_ctx={self.num_ctx} leaves no room for a prompt beside num_predict={self.num_predict}; raise num_ctx."
            )

    @property
    def prompt_budget(self) -> int:
        """Most characters of a prompt, so that prompt and reply fit into ``num_ctx``."""
        return int((self.num_ctx - self.num_predict - 64) * CHARACTERS_PER_TOKEN)

    def describe(self) -> str:
        """:return: model and host, for logs"""
        return f"{self.model} at {self.host}"

    def propose(self, request: InductionRequest) -> InductionReply:
        """
        Ask once. A server that is still loading is asked again; one that refuses the schema is asked for less.

        :raises InductionFailure: for whatever goes wrong, with a cause in words
        """
        started = time.monotonic()
        until = started + (self.deadline if self._succeeded else self.first_deadline)
        while True:
            try:
                reply = self._ask(request, started, until)
            except InductionFailure:
                raise
            except Exception as error:
                failure = self._explain(error, time.monotonic() - started)
                if self._adapt(failure, error):
                    continue
                raise failure from self._original(error)
            self._succeeded = True
            return reply

    def _ask(self, request: InductionRequest, started: float, until: float) -> InductionReply:
        for _ in range(3):
            remaining = until - time.monotonic()
            if remaining <= 0:
                raise Overrun("deadline")
            answer = self._stream(list(request.messages), request, remaining, until)
            if answer.text or answer.reason != "load":
                break
            time.sleep(min(0.5, max(0.0, until - time.monotonic())))
        seconds = time.monotonic() - started
        text, notes = self._read(answer, request)
        if answer.reason == "length":
            limit, self._predict_now = self._predict_now, min(2 * self.num_predict, self.num_ctx // 2)
            sentence = f"the reply was cut at num_predict={limit}; raise num_predict or lower rules_per_call"
            try:
                json.loads(text)
            except ValueError:
                raise InductionFailure("cut", f"{self.describe()}: {sentence}.", seconds) from None
            notes.append(f"{sentence} (what came is whole and was used)")
        if 512 < answer.evaluated < request.characters / 12:
            notes.append(
                f"the server evaluated {answer.evaluated} tokens of a prompt of {request.characters} characters: "
                f"it seems to cut prompts; raise num_ctx={self.num_ctx} or the server's own limit"
            )
        notes += self._notes.values()
        return InductionReply(text, self.model, self._digest, seconds, answer.evaluated, answer.generated, tuple(notes))

    @abstractmethod
    def check(self) -> str | None:
        """See ``RuleInducer.check``."""

    @abstractmethod
    def _try_host(self) -> None:
        """Raise whatever an unusable address makes the client raise."""

    @abstractmethod
    def _stream(self, messages: list[dict[str, str]], request: InductionRequest, remaining: float, until: float) -> Answer: ...

    @abstractmethod
    def _adapt(self, failure: InductionFailure, error: Exception) -> bool:
        """Ask for less from now on. True if the call is worth another try; each kind of refusal may return it once."""

    @abstractmethod
    def _status_of(self, error: BaseException) -> tuple[int | None, str] | None:
        """:return: status and text if the server itself answered with an error, None for any other exception"""

    def _read(self, answer: Answer, request: InductionRequest) -> tuple[str, list[str]]:
        """:return: the answer's text, and what there is to say about it"""
        return answer.text, []

    def _original(self, error: Exception) -> BaseException | None:
        """:return: what a traceback may show as the cause"""
        return error

    def _hidden(self, text: str) -> str:
        """:return: the text without anything that no log may hold"""
        return text

    def _explain(self, error: BaseException, seconds: float) -> InductionFailure:
        where, words = self.describe(), self._words(error)
        overrun = _overrun(error)
        if overrun is not None or isinstance(error, httpx.TimeoutException):
            if str(overrun) == "encoding":
                return InductionFailure("server", f"{where}: the answer is compressed, which was not asked for.", seconds)
            if str(overrun) == "size":
                return InductionFailure(
                    "reply", f"{where}: the reply is larger than {MAX_REPLY_CHARACTERS} characters.", seconds
                )
            return InductionFailure(
                "deadline", f"{where} did not finish within {seconds:.1f} s; raise deadline= or use a smaller model.", seconds
            )
        status = self._status_of(error)
        if status is not None:
            return InductionFailure(*self._explain_status(status[0], printable(self._hidden(status[1]), 200)), seconds)
        if isinstance(error, ConnectionError | httpx.TransportError):
            return InductionFailure("connection", f"{where}: the connection failed ({words}).", seconds)
        if isinstance(error, json.JSONDecodeError | ValidationError | UnicodeDecodeError):
            return InductionFailure(
                "server", f"{where}: the answer is not {self.api}'s ({words}); is that address right?", seconds
            )
        return InductionFailure("internal", f"{where}: unexpected {words}.", seconds)

    def _explain_status(self, status: int | None, text: str) -> tuple[str, str]:
        where, lower = self.describe(), text.lower()
        if status == 404 and "model" in lower:
            return "model", f"{where}: the model is gone ({text}); {self._cure_for_model()}."
        if status in (400, 500) and any(word in lower for word in ("schema", "grammar", "format of type", "invalid format")):
            return "schema", f"{self.host} refuses the schema (an old version?): {text}."
        if status == 400 and any(word in lower for word in ("context", "exceed", "too long", "n_ctx")):
            return "context", f"{where}: the prompt does not fit ({text}); raise num_ctx={self.num_ctx} or the server's limit."
        return "server", f"{where}: the server answered with status {status}: {text}."

    def _cure_for_model(self) -> str:
        return f"get it with `ollama pull {self.model}`"

    def _words(self, error: BaseException) -> str:
        first = printable(self._hidden(str(error)), 120)
        return f"{type(error).__name__}{': ' + first if first else ''}"


def _overrun(error: BaseException | None) -> Overrun | None:
    """:return: the overrun that a client's own exception may wrap"""
    while error is not None:
        if isinstance(error, Overrun):
            return error
        error = error.__cause__
    return None
