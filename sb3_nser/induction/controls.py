"""A control for studies: rules that nobody has thought about, from the very form that a language model's reply is held to."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from sb3_nser.arguments import as_int, closest
from sb3_nser.errors import ConfigurationError
from sb3_nser.induction.base import InductionFailure, InductionReply, InductionRequest
from sb3_nser.induction.episodes import Experience
from sb3_nser.rules import Rule
from sb3_nser.rules.schema import parse_reply, reply_schema
from sb3_nser.vocabulary import Vocabulary

DRAWS = ("schema", "vocabulary")
ATTEMPTS = 50
"""Draws per rule; one that contradicts itself or repeats another is drawn again."""


class RandomInducer:
    """Proposes random rules, as many as a model is asked for: what a model's rules have to beat.

    :param draw: ``"schema"`` draws from the very schema that this call would hold a model to, so that what the prompt selects
        (features in turn, thresholds at the quartiles) is shared and only the model's choice is not; ``"vocabulary"`` draws
        from all features and actions, thresholds uniformly between the 5th and the 95th percentile of what was observed
    :param seed: base seed; call number k uses ``seed + k``
    :raises ConfigurationError: if an argument is out of range
    """

    deadline = 10.0
    reads_prompt = False

    def __init__(self, draw: str = "schema", seed: int = 0) -> None:
        if draw not in DRAWS:
            raise ConfigurationError(f"draw={draw!r} must be one of {', '.join(DRAWS)}.{closest(draw, DRAWS)}")
        self.draw = draw
        self.seed = as_int("seed", seed, 0)

    def describe(self) -> str:
        """:return: name for logs"""
        return f"random rules from the {self.draw} (a control, no language model)"

    def check(self) -> str | None:
        """:return: None; nothing outside this process is needed"""
        return None

    def propose(self, request: InductionRequest) -> InductionReply:
        """
        Draw rules.

        :return: ``request.max_rules`` different rules, ready-made; fewer only where no more differ
        :raises InductionFailure: if the request carries no vocabulary
        """
        started = time.monotonic()
        words = request.vocabulary
        if words is None:
            raise InductionFailure("internal", "random rules need a request with a vocabulary.")
        schema = request.schema if self.draw == "schema" else reply_schema(words, request.max_rules)
        item = schema["properties"]["rules"]["items"]
        rng = np.random.default_rng(self.seed + request.number)
        found: dict[str, Rule] = {}
        for _ in range(ATTEMPTS * request.max_rules):
            if len(found) == request.max_rules:
                break
            reply = json.dumps({"rules": [_drawn(item, rng, words, request.experience)]})
            for rule in parse_reply(reply, words, 1, source="random").rules:
                found.setdefault(rule.key, rule)
        text = "\n".join(map(str, found.values()))
        return InductionReply(text, f"random {self.draw}", "", time.monotonic() - started, rules=tuple(found.values()))


def _drawn(schema: Mapping[str, Any], rng: np.random.Generator, words: Vocabulary, seen: Experience | None) -> Any:
    """:return: a value that the (flat) schema allows, every alternative with the same chance"""
    kind = schema["type"]
    if kind == "array":
        size = int(rng.integers(schema.get("minItems", 0), schema["maxItems"] + 1))
        values = schema["items"].get("enum")
        if values is not None:
            return [values[at] for at in rng.choice(len(values), min(size, len(values)), replace=False)]
        return [_drawn(schema["items"], rng, words, seen) for _ in range(size)]
    if kind == "object":
        out = {name: _drawn(part, rng, words, seen) for name, part in schema["properties"].items()}
        if "feature" in out and "value" in out:
            out["value"] = _threshold(out["feature"], rng, words, seen)
        if "action_value" in out:
            at = words.actions.names.index(out["action"])
            out["action_value"] = float(rng.uniform((words.actions.low or ())[at], (words.actions.high or ())[at]))
        return out
    if kind == "number":
        return 0.0  # what it is about stands beside it
    return str(rng.choice(schema["enum"])) if "enum" in schema else ""


def _threshold(name: str, rng: np.random.Generator, words: Vocabulary, seen: Experience | None) -> float:
    column = seen.columns[name] if seen is not None and len(seen) else np.zeros(0)
    column = column[np.isfinite(column)]
    if len(column):
        low, high = np.quantile(column.astype(np.float64), (0.05, 0.95))
    else:
        feature = words[name]
        low = -1.0 if feature.low is None else feature.low
        high = max(low, 1.0) if feature.high is None else feature.high
    return float(f"{rng.uniform(low, high):.4g}")
