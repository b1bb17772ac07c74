"""What the language model is shown of the agent's own episodes: ranges, counted evidence, and the best and worst of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sb3_nser.rules import format_number
from sb3_nser.rules.schema import offered
from sb3_nser.vocabulary import Feature, Vocabulary

MIN_COUNT = 15
"""Fewest transitions on either side of a contrast worth showing."""


@dataclass(frozen=True)
class Evidence:
    """One counted contrast, ready for a prompt.

    :param text: ``pole_angle > 0.05 -> push_right: mean return 23.1 (410 times), else 17.9``
    :param strength: absolute t-like statistic of the difference; how lines are sorted
    """

    text: str
    strength: float


@dataclass(frozen=True)
class Experience:
    """Episodes as columns, the raw material of a prompt.

    :param columns: feature name -> float32 array of shape (N,)
    :param actions: int64 of shape (N,), or float32 of shape (N, action_dim) in environment units
    :param rewards: shape (N,)
    :param returns: discounted return-to-go, shape (N,)
    :param episode_ids: shape (N,), one number per episode, rising with time
    """

    columns: dict[str, np.ndarray]
    actions: np.ndarray
    rewards: np.ndarray
    returns: np.ndarray
    episode_ids: np.ndarray

    def __len__(self) -> int:
        return len(self.returns)

    @property
    def rewarded(self) -> bool:
        """True if returns differ at all; before that nothing can be judged."""
        return len(self) > 0 and float(self.returns.max() - self.returns.min()) > 1e-9


def action_masks(vocabulary: Vocabulary, actions: np.ndarray) -> dict[str, np.ndarray]:
    """:return: head text -> boolean mask; discrete actions by name, continuous dimensions as upper and lower half"""
    if not vocabulary.actions.continuous:
        return {name: actions == index for index, name in enumerate(vocabulary.actions.names)}
    masks = {}
    assert vocabulary.actions.low is not None and vocabulary.actions.high is not None  # continuous
    for index, name in enumerate(vocabulary.actions.names):
        middle = 0.5 * (vocabulary.actions.low[index] + vocabulary.actions.high[index])
        masks[f"{name} > {format_number(middle)}"] = actions[:, index] > middle
        masks[f"{name} < {format_number(middle)}"] = actions[:, index] < middle
    return masks


def conditions(feature: Feature, column: np.ndarray) -> dict[str, np.ndarray]:
    """:return: condition text -> mask over rows: values for categories, both sides of the quartiles for numbers"""
    if feature.kind != "number":
        return {f"{feature.name} is {value}": column == code for code, value in enumerate(feature.values)}
    out: dict[str, np.ndarray] = {}
    for cut in np.unique(np.round(np.quantile(column, (0.25, 0.5, 0.75)), 6)):
        text = _short(cut)
        out[f"{feature.name} > {text}"] = column > float(text)
        out[f"{feature.name} < {text}"] = column < float(text)
    return out


def _short(value: float) -> str:
    """:return: three significant digits; more only invite copying"""
    return format_number(float(f"{float(value):.3g}"))


def counted_evidence(experience: Experience, vocabulary: Vocabulary, limit: int = 8, per_feature: int = 2) -> list[str]:
    """
    For every simple condition and action: the mean return-to-go with the action against that without it.

    :param experience: the agent's own episodes
    :param vocabulary: names
    :param limit: most lines
    :param per_feature: most lines on one feature, so that one feature does not crowd out the rest
    :return: lines, the strongest contrast first; empty before any reward was seen
    """
    if not experience.rewarded:
        return []
    masks = action_masks(vocabulary, experience.actions)
    returns, spread = experience.returns, float(experience.returns.std())
    found: list[tuple[str, Evidence]] = []
    for feature in offered(vocabulary):
        for condition, rows in conditions(feature, experience.columns[feature.name]).items():
            if rows.sum() < 2 * MIN_COUNT:
                continue
            for head, taken in masks.items():
                yes, no = returns[rows & taken], returns[rows & ~taken]
                if len(yes) < MIN_COUNT or len(no) < MIN_COUNT or yes.mean() <= no.mean():
                    continue  # what an action loses in one line, another gains in the next
                error = spread * np.sqrt(1 / len(yes) + 1 / len(no))
                text = f"{condition} -> {head}: mean return {_short(yes.mean())} ({len(yes)} times), else {_short(no.mean())}"
                found.append((feature.name, Evidence(text, float((yes.mean() - no.mean()) / max(error, 1e-9)))))
    found.sort(key=lambda item: -item[1].strength)
    lines: list[str] = []
    used: dict[str, int] = {}
    for name, evidence in found:
        if used.get(name, 0) < per_feature and len(lines) < limit:
            used[name] = used.get(name, 0) + 1
            lines.append(evidence.text)
    return lines


def feature_lines(experience: Experience, vocabulary: Vocabulary, ranges: bool = True) -> list[str]:
    """
    :param ranges: say which range of a number was seen; beside counted evidence that only invites copying it
    :return: one line per offered feature: name, unit or values, observed range or frequencies, meaning
    """
    lines = []
    for feature in offered(vocabulary):
        column = experience.columns.get(feature.name)
        seen = ""
        if feature.kind == "number":
            if ranges and column is not None and len(column):
                low, high = np.quantile(column, (0.02, 0.98))
                seen = f", mostly {_short(low)} to {_short(high)}"
            lines.append(f"- {feature.name} (number{', ' + feature.unit if feature.unit else ''}{seen}): {feature.meaning}")
        else:
            values = list(feature.values)
            if column is not None and len(column):
                share = np.bincount(column.astype(np.int64), minlength=len(values)) / len(column)
                values = [f"{value} {100 * part:.0f}%" for value, part in zip(values, share, strict=False)]
            lines.append(f"- {feature.name} ({' | '.join(values)}): {feature.meaning}")
    return lines


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
            lines.append(f"{label}: return {_short(totals[index])} in {len(rows)} steps, ... {shown}")
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
            parts.append(f"{feature.name} {_short(value)}")
        elif feature.kind == "category" or value > 0.5:
            parts.append(f"{feature.name} {feature.values[int(value)]}")
    actions = vocabulary.actions
    if actions.continuous:
        values = zip(actions.names, experience.actions[row], strict=False)
        taken = " ".join(f"{name} {_short(value)}" for name, value in values)
    else:
        taken = actions.names[int(experience.actions[row])]
    return f"{', '.join(parts)} -> {taken}"
