"""Rules from a language model behind Ollama's HTTP API, through the official client."""

from __future__ import annotations

import os
from typing import Any

import httpx
import ollama

from sb3_nser.arguments import closest
from sb3_nser.errors import LLMUnavailableError, printable
from sb3_nser.induction.base import InductionFailure, InductionRequest
from sb3_nser.induction.chat import CHECK_SECONDS, Answer, ChatInducer
from sb3_nser.induction.transport import Overrun, bounded_client
from sb3_nser.local.catalogue import CATALOGUE
from sb3_nser.rules.schema import MAX_REPLY_CHARACTERS


class OllamaInducer(ChatInducer):
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
        super().__init__(
            model,
            host or os.environ.get("OLLAMA_HOST") or "http://127.0.0.1:11434",
            deadline=deadline,
            first_deadline=first_deadline,
            num_ctx=num_ctx,
            num_predict=num_predict,
            temperature=temperature,
            seed=seed,
        )
        self.keep_alive = keep_alive

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
                "or OLLAMA_HOST to where it runs; inducer='tree' finds rules without a model, and require_llm=False trains "
                "without any."
            ) from None
        except (Overrun, httpx.TimeoutException):
            return f"{self.host} did not list its models within {CHECK_SECONDS:.0f} s; rules will be asked for all the same."
        except Exception as error:
            raise LLMUnavailableError(
                f"what answers at {self.host} is not Ollama ({self._words(error)}); set host= or OLLAMA_HOST to "
                "where Ollama runs."
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

    def _try_host(self) -> None:
        with bounded_client(self.host, 1.0):
            pass

    def _adapt(self, failure: InductionFailure, error: Exception) -> bool:
        if failure.cause != "schema" or "schema" in self._notes:
            return False
        self._notes["schema"] = f"{self.host} refuses the schema (an old version?); asked for plain JSON instead"
        return True

    def _stream(self, messages: list[dict[str, str]], request: InductionRequest, remaining: float, until: float) -> Answer:
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
                format="json" if "schema" in self._notes else request.schema,
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
        evaluated, generated = int(last.get("prompt_eval_count") or 0), int(last.get("eval_count") or 0)
        return Answer("".join(parts), last.get("done_reason") or "", evaluated, generated)

    def _status_of(self, error: BaseException) -> tuple[int | None, str] | None:
        return (error.status_code, error.error) if isinstance(error, ollama.ResponseError) else None
