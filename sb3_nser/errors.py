"""Every error and warning this package raises.

Configuration errors are neither ``ValueError`` nor ``AssertionError``: rl_zoo3's Optuna loop reads those two as
"bad hyper-parameters" and prunes the trial, which would hide a typo behind an empty study.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path


class NSERError(Exception):
    """Base class of every error this package raises on purpose."""


class ConfigurationError(NSERError):
    """An argument has the wrong name, type or range; the message names argument, value and cure."""


class UnsupportedError(NSERError):
    """The algorithm, space or observation is outside what the package can handle; the message says what is inside."""


class InductionError(NSERError):
    """A call to the rule inducer failed (raised only in strict mode; the original error is ``__cause__``)."""


class LLMUnavailableError(NSERError):
    """No server answers, or it does not have the model; found before training starts."""


class RecordError(NSERError):
    """An induction record cannot be read, or does not belong to the run that replays it."""


class ModelFileError(NSERError):
    """A model file for the embedded server cannot be found, or its sha256 is not the pinned one."""


class NSERWarning(UserWarning):
    """Something went wrong that does not stop training; raised once per cause."""


def printable(text: object, limit: int = 400) -> str:
    """
    Text from outside (a model, a server, a file) made fit for terminals, logs and messages: one line, no control characters.

    :param text: anything; its ``str`` is taken
    :param limit: most characters
    """
    cut = str(text)[: 4 * limit]
    line = " ".join("".join(c if c.isprintable() else " " for c in cut).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


_OURS = str(Path(__file__).parent)
_BETWEEN = ("stable_baselines3", "sb3_contrib")


def warn_user(message: str) -> None:
    """
    Warn at the line of the caller's own code (usually ``model.learn(...)``), not at one of ours or SB3's.

    :param message: one sentence, with the cure
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(_OURS) or frame.f_globals.get("__name__", "").split(".")[0] in _BETWEEN
    ):
        frame = frame.f_back
    warnings.warn_explicit(printable(message, 1000), NSERWarning, frame.f_code.co_filename, frame.f_lineno)
