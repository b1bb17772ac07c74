"""A vocabulary as plain text, the same for people and for the language model."""

from __future__ import annotations

from collections.abc import Mapping

from sb3_nser.vocabulary.features import Feature, Vocabulary


def describe(vocabulary: Vocabulary, summaries: Mapping[str, object] | None = None) -> str:
    """
    The names a rule may use, one line each.

    :param vocabulary: what to describe
    :param summaries: feature name -> what was observed of it, for example ``"seen -0.1..0.2"``; shown behind the meaning
    :return: the task, the features with values or unit and range, the objects, and the actions
    """
    summaries = summaries or {}
    lines = [f"Task: {vocabulary.task}", "Features:"]
    for feature in vocabulary.features:
        line = f"- {feature.name} ({_domain(feature)}): {feature.meaning}"
        if feature.name in summaries:
            line += f"; {summaries[feature.name]}"
        lines.append(line)
    for group in vocabulary.objects:
        lines.append(f"Objects for 'exists {group.name} (...)' and 'forall {group.name} (...)': {group.meaning}")
        lines += [f"- {feature.name} ({_domain(feature)}): {feature.meaning}" for feature in group.features]
    actions = vocabulary.actions
    if actions.low is None or actions.high is None:
        lines.append(f"Actions: {', '.join(actions.names)}")
    else:
        lines.append("Action dimensions:")
        units = actions.units or ("",) * len(actions.names)
        for name, low, high, unit in zip(actions.names, actions.low, actions.high, units, strict=True):
            lines.append(f"- {name} ({_range(low, high)}{' ' + unit if unit else ''})")
    return "\n".join(lines)


def _domain(feature: Feature) -> str:
    if feature.kind != "number":
        return " | ".join(feature.values)
    parts = ["number"]
    if feature.low is not None or feature.high is not None:
        parts.append(_range(feature.low, feature.high))
    if feature.unit:
        parts.append(feature.unit)
    return " ".join(parts)


def _range(low: float | None, high: float | None) -> str:
    low, high = (None if end is None else end + 0.0 for end in (low, high))  # no "-0"
    if low is None:
        return "any" if high is None else f"up to {high:.4g}"
    return f"from {low:.4g}" if high is None else f"{low:.4g}..{high:.4g}"
