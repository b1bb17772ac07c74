"""What the language model is shown of the agent's own episodes: ranges, counted evidence, and the best and worst of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch as th

from sb3_nser.rules import format_number
from sb3_nser.rules.schema import heads, offered
from sb3_nser.vocabulary import Feature, Vocabulary

MIN_COUNT = 15
"""Fewest transitions on either side of a contrast worth showing."""


@dataclass(frozen=True)
class Contrast:
    """One counted contrast: an action in a situation, against every other action there.

    :param feature: the feature the condition is about
    :param condition: ``pole_angle > 0.05``
    :param head: the action that did best there, ``push_right`` or ``torque > 0``
    :param mean: mean return-to-go with it
    :param count: how often it was taken
    :param otherwise: mean return-to-go without it
    :param strength: t-like statistic of the difference, above 0
    """

    feature: str
    condition: str
    head: str
    mean: float
    count: int
    otherwise: float
    strength: float

    def __str__(self) -> str:
        return (
            f"- {self.condition} -> {self.head} (mean return {short(self.mean)} in {self.count} cases, "
            f"else {short(self.otherwise)})"
        )


@dataclass(frozen=True)
class Experience:
    """Episodes as columns, the raw material of a prompt.

    :param columns: feature name -> float32 array of shape (N,)
    :param actions: int64 of shape (N,), or float32 of shape (N, action_dim) in environment units
    :param rewards: shape (N,)
    :param returns: discounted return-to-go, shape (N,)
    :param episode_ids: shape (N,), one number per episode, rising with time
    :param gamma: discount of the returns, None if it is not known
    :param objects: features of objects that rules ask for (``object:kind``) -> float32 array of shape (N, places); no prompt
        shows them
    """

    columns: dict[str, np.ndarray]
    actions: np.ndarray
    rewards: np.ndarray
    returns: np.ndarray
    episode_ids: np.ndarray
    gamma: float | None = None
    objects: dict[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.returns)

    def part(self, rows: np.ndarray) -> Experience:
        """
        :param rows: boolean mask of shape (N,)
        :return: those rows alone
        """
        columns = {name: column[rows] for name, column in self.columns.items()}
        objects = {name: column[rows] for name, column in self.objects.items()}
        return Experience(
            columns, self.actions[rows], self.rewards[rows], self.returns[rows], self.episode_ids[rows], self.gamma, objects
        )

    def tensors(self) -> dict[str, th.Tensor]:
        """:return: the columns, those of objects too, as tensors that share their memory"""
        return {name: th.from_numpy(column) for name, column in (self.columns | self.objects).items()}

    @property
    def rewarded(self) -> bool:
        """True if returns differ at all; before that nothing can be judged."""
        return len(self) > 0 and float(self.returns.max() - self.returns.min()) > 1e-9


def action_masks(vocabulary: Vocabulary, actions: np.ndarray) -> dict[str, np.ndarray]:
    """:return: head text -> boolean mask; discrete actions by name, continuous dimensions as upper and lower half"""
    if not vocabulary.actions.continuous:
        return {name: actions == index for index, name in enumerate(vocabulary.actions.names)}
    masks = {}
    for head in heads(vocabulary.actions):
        name, op, middle = head.split()
        column = actions[:, vocabulary.actions.names.index(name)]
        masks[head] = column > float(middle) if op == ">" else column < float(middle)
    return masks


def conditions(feature: Feature, column: np.ndarray) -> list[dict[str, np.ndarray]]:
    """
    Ready-made conditions on one feature.

    :return: groups of condition text -> mask over rows: one group with a category's values; for a number one group per
        quartile with its two sides
    """
    if feature.kind != "number":
        return [{f"{feature.name} is {value}": column == code for code, value in enumerate(feature.values)}]
    finite = column[np.isfinite(column)]
    cuts = _cuts(finite) if len(finite) else []
    return [{f"{feature.name} > {cut}": column > float(cut), f"{feature.name} < {cut}": column < float(cut)} for cut in cuts]


def _cuts(column: np.ndarray) -> list[str]:
    """:return: the quartiles, the median first, with no more digits than tell them apart: every digit is a token"""
    low, middle, high = np.quantile(column.astype(np.float64), (0.25, 0.5, 0.75))
    spread = float(high - low) or float(column.std())
    decimals = int(np.clip(1 - np.floor(np.log10(spread)), -300, 300)) if spread > 0 else 6
    return list(dict.fromkeys(format_number(round(float(cut), decimals)) for cut in (middle, low, high)))


def short(value: float) -> str:
    """:return: two significant digits, or whole numbers; every digit more is a token more and says nothing to a reader"""
    size = abs(float(value))
    return format_number(round(float(value)) if size >= 100 else float(f"{float(value):.2g}"))


def contrasts(experience: Experience, vocabulary: Vocabulary) -> list[list[Contrast]]:
    """
    For every simple condition the action that did best: mean return-to-go with it against that without it.

    :param experience: the agent's own episodes
    :param vocabulary: names
    :return: per feature its contrasts, the feature with the strongest one first; of a number the quartile whose two sides
        tell most, and both sides of it, since one alone says little. Empty before any reward was seen
    """
    if not experience.rewarded:
        return []
    masks = action_masks(vocabulary, experience.actions)
    found: list[list[Contrast]] = []
    for feature in offered(vocabulary):
        groups = [
            [best for text, rows in group.items() if (best := _best(experience.returns, feature.name, text, rows, masks))]
            for group in conditions(feature, experience.columns[feature.name])
        ]
        strongest = max(groups, key=lambda group: sum(item.strength for item in group), default=[])
        if strongest:
            found.append(sorted(strongest, key=lambda item: -item.strength))
    return sorted(found, key=lambda group: -group[0].strength)


def _best(
    returns: np.ndarray, feature: str, condition: str, rows: np.ndarray, masks: dict[str, np.ndarray]
) -> Contrast | None:
    best: Contrast | None = None
    if rows.sum() < 2 * MIN_COUNT:
        return None
    for head, taken in masks.items():
        yes, no = returns[rows & taken], returns[rows & ~taken]
        if len(yes) < MIN_COUNT or len(no) < MIN_COUNT or yes.mean() <= no.mean():
            continue
        error = float(returns.std()) * np.sqrt(1 / len(yes) + 1 / len(no))
        strength = float((yes.mean() - no.mean()) / max(error, 1e-9))
        if best is None or strength > best.strength:
            best = Contrast(feature, condition, head, float(yes.mean()), len(yes), float(no.mean()), strength)
    return best


def feature_lines(vocabulary: Vocabulary, names: Sequence[str] | None = None, number: int | None = None) -> list[str]:
    """
    :param names: the features to show, in this order; default all that are offered
    :param number: values come in another order with each number, since small models favour places in a list; None keeps it
    :return: one line per feature: name, unit or values, meaning. Frequencies and ranges are left out: they get copied
    """
    lines = []
    for feature in offered(vocabulary) if names is None else [vocabulary[name] for name in names]:
        values = list(feature.values)
        if number is not None:
            random.Random(f"{feature.name} {number}").shuffle(values)
        lines.append(f"- {feature.name} ({', '.join(values) or feature.unit or 'number'}): {feature.meaning}")
    return lines


def situation_lines(experience: Experience, vocabulary: Vocabulary, names: Sequence[str], most: int = 10) -> list[str]:
    """
    :param experience: the agent's own episodes; may be empty
    :param names: features with named values
    :param most: most situations shown
    :return: one line per combination of the features' values that occurs, as a rule in a reply would write it. Small models
        write about the first ones, so those come first where the choice of the action mattered most; before any reward is
        seen, the rarest
    """
    if not len(experience):
        return []
    codes, which, counts = np.unique(
        np.stack([experience.columns[name] for name in names], axis=1), axis=0, return_inverse=True, return_counts=True
    )
    which = which.reshape(-1)
    masks = action_masks(vocabulary, experience.actions) if experience.rewarded else {}
    known = [vocabulary[name] for name in names]
    found: list[tuple[float, int, str]] = []
    for at, row in enumerate(codes):
        if counts[at] < MIN_COUNT or not np.isfinite(row).all():
            continue
        text = ",".join(f'"{feature.name}":"{feature.values[int(code)]}"' for feature, code in zip(known, row, strict=True))
        best = _best(experience.returns, names[0], text, which == at, masks)
        # what the best action gains there, less its standard error
        gain = (best.mean - best.otherwise) * (1.0 - 1.0 / best.strength) if best and best.strength > 1.0 else 0.0
        found.append((-gain, int(counts[at]), f"- {text}"))
    return [line for _, _, line in sorted(found)[:most]]


def contrast_lines(experience: Experience, vocabulary: Vocabulary, episodes: int = 2, steps: int = 4) -> list[str]:
    """
    The best and the worst episodes, cut down to the steps that matter: the last ones, and those where something named changed.

    :param experience: the agent's own episodes
    :param vocabulary: names
    :param episodes: how many of the best and of the worst
    :param steps: most steps shown of each
    :return: lines; empty if there are fewer than two episodes or all returned the same
    """
    ids, first = np.unique(experience.episode_ids, return_index=True)
    if len(ids) < 2:
        return []
    totals = np.add.reduceat(experience.rewards, first)
    if totals.max() - totals.min() < 1e-9:
        return []
    order = np.argsort(totals, kind="stable")
    ends = np.append(first[1:], len(experience))
    lines = []
    if not any(feature.kind != "number" for feature in offered(vocabulary)):
        episodes, steps = 1, 2  # rows of numbers cost many tokens and say little
    for label, chosen in (("best", order[::-1][:episodes]), ("worst", order[:episodes])):
        for index in chosen:
            rows = np.arange(first[index], ends[index])
            shown = " ; ".join(
                _step(experience, vocabulary, row) for row in _steps_that_matter(experience, vocabulary, rows, steps)
            )
            lines.append(f"{label}: return {short(totals[index])} in {len(rows)} steps, ... {shown}")
    return lines


def _steps_that_matter(experience: Experience, vocabulary: Vocabulary, rows: np.ndarray, steps: int) -> np.ndarray:
    changed = np.zeros(len(rows), bool)
    for feature in offered(vocabulary)[:4]:
        if feature.kind != "number":
            column = experience.columns[feature.name][rows]
            changed[:-1] |= column[:-1] != column[1:]
    picked = rows[changed]
    # where nothing named changes, the last steps say how it ended
    return picked[-steps:] if len(picked) else rows[-min(steps, 2) :]


def _step(experience: Experience, vocabulary: Vocabulary, row: int) -> str:
    parts = []
    for feature in offered(vocabulary)[:4]:
        value = float(experience.columns[feature.name][row])
        if feature.kind == "number":
            parts.append(f"{feature.name} {short(value)}")
        elif feature.kind == "category" or value > 0.5:
            parts.append(f"{feature.name} {feature.values[int(value)]}")
    actions = vocabulary.actions
    if actions.continuous:
        values = zip(actions.names, experience.actions[row], strict=False)
        taken = " ".join(f"{name} {short(value)}" for name, value in values)
    else:
        taken = actions.names[int(experience.actions[row])]
    return f"{', '.join(parts)} -> {taken}"
