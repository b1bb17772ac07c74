"""Contenders in processes of their own that take turns: one line of JSON asks, one answers."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from sb3_nser.errors import NSERError


class Worker:
    """
    One process. Its first line says whether it can be measured.

    :param name: for messages
    :param command: what is run
    :param environment: variables that differ from those of this process
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.ready = False
        self.version: str | None = None
        self.reason = ""
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        )

    def wait_until_ready(self) -> bool:
        """:return: whether it can be measured; ``reason`` says why not"""
        try:
            hello = self._read()
        except NSERError as error:
            hello = {"ready": False, "reason": str(error)}
        self.ready = bool(hello.get("ready"))
        self.version, self.reason = hello.get("version"), str(hello.get("reason", ""))
        return self.ready

    def ask(self, **request: Any) -> dict[str, Any]:
        """
        :param request: plain JSON values
        :return: the answer
        :raises NSERError: if the process has ended
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise NSERError(f"the process that measures {self.name} has ended: {error}") from error
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise NSERError(
                f"the process that measures {self.name} has ended without an answer (status {self._process.wait()})"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End of input ends the process; one that does not listen is stopped."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
        except OSError:
            pass
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
