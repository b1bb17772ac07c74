"""Which server the demo talks to: a running Ollama if one answers, else the embedded one."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType

from sb3_nser.errors import LLMUnavailableError
from sb3_nser.induction.ollama import OllamaInducer
from sb3_nser.induction.transport import bounded_client

EMBEDDED_MODEL = "qwen2.5-coder:0.5b"
PREFERRED = ("qwen3:4b", "qwen3:8b", "qwen3:1.7b", "qwen2.5-coder:1.5b", EMBEDDED_MODEL)
ANSWER_SECONDS = 5.0


class ModelServer(AbstractContextManager["ModelServer"]):
    """
    :param model: model to use; None takes a preferred one of those the server has
    :param host: server address; None means ``OLLAMA_HOST`` or Ollama's default port
    :param tell: called with one line of progress at a time
    :raises LLMUnavailableError: on entry, if a host was named that does not answer, or lacks the model
    """

    def __init__(self, model: str | None, host: str | None, tell: Callable[[str], None]) -> None:
        self._wanted, self._host, self._tell = model, host, tell
        self._stack = ExitStack()
        self.model = model or EMBEDDED_MODEL
        self.host = ""

    def __enter__(self) -> ModelServer:
        host = self._host or os.environ.get("OLLAMA_HOST") or "http://127.0.0.1:11434"
        models = _models_at(host)
        if models is not None:
            self.host, self.model = host, self._choose(host, models)
            self._tell(f"Using {self.model} on the Ollama server at {host}.")
        elif self._host or os.environ.get("OLLAMA_HOST"):
            raise LLMUnavailableError(f"no Ollama server answers at {host}; start it, or unset --host and OLLAMA_HOST.")
        else:
            self._start_embedded()
        return self

    def _choose(self, host: str, models: list[str]) -> str:
        if self._wanted:
            OllamaInducer(self._wanted, host).check()  # knows what to say if the model is missing
            return self._wanted
        chat = [name for name in models if "embed" not in name]
        for name in (*PREFERRED, *chat):
            if name in models:
                return name
        raise LLMUnavailableError(f"the Ollama server at {host} has no model; get one with `ollama pull {PREFERRED[0]}`.")

    def _start_embedded(self) -> None:
        from sb3_nser.local import EmbeddedServer

        self._tell(f"No Ollama server answers on this machine; starting the embedded one with {self.model} ...")
        server = self._stack.enter_context(EmbeddedServer(self.model))
        self.host = server.host
        self._tell(f"Embedded server ready at {self.host}.")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()


def _models_at(host: str) -> list[str] | None:
    try:
        with bounded_client(host, ANSWER_SECONDS) as client:
            return [item.model for item in client.list().models if item.model]
    except Exception:
        return None  # whatever answers there, it is not Ollama
