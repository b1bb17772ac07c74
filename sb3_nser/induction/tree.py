"""Rules without a language model: decision trees over the same episodes that a prompt is built from.

For each head (an action, or a half of a continuous dimension) a tree is grown on the states, with the *effect of the action*
as its target. The idea is Robinson's decomposition, as in ``logic/fit.py``: what the state explains is removed from the
return, and from "took this action" alike,

    r_i = G̃_i − ĝ(x_i),  w_i = a_i − ê(x_i);  the tree T minimises  Σ_i w_i² (r_i / w_i − T(x_i))²

so that a leaf's value Σ w r / Σ w² is the difference in return between taking and not taking the action there. Every node's
path from the root is a conjunction, hence a rule. The form is this package's own choice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch as th

from sb3_nser.arguments import as_int, require_extra
from sb3_nser.induction.base import InductionFailure, InductionReply, InductionRequest
from sb3_nser.induction.episodes import Experience, action_masks
from sb3_nser.logic.baseline import Baseline
from sb3_nser.rules import Literal, Rule, detrend, parse_rule, problems
from sb3_nser.rules.model import MAX_LITERALS
from sb3_nser.rules.schema import offered
from sb3_nser.vocabulary import Feature, Vocabulary

MAX_HEADS = 32
"""Heads that a tree is grown for; with more actions, those taken most often."""
MAX_COLUMNS = 512
SMALLEST_Z = 3.0
"""A node whose effect is nearer to 0 than so many standard errors makes no rule; splits are chosen for their effect, so two
would be nothing."""
CONTAINED = 0.8
"""A body that lies in one chosen before, for the same head, by more than this share says nothing new."""


@dataclass(frozen=True)
class _Column:
    """One column that a tree may split: a number as it is, or whether a symbol has one of its values."""

    feature: Feature
    value: str | None
    data: np.ndarray


@dataclass(frozen=True)
class _Candidate:
    rule: Rule
    z: float
    body: np.ndarray


class TreeInducer:
    """Proposes rules read off decision trees (scikit-learn, extra ``tree``): the baseline that a language model has to beat,
    and the fallback for machines without one.

    It sees the episodes that rules may be learnt from, not those that judge them in the same round. The first call grows its
    trees on all of them; later calls draw episodes with replacement and half of the columns at each split, as a random forest
    does, so that they bring other rules. Before any reward is seen it proposes nothing. Features of the next observation are
    left out, since the action has already changed them.

    :param max_literals: depth of a tree and so the most conditions of a rule, 1 to 8; more fit the episodes better and hold
        less well on others
    :param min_rows: fewest transitions with the action, and as many without, that a body must hold, at least 2. More makes
        rules coarser and safer; with 50, the held-out episodes mostly have the 20 of each that it takes to judge
    :param seed: base seed; call number k uses ``seed + k``
    :raises ConfigurationError: if an argument is out of range
    """

    deadline = 60.0
    reads_prompt = False
    prompt_budget = 1_000_000  # so no prompt has to be short

    def __init__(self, max_literals: int = 3, min_rows: int = 50, seed: int = 0) -> None:
        self.max_literals = as_int("max_literals", max_literals, 1, MAX_LITERALS)
        self.min_rows = as_int("min_rows", min_rows, 2)
        self.seed = as_int("seed", seed, 0)

    def describe(self) -> str:
        """:return: name for logs"""
        return "decision trees (no language model)"

    def check(self) -> str | None:
        """
        :return: None; nothing outside this process is needed
        :raises ConfigurationError: if scikit-learn is not installed; a run that is replayed from a record does without
        """
        require_extra("sklearn", "scikit-learn", "tree", "the tree inducer")
        return None

    def propose(self, request: InductionRequest) -> InductionReply:
        """
        Grow one tree per head and read rules off its nodes, those with the surest effect first.

        :return: at most ``request.max_rules`` rules, ready-made; none before any reward is seen
        :raises InductionFailure: if the request carries no vocabulary or experience
        :raises ConfigurationError: if scikit-learn is not installed
        """
        self.check()
        import sklearn

        started = time.monotonic()
        if request.vocabulary is None or request.experience is None:
            raise InductionFailure("internal", "the tree inducer needs a request with vocabulary and experience.")
        rules = self._rules(request.vocabulary, request.experience, request.number, request.max_rules)
        text = "\n".join(str(rule) for rule in rules)
        version = f"scikit-learn {sklearn.__version__}"
        return InductionReply(text, "decision tree", version, time.monotonic() - started, rules=tuple(rules))

    def _rules(self, vocabulary: Vocabulary, experience: Experience, number: int, most: int) -> list[Rule]:
        columns = _columns(vocabulary, experience)
        if not experience.rewarded or not columns:
            return []
        rng = np.random.default_rng(self.seed + number)
        episodes, order = np.unique(experience.episode_ids, return_inverse=True)
        times = (
            np.ones(len(episodes))
            if number == 0
            else rng.multinomial(len(episodes), np.full(len(episodes), 1 / len(episodes)))
        )
        drawn = times[order].astype(np.float64)
        matrix = np.stack([column.data for column in columns], axis=1)
        candidates: list[_Candidate] = []
        for head, target, weight in _effects(vocabulary, experience, self.min_rows):
            tree = self._grow(matrix, target, weight, drawn, rng, number > 0)
            candidates += self._read(tree, columns, matrix, head, weight, target, drawn, experience, vocabulary)
        return _choose(candidates, most)

    def _grow(
        self,
        matrix: np.ndarray,
        target: np.ndarray,
        weight: np.ndarray,
        drawn: np.ndarray,
        rng: np.random.Generator,
        bag: bool,
    ) -> Any:
        from sklearn.tree import DecisionTreeRegressor

        tree = DecisionTreeRegressor(
            max_depth=self.max_literals,
            min_samples_leaf=self.min_rows,
            max_features=0.5 if bag else None,
            random_state=int(rng.integers(2**31)),
        )
        kept = drawn > 0
        return tree.fit(matrix[kept], (target / weight)[kept], sample_weight=(drawn * weight**2)[kept]).tree_

    def _read(
        self,
        tree: Any,
        columns: Sequence[_Column],
        matrix: np.ndarray,
        head: str,
        weight: np.ndarray,
        target: np.ndarray,
        drawn: np.ndarray,
        experience: Experience,
        vocabulary: Vocabulary,
    ) -> list[_Candidate]:
        """:return: a candidate for every node with a positive effect: short paths have more rows, long ones fit better"""
        found = []
        inside = tree.decision_path(matrix).toarray().astype(bool)
        taken = action_masks(vocabulary, experience.actions)[head]
        for node, path in _paths(tree).items():
            body = inside[:, node]
            if not path or min((body & taken).sum(), (body & ~taken).sum()) < self.min_rows:
                continue
            effect, z = _effect(target[body], weight[body], drawn[body], experience.episode_ids[body])
            if z < SMALLEST_Z:
                continue
            literals = _literals(path, columns)
            why = f"return {effect:+.3g} over {int(body.sum())} transitions"
            rule = parse_rule(f"IF {' AND '.join(map(str, literals))} THEN {head}")
            rule = rule.model_copy(update={"source": "tree", "why": why})
            if not problems(rule, vocabulary):
                found.append(_Candidate(rule, z, body))
        return found


def _columns(vocabulary: Vocabulary, experience: Experience) -> list[_Column]:
    out = []
    for feature in offered(vocabulary):
        data = np.nan_to_num(experience.columns[feature.name].astype(np.float32), nan=0.0, posinf=1e30, neginf=-1e30)
        if feature.uses_next or not len(data) or data.min() == data.max():
            continue
        if feature.kind == "category":
            seen = [value for code, value in enumerate(feature.values) if (data == code).any()]
            out += [_Column(feature, value, (data == feature.code(value)).astype(np.float32)) for value in seen]
        else:
            out.append(_Column(feature, "yes" if feature.kind == "boolean" else None, data))
    return out[:MAX_COLUMNS]


def _effects(vocabulary: Vocabulary, experience: Experience, min_rows: int) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """:return: per head its text, r and w"""
    masks = {
        head: taken
        for head, taken in action_masks(vocabulary, experience.actions).items()
        if min(taken.sum(), len(taken) - taken.sum()) >= min_rows
    }
    heads = sorted(masks, key=lambda head: -int(masks[head].sum()))[:MAX_HEADS]
    if not heads:
        return []
    features = experience.tensors()
    base = Baseline(features, [feature.name for feature in vocabulary.features if feature.uses_next])
    returns = detrend(experience.returns, experience.episode_ids)
    targets = np.stack([returns, *(masks[head].astype(np.float64) for head in heads)], axis=1)
    residual = base.residual(base.design(features), th.from_numpy(targets)).numpy()
    out = []
    for at, head in enumerate(heads, start=1):
        w = residual[:, at]
        out.append((head, residual[:, 0], np.where(w < 0, -1.0, 1.0) * np.maximum(np.abs(w), 1e-3)))  # r/w stays finite
    return out


def _effect(r: np.ndarray, w: np.ndarray, drawn: np.ndarray, episode_ids: np.ndarray) -> tuple[float, float]:
    """:return: Σwr/Σw² and its distance from 0 in standard errors; rows of one episode share their noise"""
    total = float((drawn * w * w).sum())
    effect = float((drawn * w * r).sum()) / max(total, 1e-12)
    _, cluster = np.unique(episode_ids, return_inverse=True)
    sums = np.bincount(cluster, weights=drawn * w * (r - effect * w))
    error = math.sqrt(float((sums**2).sum())) / max(total, 1e-12)
    return effect, effect / error if error > 0.0 else 0.0


def _paths(tree: Any) -> dict[int, list[tuple[int, bool, float]]]:
    """:return: node -> (column, whether above, threshold) from the root"""
    paths: dict[int, list[tuple[int, bool, float]]] = {0: []}
    for node in range(tree.node_count):  # parents have smaller numbers than their children
        left, right = int(tree.children_left[node]), int(tree.children_right[node])
        if left != right:
            split = int(tree.feature[node]), float(tree.threshold[node])
            paths[left] = [*paths[node], (split[0], False, split[1])]
            paths[right] = [*paths[node], (split[0], True, split[1])]
    return paths


def _literals(path: Sequence[tuple[int, bool, float]], columns: Sequence[_Column]) -> list[Literal]:
    """:return: the path as literals: of several bounds on one side the tightest, of a symbol's values what is left to say"""
    bounds: dict[tuple[str, str], float] = {}
    symbols: dict[str, dict[str, bool]] = {}
    for at, above, threshold in path:
        column = columns[at]
        name = column.feature.name
        if column.value is None:
            key = (name, ">" if above else "<")
            bounds[key] = (max if above else min)(bounds.get(key, threshold), threshold)
        else:
            symbols.setdefault(name, {})[column.value] = above
    out = [Literal(feature=name, op=op, value=float(f"{value:.4g}")) for (name, op), value in bounds.items()]  # type: ignore[arg-type]
    for name, values in symbols.items():
        asked = [value for value, holds in values.items() if holds]
        out += [
            Literal(feature=name, op="is", value=value, negated=not values[value]).canonical() for value in asked or values
        ]
    return out


def _choose(candidates: Sequence[_Candidate], most: int) -> list[Rule]:
    chosen: list[_Candidate] = []
    for item in sorted(candidates, key=lambda candidate: (-candidate.z, candidate.rule.key)):
        if len(chosen) == most:
            break
        rivals = [other for other in chosen if other.rule.head == item.rule.head]
        if all((item.body & other.body).sum() <= CONTAINED * min(item.body.sum(), other.body.sum()) for other in rivals):
            chosen.append(item)
    return [item.rule for item in chosen]
