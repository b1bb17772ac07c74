"""The numbers a buffer is configured with, checked once at construction."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sb3_nser.errors import ConfigurationError
from sb3_nser.replay.priorities import Schedule, parse_integer, parse_number, parse_schedule

PRIORITIES = ("proportional", "lap")


@dataclass(frozen=True)
class PriorityOptions:
    """
    Checked options of prioritised and rule-weighted replay; see ``NSERReplayBuffer`` for what each does.
    """

    priority: str
    alpha: float
    beta: float
    beta_final: float
    rule_fraction: Schedule
    max_boost: float
    rule_warmup: int
    uniform_fraction: float
    trace_decay: float
    epsilon: float
    n_steps: int
    gamma: float
    seed: int | None

    @property
    def smallest_td_error(self) -> float:
        """Smaller TD errors are taken for this: 1 with LAP, else 0."""
        return 1.0 if self.priority == "lap" else 0.0

    @classmethod
    def parse(cls, **given: Any) -> PriorityOptions:
        """
        :param given: one value per field, as a YAML file or a caller gave it
        :raises ConfigurationError: naming the argument and the value that cannot be used
        """
        beta = parse_number("beta", given["beta"], 0.0, 1.0)
        beta_final = parse_number("beta_final", given["beta_final"], 0.0, 1.0)
        if beta_final < beta:
            raise ConfigurationError(
                f"beta_final must not be below beta (beta only rises), but beta_final={given['beta_final']!r} and "
                f"beta={given['beta']!r}; for a constant beta give both the same value"
            )
        priority = given["priority"]
        if priority not in PRIORITIES:
            raise ConfigurationError(f"priority must be one of {', '.join(PRIORITIES)}, not {priority!r}")
        epsilon = parse_number("epsilon", given["epsilon"], 0.0, 1e6)
        if priority == "lap":  # max(|δ|, 1) takes the place of |δ| + ε, and there are no weights
            beta = beta_final = epsilon = 0.0
        seed = given["seed"]
        return cls(
            priority=priority,
            alpha=parse_number("alpha", given["alpha"], 0.0, 1.0),
            beta=beta,
            beta_final=beta_final,
            rule_fraction=parse_schedule("rule_fraction", given["rule_fraction"], 0.0, 1.0),
            max_boost=parse_number("max_boost", given["max_boost"], 0.0),
            rule_warmup=parse_integer("rule_warmup", given["rule_warmup"]),
            uniform_fraction=parse_number("uniform_fraction", given["uniform_fraction"], 0.0, 1.0),
            trace_decay=parse_number("trace_decay", given["trace_decay"], 0.0, 1.0),
            epsilon=epsilon,
            n_steps=parse_integer("n_steps", given["n_steps"], 1),
            gamma=parse_number("gamma", given["gamma"], 0.0, 1.0),
            seed=None if seed is None else parse_integer("seed", seed),
        )


def refuse_unknown(owner: str, unknown: Iterable[str], valid: Iterable[str]) -> None:
    """
    :param owner: name of the class that was given the arguments
    :param unknown: names it does not have
    :param valid: names it has
    :raises ConfigurationError: if ``unknown`` is not empty, with the valid names and the closest one
    """
    names = list(valid)
    for name in unknown:
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        raise ConfigurationError(f"{owner} has no argument {name!r}{hint} Valid ones: {', '.join(names)}.")
