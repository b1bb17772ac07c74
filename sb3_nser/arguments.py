"""Arguments as YAML delivers them: ``1e3`` arrives as text, ``1000.0`` as a float. Convert once, or say what is wrong."""

from __future__ import annotations

import difflib
import importlib.util
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from sb3_nser.errors import ConfigurationError


def as_number(name: str, value: object, low: float = -math.inf, high: float = math.inf, *, open_low: bool = False) -> float:
    """
    :param name: the argument's name, for the message
    :param value: a number, or text that reads as one (``"1e-6"``); booleans are refused
    :param low: smallest allowed value
    :param high: largest allowed value
    :param open_low: True if ``low`` itself is not allowed
    :return: the number as a finite float
    :raises ConfigurationError: if it is not a number, not finite or out of range
    """
    number = math.nan
    if isinstance(value, int | float | str | np.integer | np.floating) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            pass
    if not math.isfinite(number) or number < low or number > high or (open_low and number == low):
        raise ConfigurationError(f"{name}={_shown(value)} must be a number {_span(low, high, open_low)}.")
    return number


def as_int(name: str, value: object, low: int, high: float = math.inf) -> int:
    """
    :return: the value as an int; ``1e3`` and ``"1e3"`` are 1000
    :raises ConfigurationError: if it is not a whole number or out of range
    """
    number = as_number(name, value, low, high)
    if number != int(number):
        raise ConfigurationError(f"{name}={_shown(value)} must be a whole number {_span(low, high, False)}.")
    return int(value) if isinstance(value, int | np.integer) else int(number)  # a float holds no more than 53 bits


def as_bool(name: str, value: Any) -> bool:
    """
    :return: the value as a bool; the words yes/no, true/false, on/off are understood
    :raises ConfigurationError: for anything else
    """
    words = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()]
    raise ConfigurationError(f"{name}={value!r} must be true or false.")


def closest(word: str, known: Iterable[str]) -> str:
    """:return: ``" Did you mean 'x'?"`` for the known word most like it, else an empty string."""
    match = difflib.get_close_matches(str(word), list(known), n=1)
    return f" Did you mean {match[0]!r}?" if match else ""


def require_extra(module: str, package: str, extra: str, what: str) -> None:
    """
    Check that an optional package is installed, without importing it.

    :param module: name it is imported by
    :param package: name it is installed by
    :param extra: our extra that brings it
    :param what: who needs it, to begin the message with
    :raises ConfigurationError: if it is not installed
    """
    if importlib.util.find_spec(module) is None:
        raise ConfigurationError(f"{what} needs the package {package}: install it with pip install 'sb3-nser[{extra}]'.")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _span(low: float, high: float, open_low: bool) -> str:
    if math.isinf(low) and math.isinf(high):
        return "that is finite"
    if math.isinf(high):
        return f"{'above' if open_low else 'of at least'} {low:g}"
    return f"{'above' if open_low else 'from'} {low:g} {'up ' if open_low else ''}to {high:g}"
