"""Rules from a language model behind any OpenAI-compatible server, through the ``openai`` client."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from pydantic import SecretStr

from sb3_nser.arguments import closest, require_extra
from sb3_nser.errors import ConfigurationError, LLMUnavailableError, printable
from sb3_nser.induction.base import InductionFailure, InductionReply, InductionRequest
from sb3_nser.induction.chat import CHECK_SECONDS, Answer, ChatInducer
from sb3_nser.induction.transport import Overrun, bounded_call, http_url
from sb3_nser.rules.schema import MAX_REPLY_CHARACTERS, conforms

OPENAI = "https://api.openai.com/v1"
_FORMATS = ("json_schema", "json_object", "")
"""Forms of ``response_format``, the strictest first; a server that refuses one is asked for the next."""
_OPTIONAL = ("temperature", "seed", "stream_options")
_MAX_MODELS = 10_000


class OpenAIInducer(ChatInducer):
    """Asks a chat model behind an OpenAI-compatible server (vLLM, llama.cpp, LM Studio, Ollama's ``/v1``, hosted ones), held
    to the same JSON schema as with Ollama. Needs the extra ``openai``.

    The API key goes to ``host`` and nowhere else: it is in no record, log, message or saved file, and a pickled copy has only
    what the environment holds.

    :param model: name as the server lists it
    :param host: base address of the API; default is the environment variable ``OPENAI_BASE_URL``, else OpenAI's own. An
        address without a path gets ``/v1``
    :param api_key: key; default is the environment variable ``OPENAI_API_KEY``. Servers of your own mostly need none
    :param deadline: seconds for one whole call, above 0
    :param first_deadline: seconds for the first call, which may have to load the model; default three times ``deadline``
    :param num_ctx: the server's context window in tokens, at least 512. It bounds the prompt and is not sent: this API has no
        such setting
    :param num_predict: most tokens of one reply, at least 64; doubled once after a reply was cut
    :param temperature: randomness of the reply, 0 to 2
    :param seed: base seed; call number k uses ``seed + k``
    :raises ConfigurationError: if an argument is out of range
    """

    api = "an OpenAI-compatible server"

    def __init__(
        self,
        model: str,
        host: str | None = None,
        *,
        api_key: str | None = None,
        deadline: float = 120.0,
        first_deadline: float | None = None,
        num_ctx: int = 4096,
        num_predict: int = 600,
        temperature: float = 0.3,
        seed: int = 0,
    ) -> None:
        if api_key is not None and not isinstance(api_key, str):
            raise ConfigurationError("api_key must be a string; leave it out to use OPENAI_API_KEY.")
        self._api_key: SecretStr | None = SecretStr(api_key) if api_key else None
        self._format = 0
        self._dropped: set[str] = set()
        super().__init__(
            model,
            host or os.environ.get("OPENAI_BASE_URL") or OPENAI,
            deadline=deadline,
            first_deadline=first_deadline,
            num_ctx=num_ctx,
            num_predict=num_predict,
            temperature=temperature,
            seed=seed,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_api_key": None}

    @property
    def _key(self) -> str:
        return self._api_key.get_secret_value() if self._api_key is not None else os.environ.get("OPENAI_API_KEY", "")

    def check(self) -> str | None:
        """
        See that the server answers, takes the key and has the model.

        :return: a sentence if the server lists no models or did not answer in time; None if all is well
        :raises LLMUnavailableError: if nothing listens there, the key is refused, or the model is missing
        :raises ConfigurationError: if ``openai`` is not installed; a run that is replayed from a record does without
        """
        self._require()
        import openai

        try:
            with self._client(CHECK_SECONDS) as client:
                models = [str(item.id) for item in itertools.islice(client.models.list(), _MAX_MODELS)]
        except (openai.AuthenticationError, openai.PermissionDeniedError):
            said = "refuses the API key" if self._key else "wants an API key"
            raise LLMUnavailableError(f"{self.host} {said}: set OPENAI_API_KEY, or pass OpenAIInducer(api_key=...).") from None
        except openai.NotFoundError:
            return f"{self.host} does not list its models; rules will be asked of {self.model!r} all the same."
        except Exception as error:
            cause = self._explain(error, CHECK_SECONDS).cause
            if cause == "deadline":
                return (
                    f"{self.host} did not list its models within {CHECK_SECONDS:.0f} s; rules will be asked for all the same."
                )
            if cause == "connection":
                raise LLMUnavailableError(
                    f"no server answers at {self.host}: set host= or OPENAI_BASE_URL to where an OpenAI-compatible one runs "
                    "(`sb3-nser serve` is one); inducer='tree' finds rules without a model, and require_llm=False trains "
                    "without any."
                ) from None
            raise LLMUnavailableError(
                f"what answers at {self.host} is no OpenAI-compatible server ({self._words(error)}); is the path right "
                "(mostly it ends in /v1)?"
            ) from None
        if models and self.model not in models:
            known = printable(", ".join(sorted(models)))
            raise LLMUnavailableError(
                f"the server at {self.host} has no model {self.model!r} (it has: {known}).{closest(self.model, models)}"
            )
        return None

    def propose(self, request: InductionRequest) -> InductionReply:
        """
        Ask once; see ``RuleInducer``. What the server refuses is asked for differently, within the same deadline.

        :raises InductionFailure: for whatever goes wrong, with a cause in words
        :raises ConfigurationError: if the package ``openai`` is not installed
        """
        self._require()
        return super().propose(request)

    @staticmethod
    def _require() -> None:
        require_extra("openai", "openai", "openai", "the OpenAI inducer")

    def _try_host(self) -> None:
        url = http_url(self.host)
        if url.userinfo or url.query:
            self.host = "..."  # what stands there may be a key, and a traceback shows it
            raise ConfigurationError("host must hold no user name, password or query: set OPENAI_API_KEY, or pass api_key=.")
        if url.scheme not in ("http", "https"):
            raise ValueError(url.scheme)
        self.host = str(url.copy_with(path="/v1") if url.path in ("", "/") else url).rstrip("/")

    @contextmanager
    def _client(self, seconds: float, until: float | None = None) -> Iterator[Any]:
        import openai

        with bounded_call(self.host, seconds, until) as arguments:
            # a redirect might carry the prompt to somewhere else
            with httpx.Client(**arguments, follow_redirects=False) as http:
                key = self._key or "none"  # the client insists on one
                client: Any = openai.OpenAI(api_key=key, base_url=self.host, http_client=http, max_retries=0)  # type: ignore[arg-type,unused-ignore]
                yield client

    def _stream(self, messages: list[dict[str, str]], request: InductionRequest, remaining: float, until: float) -> Answer:
        parts: list[str] = []
        size = evaluated = generated = 0
        reason, any_chunk = "", False
        with self._client(remaining, until) as client:
            stream = client.chat.completions.create(model=self.model, messages=messages, stream=True, **self._options(request))
            for chunk in stream:
                any_chunk = True
                usage = getattr(chunk, "usage", None)
                if usage is not None:
                    evaluated, generated = int(usage.prompt_tokens or 0), int(usage.completion_tokens or 0)
                for choice in (getattr(chunk, "choices", None) or [])[:1]:
                    content = getattr(choice.delta, "content", None) or ""
                    if not isinstance(content, str):
                        raise InductionFailure("server", f"{self.describe()}: the reply is not text.")
                    size += len(content)
                    if size > MAX_REPLY_CHARACTERS:
                        raise Overrun("size")
                    parts.append(content)
                    reason = choice.finish_reason or reason
        if not any_chunk:
            raise InductionFailure("server", f"{self.describe()}: the answer is not {self.api}'s; is that address right?")
        if not reason:
            raise InductionFailure("connection", f"{self.describe()}: the answer ended before it was complete.")
        return Answer("".join(parts), reason, evaluated, generated)

    def _options(self, request: InductionRequest) -> dict[str, Any]:
        limit = "max_completion_tokens" if "max_tokens" in self._dropped else "max_tokens"
        options: dict[str, Any] = {
            limit: self._predict_now,
            "temperature": self.temperature,
            "seed": self.seed + request.number,
            "stream_options": {"include_usage": True},
        }
        form = _FORMATS[self._format]
        if form == "json_schema":
            options["response_format"] = {
                "type": form,
                "json_schema": {"name": "rules", "strict": True, "schema": request.schema},
            }
        elif form:
            options["response_format"] = {"type": form}
        return {name: value for name, value in options.items() if name not in self._dropped}

    def _adapt(self, failure: InductionFailure, error: Exception) -> bool:
        status = self._status_of(error)
        if status is None or status[0] not in (400, 422, 500) or failure.cause == "context":
            return False
        text = status[1].lower()
        if "max_completion_tokens" in text and "max_tokens" not in self._dropped:
            self._dropped.add("max_tokens")  # OpenAI's newer models call it so
            return True
        if failure.cause == "schema" or "response_format" in text or "json_object" in text:
            if self._format + 1 < len(_FORMATS):
                self._format += 1
                instead = "plain JSON" if _FORMATS[self._format] else "JSON in words"
                self._notes["schema"] = f"{self.host} refuses the JSON schema; asked for {instead} instead"
                return True
            return False
        for name in _OPTIONAL:
            if name in text and name not in self._dropped:
                self._dropped.add(name)
                self._notes[name] = f"{self.host} does not take {name}; it is left out"
                return True
        return False

    def _read(self, answer: Answer, request: InductionRequest) -> tuple[str, list[str]]:
        text = self._hidden(answer.text)
        if not text.lstrip().startswith("{"):
            text = _first_object(text)
        if _FORMATS[self._format] == "json_schema" and answer.reason != "length" and not _holds(text, answer, request):
            self._notes["ignored"] = (
                f"{self.host} does not hold the model to the JSON schema; what comes is checked and read as far as it goes"
            )
        return text, []

    def _original(self, error: Exception) -> BaseException | None:
        return None if self._key and self._key in f"{error!r} {error}" else error

    def _hidden(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text

    def _cure_for_model(self) -> str:
        return "choose one that the server lists"

    def _status_of(self, error: BaseException) -> tuple[int | None, str] | None:
        import openai

        if isinstance(error, openai.APIStatusError | openai.APIError) and not isinstance(error, openai.APIConnectionError):
            body = error.body
            message = body.get("message") if isinstance(body, dict) else None
            return getattr(error, "status_code", None), str(message or error)
        return None

    def _explain(self, error: BaseException, seconds: float) -> InductionFailure:
        import openai

        if isinstance(error, openai.APITimeoutError):
            error = Overrun("deadline")
        elif isinstance(error, openai.APIConnectionError):
            error = error.__cause__ or ConnectionError(str(error))
        return super()._explain(error, seconds)


def _holds(text: str, answer: Answer, request: InductionRequest) -> bool:
    try:
        return text == answer.text and conforms(json.loads(text), request.schema)
    except (ValueError, RecursionError):
        return False


def _first_object(text: str) -> str:
    """:return: the first JSON object in prose, a code fence, or behind a model's thoughts; the text itself if there is none"""
    said = text.rpartition("</think>")[2]
    decoder = json.JSONDecoder()
    start = -1
    for _ in range(50):  # a text of many braces must not take for ever
        start = said.find("{", start + 1)
        if start < 0:
            break
        try:
            found, end = decoder.raw_decode(said, start)
        except (ValueError, RecursionError):
            continue
        if "rules" in found:
            return said[start:end]
    return text
