"""Settings of a session, and the checks that numbers do not need."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sb3_nser.errors import ConfigurationError
from sb3_nser.induction.base import RuleInducer
from sb3_nser.rules import AdmissionPolicy


@dataclass(frozen=True)
class SessionSettings:
    """Validated settings of a session; the meanings are those of ``RuleInductionCallback``. ``repair_beam`` is 0 where nothing
    is repaired."""

    rules_per_call: int
    hints: tuple[str, ...]
    prompt_forms: tuple[str, ...]
    max_transitions: int
    seed: int
    strict: bool
    calls_per_round: int = 1
    repair_beam: int = 4


def string_tuple(name: str, value: str | Sequence[str] | None) -> tuple[str, ...]:
    """
    :return: a string as one item, a list as it is, None as nothing
    :raises ConfigurationError: if an item is not a string
    """
    items = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise ConfigurationError(f"{name}={value!r} must be a string or a list of strings.")
    return tuple(items)


def check_types(
    paths: Mapping[str, object], texts: Mapping[str, object], on_round: object, inducer: object, policy: object
) -> None:
    """
    :param paths: argument name -> value that has to be a path or None
    :param texts: argument name -> value that has to be a string or None
    :param on_round: a function or None
    :param inducer: a ``RuleInducer``, the name of one, or None
    :param policy: an ``AdmissionPolicy`` or None
    :raises ConfigurationError: naming the first that is something else
    """
    for name, path in paths.items():
        if path is not None and not isinstance(path, str | os.PathLike):
            raise ConfigurationError(f"{name}={path!r} must be a path.")
    for name, text in texts.items():
        if text is not None and not isinstance(text, str):
            raise ConfigurationError(f"{name}={text!r} must be a string.")
    if on_round is not None and not callable(on_round):
        raise ConfigurationError(f"on_round={on_round!r} must be a function that takes an InductionRound.")
    if policy is not None and not isinstance(policy, AdmissionPolicy):
        raise ConfigurationError(f"policy={policy!r} must be an AdmissionPolicy (from sb3_nser.rules).")
    if isinstance(inducer, type):
        raise ConfigurationError(f"inducer={inducer.__name__} is a class; make an object of it: {inducer.__name__}(...).")
    if inducer is not None and not isinstance(inducer, RuleInducer | str):
        raise ConfigurationError(
            f"inducer={inducer!r} must be a name such as 'tree', or a RuleInducer: describe(), check(), propose(), deadline."
        )
