"""The embedded model server as a process of its own, which ends with the one that started it."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import httpx

from sb3_nser.errors import ConfigurationError, LLMUnavailableError
from sb3_nser.local.command import resolve_models
from sb3_nser.local.engine import require_runtime
from sb3_nser.local.models import DEFAULT_MODEL
from sb3_nser.local.sources import Progress

# The server needs this folder only. Importing the package in the usual way runs its __init__, which brings torch and
# Stable-Baselines3: seconds of waiting and hundreds of megabytes that a model server has no use for. An empty package
# with the right path leaves that out, and is found also where the package is not installed.
_BOOTSTRAP = f"""
import sys, types
package = types.ModuleType("sb3_nser")
package.__path__ = [{str(Path(__file__).resolve().parents[1])!r}]
sys.modules["sb3_nser"] = package
from sb3_nser.local.worker import main
sys.exit(main())
"""


class EmbeddedServer:
    """A model server on a loopback port, speaking Ollama's API. Use it as a context manager, or call ``start``.

    .. code-block:: python

        with EmbeddedServer() as server:
            client = ollama.Client(host=server.host)

    The model runs in another process: it takes no lock of this interpreter and its memory is freed at the end. A model
    is loaded when it is first asked for.

    :param model: One or several of ``NAME`` or ``NAME=PATH``; see ``resolve_model``
    :param port: Port; 0 takes a free one
    :param threads: Threads that compute, per model. More than the idle cores makes generation slower by far.
    :param start_timeout: Seconds the process may take until it answers
    :param progress: Called while a model file is fetched or checked
    :raises ConfigurationError: if an argument is wrong
    """

    def __init__(
        self,
        model: str | Sequence[str] = DEFAULT_MODEL,
        port: int = 0,
        threads: int = 1,
        start_timeout: float = 60.0,
        progress: Progress | None = None,
    ) -> None:
        self.models = [model] if isinstance(model, str) else list(model)
        if not self.models:
            raise ConfigurationError(f"EmbeddedServer needs at least one model, for example {DEFAULT_MODEL!r}.")
        if threads < 1:
            raise ConfigurationError(f"threads must be at least 1, got {threads}.")
        self.port = port
        self.threads = threads
        self.start_timeout = start_timeout
        self.progress = progress
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._folder: Path | None = None
        self._host: str | None = None

    @property
    def host(self) -> str:
        """Address for Ollama clients, like ``http://127.0.0.1:40123``.

        :raises LLMUnavailableError: if the server has not been started or has been closed
        """
        if self._host is None:
            raise LLMUnavailableError("The embedded model server is not running; call start() or use it in a with block.")
        return self._host

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid if self._process is not None else None

    def start(self) -> EmbeddedServer:
        """Find the model files, start the process and wait until it answers.

        :return: This object
        :raises ConfigurationError: if the runtime is not installed, or a model's name is unknown
        :raises ModelFileError: if a model file cannot be had
        :raises LLMUnavailableError: if the process ends or does not answer in time; the message ends with its log
        """
        if self._process is not None:
            return self
        require_runtime()
        files = resolve_models(self.models, self.progress)
        folder = self._folder = Path(tempfile.mkdtemp(prefix="sb3-nser-"))
        command = [sys.executable, "-c", _BOOTSTRAP, "--port", str(self.port), "--threads", str(self.threads)]
        command += ["--ready-file", str(folder / "ready")]
        for name, path in files.items():
            command += ["--model", f"{name}={path.resolve()}"]
        with (folder / "log").open("wb") as log:
            # A session of its own: Ctrl-C in a terminal is for the parent, which then closes the server in good order.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._owner = os.getpid()
        atexit.register(self.close)
        try:
            self._host = self._wait(folder / "ready")
        except BaseException:
            self.close()
            raise
        return self

    def _wait(self, ready: Path) -> str:
        assert self._process is not None
        deadline = time.monotonic() + self.start_timeout
        while time.monotonic() < deadline:
            code = self._process.poll()
            if code is not None:
                raise LLMUnavailableError(f"The embedded model server ended with code {code}. {self._log_tail()}")
            if ready.exists():
                host = ready.read_text()
                # trust_env: a proxy from the environment must not stand between two processes of one machine
                try:
                    if httpx.get(f"{host}/api/version", timeout=5.0, trust_env=False).status_code == 200:
                        return host
                except httpx.TransportError:
                    pass
            time.sleep(0.02)
        raise LLMUnavailableError(
            f"The embedded model server did not answer within {self.start_timeout:g} seconds. {self._log_tail()}"
        )

    def _log_tail(self, lines: int = 15) -> str:
        try:
            assert self._folder is not None
            text = (self._folder / "log").read_text(errors="replace").strip()
        except OSError:
            text = ""
        return "Its log ends with:\n" + "\n".join(text.splitlines()[-lines:]) if text else "Its log is empty."

    def close(self) -> None:
        """End the process and wait for it. May be called twice; does nothing in a fork of the process that started it."""
        process = self._process
        if process is None or os.getpid() != self._owner:
            return
        self._process, self._host = None, None
        atexit.unregister(self.close)
        if process.stdin is not None:
            process.stdin.close()  # the process ends when this pipe does
        try:
            process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __enter__(self) -> EmbeddedServer:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def start_server(
    model: str | Sequence[str] = DEFAULT_MODEL, port: int = 0, threads: int = 1, progress: Progress | None = None
) -> EmbeddedServer:
    """Start an embedded model server; the caller closes it, or it ends with this process.

    :param model: See ``EmbeddedServer``
    :param port: Port; 0 takes a free one
    :param threads: Threads that compute
    :param progress: Called while a model file is fetched or checked
    :return: The running server
    :raises NSERError: as ``start`` does
    """
    return EmbeddedServer(model, port=port, threads=threads, progress=progress).start()
