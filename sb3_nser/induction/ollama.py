"""Rules from a language model behind Ollama's HTTP API, through the official client."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import httpx
import ollama
from pydantic import ValidationError

from sb3_nser.arguments import as_int, as_number, closest
from sb3_nser.errors import ConfigurationError, LLMUnavailableError, printable
from sb3_nser.induction.base import InductionFailure, InductionReply, InductionRequest
from sb3_nser.induction.transport import Overrun, bounded_client
from sb3_nser.local.catalogue import CATALOGUE
from sb3_nser.rules.schema import MAX_REPLY_CHARACTERS

CHECK_SECONDS = 10.0
CHARACTERS_PER_TOKEN = 3.0
"""Lower bound for English with JSON and names; used to keep a prompt inside the context window."""


class OllamaInducer:
    """Asks a chat model for rules, with structured output.

    The client's own time-out counts the gaps between bytes, not the call; here the whole call has one deadline, and the answer
    one size limit. Nothing of this object is ever pickled.

    :param model: name as ``ollama list`` shows it; ``x`` means ``x:latest``
    :param host: address of the server; default is the environment variable ``OLLAMA_HOST``, else ``127.0.0.1:11434``
    :param deadline: seconds for one whole call, above 0
    :param first_deadline: seconds for the first call, which may have to load the model; default three times ``deadline``
    :param num_ctx: context window in tokens, at least 512; sent with every call. More lets longer prompts through and needs
        more memory
    :param num_predict: most tokens of one reply, at least 64; doubled once after a reply was cut
    :param temperature: randomness of the reply, 0 to 2
    :param seed: base seed; call number k uses ``seed + k``
    :param keep_alive: how long the server keeps the model loaded
    :raises ConfigurationError: if an argument is out of range
    """

    def __init__(
        self,
        model: str,
        host: str | None = None,
        *,
        deadline: float = 120.0,
        first_deadline: float | None = None,
        num_ctx: int = 4096,
        num_predict: int = 600,
        temperature: float = 0.3,
        seed: int = 0,
        keep_alive: str | float = "30m",
    ) -> None:
        if not isinstance(model, str) or not model.strip():
            raise ConfigurationError(f"llm={model!r} must be the name of a model as `ollama list` shows it.")
        self.model = model.strip()
        self.host = host or os.environ.get("OLLAMA_HOST") or "http://127.0.0.1:11434"
        try:
            with bounded_client(self.host, 1.0):
                pass
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
        self.keep_alive = keep_alive
        self._predict_now = self.num_predict
        self._succeeded = False
        self._schema_refused = False
        self._digest = ""
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

    def check(self) -> str | None:
        """
        See that the server answers and has the model.

        :return: a sentence if the server did not answer in time (it may be busy); None if all is well
        :raises LLMUnavailableError: if nothing listens there, or the model is missing
        """
        try:
            with bounded_client(self.host, CHECK_SECONDS) as client:
                models = {item.model: item.digest or "" for item in client.list().models if item.model}
        except (ConnectionError, httpx.ConnectError):
            raise LLMUnavailableError(
                f"no Ollama server answers at {self.host}: start one with `ollama serve` (or `sb3-nser serve`), or set host= "
                "or OLLAMA_HOST to where it runs; require_llm=False trains without one."
            ) from None
        except (Overrun, httpx.TimeoutException):
            return f"{self.host} did not list its models within {CHECK_SECONDS:.0f} s; rules will be asked for all the same."
        except Exception as error:
            raise LLMUnavailableError(
                f"what answers at {self.host} is not Ollama ({_words(error)}); set host= or OLLAMA_HOST to where Ollama runs."
            ) from None
        name = self.model if ":" in self.model.rsplit("/", 1)[-1] else f"{self.model}:latest"
        if name not in models:
            known = printable(", ".join(sorted(models)) or "none")
            embedded = f" (or `sb3-nser serve --model {name}`)" if name in CATALOGUE else ""
            hint = closest(self.model, models)
            raise LLMUnavailableError(
                f"the server at {self.host} has no model {self.model!r} (it has: {known}).{hint} "
                f"{'Else get' if hint else 'Get'} it with `ollama pull {self.model}`{embedded}."
            )
        self._digest = models[name]
        return None

    def propose(self, request: InductionRequest) -> InductionReply:
        """
        Ask once. A server that is still loading is asked again; a server that refuses the schema is asked for plain JSON.

        :raises InductionFailure: for whatever goes wrong, with a cause in words
        """
        started = time.monotonic()
        until = started + (self.deadline if self._succeeded else self.first_deadline)
        try:
            reply = self._ask(request, started, until)
        except InductionFailure:
            raise
        except Exception as error:
            failure = self._explain(error, time.monotonic() - started)
            if failure.cause == "schema" and not self._schema_refused:
                self._schema_refused = True
                return self.propose(request)
            raise failure from error
        self._succeeded = True
        return reply

    def _ask(self, request: InductionRequest, started: float, until: float) -> InductionReply:
        messages = list(request.messages)
        for _ in range(3):
            remaining = until - time.monotonic()
            if remaining <= 0:
                raise Overrun("deadline")
            text, last = self._stream(messages, request, remaining, until)
            if text or last.get("done_reason") != "load":
                break
            time.sleep(min(0.5, max(0.0, until - time.monotonic())))
        seconds = time.monotonic() - started
        evaluated, generated = int(last.get("prompt_eval_count") or 0), int(last.get("eval_count") or 0)
        notes = []
        if last.get("done_reason") == "length":
            limit, self._predict_now = self._predict_now, min(2 * self.num_predict, self.num_ctx // 2)
            sentence = f"the reply was cut at num_predict={limit}; raise num_predict or lower rules_per_call"
            try:
                json.loads(text)
            except ValueError:
                raise InductionFailure("cut", f"{self.describe()}: {sentence}.", seconds) from None
            notes.append(f"{sentence} (what came is whole and was used)")
        if 512 < evaluated < request.characters / 12:
            notes.append(
                f"the server evaluated {evaluated} tokens of a prompt of {request.characters} characters: "
                f"it seems to cut prompts; raise num_ctx={self.num_ctx} or the server's own limit"
            )
        if self._schema_refused:
            notes.append(f"{self.host} refuses the schema (an old version?); asked for plain JSON instead")
        return InductionReply(text, self.model, self._digest, seconds, evaluated, generated, tuple(notes))

    def _stream(
        self, messages: list[dict[str, str]], request: InductionRequest, remaining: float, until: float
    ) -> tuple[str, dict[str, Any]]:
        options = {
            "num_ctx": self.num_ctx,
            "num_predict": self._predict_now,
            "temperature": self.temperature,
            "seed": self.seed + request.number,
        }
        parts: list[str] = []
        size = 0
        last: dict[str, Any] = {}
        with bounded_client(self.host, remaining, until) as client:
            stream = client.chat(
                model=self.model,
                messages=messages,
                format="json" if self._schema_refused else request.schema,
                options=options,
                keep_alive=self.keep_alive,
                think=False,
                stream=True,
            )
            for part in stream:
                content = part.message.content or ""
                size += len(content)
                if size > MAX_REPLY_CHARACTERS:
                    raise Overrun("size")
                parts.append(content)
                if part.done:
                    last = part.model_dump(include={"done_reason", "prompt_eval_count", "eval_count"})
        if not last:
            raise InductionFailure("connection", f"{self.describe()}: the answer ended before it was complete.")
        return "".join(parts), last

    def _explain(self, error: BaseException, seconds: float) -> InductionFailure:
        where, words = self.describe(), _words(error)
        if isinstance(error, Overrun | httpx.TimeoutException):
            if str(error) == "encoding":
                return InductionFailure("server", f"{where}: the answer is compressed, which was not asked for.", seconds)
            if isinstance(error, Overrun) and str(error) == "size":
                return InductionFailure(
                    "reply", f"{where}: the reply is larger than {MAX_REPLY_CHARACTERS} characters.", seconds
                )
            return InductionFailure(
                "deadline", f"{where} did not finish within {seconds:.1f} s; raise deadline= or use a smaller model.", seconds
            )
        if isinstance(error, ollama.ResponseError):
            return InductionFailure(*self._explain_status(error), seconds)
        if isinstance(error, ConnectionError | httpx.TransportError):
            return InductionFailure("connection", f"{where}: the connection failed ({words}).", seconds)
        if isinstance(error, json.JSONDecodeError | ValidationError | UnicodeDecodeError):
            return InductionFailure(
                "server", f"{where}: the answer is not Ollama's ({words}); is that address right?", seconds
            )
        return InductionFailure("internal", f"{where}: unexpected {words}.", seconds)

    def _explain_status(self, error: ollama.ResponseError) -> tuple[str, str]:
        where, text, status = self.describe(), printable(error.error, 200), error.status_code
        lower = text.lower()
        if status == 404 and "model" in lower:
            return "model", f"{where}: the model is gone ({text}); get it with `ollama pull {self.model}`."
        if status in (400, 500) and any(word in lower for word in ("schema", "grammar", "format of type", "invalid format")):
            return "schema", f"{self.host} refuses the schema (an old version?): {text}."
        if status == 400 and any(word in lower for word in ("context", "exceed", "too long", "n_ctx")):
            return "context", f"{where}: the prompt does not fit ({text}); raise num_ctx={self.num_ctx} or the server's limit."
        return "server", f"{where}: the server answered with status {status}: {text}."


def _words(error: BaseException) -> str:
    first = printable(error, 120)
    return f"{type(error).__name__}{': ' + first if first else ''}"
