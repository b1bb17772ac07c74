"""The numbers a buffer is configured with, checked once at construction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sb3_nser.arguments import as_bool, as_int, as_number, closest
from sb3_nser.errors import ConfigurationError
from sb3_nser.replay.priorities import Schedule, parse_schedule

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
    shuffle_scores: bool
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
        beta = as_number("beta", given["beta"], 0.0, 1.0)
        beta_final = as_number("beta_final", given["beta_final"], 0.0, 1.0)
        if beta_final < beta:
            raise ConfigurationError(
                f"beta_final must not be below beta (beta only rises), but beta_final={given['beta_final']!r} and "
                f"beta={given['beta']!r}; for a constant beta give both the same value"
            )
        priority = given["priority"]
        if priority not in PRIORITIES:
            raise ConfigurationError(f"priority must be one of {', '.join(PRIORITIES)}, not {priority!r}")
        epsilon = as_number("epsilon", given["epsilon"], 0.0, 1e6)
        if priority == "lap":  # max(|δ|, 1) takes the place of |δ| + ε, and there are no weights
            beta = beta_final = epsilon = 0.0
        seed = given["seed"]
        return cls(
            priority=priority,
            alpha=as_number("alpha", given["alpha"], 0.0, 1.0),
            beta=beta,
            beta_final=beta_final,
            rule_fraction=parse_schedule("rule_fraction", given["rule_fraction"], 0.0, 1.0),
            max_boost=as_number("max_boost", given["max_boost"], 0.0),
            rule_warmup=as_int("rule_warmup", given["rule_warmup"], 0),
            uniform_fraction=as_number("uniform_fraction", given["uniform_fraction"], 0.0, 1.0),
            trace_decay=as_number("trace_decay", given["trace_decay"], 0.0, 1.0),
            epsilon=epsilon,
            shuffle_scores=as_bool("shuffle_scores", given["shuffle_scores"]),
            n_steps=as_int("n_steps", given["n_steps"], 1),
            gamma=as_number("gamma", given["gamma"], 0.0, 1.0),
            seed=None if seed is None else as_int("seed", seed, 0),
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
        raise ConfigurationError(f"{owner} has no argument {name!r}.{closest(name, names)} Valid ones: {', '.join(names)}.")
