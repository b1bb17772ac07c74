"""Prompts: short, about few features at a time, with a one-line example from another domain, bounded to the context window.

Small models are the yardstick: they copy whatever stands in a prompt, so that each call shows two features only, its
conditions ready-made, and later calls show other ones. Two forms are used in turn, since neither wins on every task:
``evidence`` shows counted contrasts and episodes, ``names`` only names and the task. A third, ``free``, is for models that can
compose: it shows everything at once and leaves conditions and thresholds to the model; a fourth, ``rich``, offers ranges and
facts that held earlier in the episode as well.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from sb3_nser.errors import ConfigurationError
from sb3_nser.induction.episodes import (
    Contrast,
    Experience,
    conditions,
    contrast_lines,
    contrasts,
    feature_lines,
    situation_lines,
)
from sb3_nser.rules.schema import facts, heads, is_record, offered
from sb3_nser.rules.schema import numbers as numbers_of
from sb3_nser.vocabulary import ActionSet, Vocabulary

FORMS = ("evidence", "names", "free", "rich")
OPEN_FORMS = ("free", "rich")
"""Those in which the model composes conditions itself."""
WIDTH = 2
"""Features shown in one call."""


def forms_for(vocabulary: Vocabulary) -> tuple[str, ...]:
    """
    The forms that suit a vocabulary: thresholds cannot be guessed without numbers, while with symbols small models do better
    on names alone, and counted evidence adds what the names do not say.

    :return: forms to use in turn
    """
    return ("names", "evidence") if facts(vocabulary) else ("evidence",)


_SYSTEM = (
    "You help a reinforcement-learning agent. Propose short behavioural rules: in which situation is which action a good "
    "choice? Use only the names given. Answer with one line of JSON."
)
# two rules each, so that the model sees that rules differ
_EXAMPLES = {
    "record": (
        '{"rules":[{"light":"red","lane":"any","action":"brake"},{"light":"green","lane":"free","action":"accelerate"}]} '
        "(any: it does not matter)"
    ),
    "symbolic": (
        '{"rules":[{"facts":["light is red","lane is busy"],"action":"brake"},'
        '{"facts":["light is green","lane is free"],"action":"accelerate"}]}'
    ),
    "numeric": (
        '{"rules":[{"facts":["room_temperature < 17.5"],"action":"heat"},{"facts":["room_temperature > 24"],"action":"cool"}]}'
    ),
    "continuous": (
        '{"rules":[{"facts":["room_temperature < 17.5"],"action":"heater_power > 0.5"},'
        '{"facts":["room_temperature > 24"],"action":"heater_power < 0.5"}]}'
    ),
    "continuous_record": (
        '{"rules":[{"light":"red","lane":"any","action":"brake_force > 0.5"},'
        '{"light":"green","lane":"free","action":"brake_force < 0.5"}]} (any: it does not matter)'
    ),
    "free": (
        '{"rules":[{"thresholds":[{"feature":"room_temperature","op":"<","value":17.5}],"action":"heat",'
        '"why":"A cold room needs heat."}]}'
    ),
    "free_symbolic": (
        '{"rules":[{"facts":["light is red","lane is busy"],"action":"brake","why":"A red light in a busy lane means stop."}]}'
    ),
    "free_continuous": (
        '{"rules":[{"thresholds":[{"feature":"room_temperature","op":"<","value":17.5}],"action":"heater_power",'
        '"action_op":">","action_value":0.5,"why":"A cold room needs heat."}]}'
    ),
}


@dataclass(frozen=True)
class PromptSettings:
    """
    :param budget: most characters of the prompt
    :param max_rules: rules asked for in one call
    :param hints: sentences from the user, shown as such
    :param number: number of the call; what is shown first changes with it
    """

    budget: int
    max_rules: int = 4
    hints: tuple[str, ...] = ()
    number: int = 0


@dataclass(frozen=True)
class _Focus:
    """What one call is about: some features, ready-made conditions on them, and what was counted."""

    features: tuple[str, ...]
    conditions: tuple[str, ...]
    counted: tuple[Contrast, ...]


def conditions_for(vocabulary: Vocabulary, experience: Experience, form: str, settings: PromptSettings) -> tuple[str, ...]:
    """
    The conditions that ``build_messages`` shows for the same arguments, for ``reply_schema(conditions=...)``.

    :return: condition texts; empty if the model has to find thresholds itself, since nothing was seen yet
    """
    return _focus(vocabulary, experience, form, settings).conditions


def _focus(vocabulary: Vocabulary, experience: Experience, form: str, settings: PromptSettings) -> _Focus:
    if form in OPEN_FORMS:
        counted = tuple(item for group in contrasts(experience, vocabulary) for item in group)
        return _Focus(tuple(feature.name for feature in offered(vocabulary)), (), counted)
    turn = settings.number // len(forms_for(vocabulary))
    groups = {group[0].feature: group for group in contrasts(experience, vocabulary)} if form == "evidence" else {}
    names = _rotated(list(groups) or [feature.name for feature in offered(vocabulary)], turn)
    if groups and turn % 2:
        names.reverse()  # what was counted is copied from the top
    if not groups and not len(experience) and any(vocabulary[name].kind == "number" for name in names):
        return _Focus(tuple(names), (), ())
    counted = tuple(item for name in names for item in groups.get(name, ()))
    known: dict[str, None] = dict.fromkeys(item.condition for item in counted)
    for name in names:
        if vocabulary[name].kind != "number" or name not in groups:
            for group in conditions(vocabulary[name], experience.columns[name])[:1]:  # of a number, its median
                known |= dict.fromkeys(group)
    return _Focus(tuple(names), tuple(known), counted)


def _rotated(names: list[str], turn: int) -> list[str]:
    """:return: the first ``WIDTH`` names; every third turn the first beside one of the others, each in its turn"""
    others = names[WIDTH:]
    if turn % 3 < 2 or not others:
        return names[:WIDTH]
    return [*names[: WIDTH - 1], others[(turn // 3) % len(others)]]


def _example(vocabulary: Vocabulary, focus: _Focus, form: str) -> str:
    continuous = vocabulary.actions.continuous
    if form == "rich":
        action = '"heater_power","action_op":">","action_value":0.5' if continuous else '"heat"'
        numbers, symbols = bool(numbers_of(vocabulary)), bool(facts(vocabulary))
        facts_part = '"facts":["window is closed"],' if symbols else ""
        range_part = '"thresholds":[],"ranges":[{"feature":"room_temperature","low":12,"high":17.5}],' if numbers else ""
        earlier_part = '"earlier":["door is open"],' if symbols else ""
        why = "It got cold while the door was open." if symbols else "A cool room needs heat."
        meant = " (earlier: what held at some earlier step of the episode)" if symbols else ""
        return f'{{"rules":[{{{facts_part}{range_part}{earlier_part}"action":{action},"why":"{why}"}}]}}{meant}'
    if not focus.conditions:
        symbolic = not any(vocabulary[name].kind == "number" for name in focus.features)
        return _EXAMPLES["free_continuous" if continuous else "free_symbolic" if symbolic else "free"]
    if is_record(vocabulary, focus.conditions):
        return _EXAMPLES["continuous_record" if continuous else "record"]
    if continuous:
        return _EXAMPLES["continuous"]
    return _EXAMPLES["symbolic" if any(vocabulary[name].kind != "number" for name in focus.features) else "numeric"]


def build_messages(
    vocabulary: Vocabulary,
    experience: Experience,
    feedback: Sequence[str],
    form: str,
    settings: PromptSettings,
) -> tuple[dict[str, str], ...]:
    """
    :param vocabulary: names, task
    :param experience: the agent's own episodes; may be empty
    :param feedback: lines on rules proposed before
    :param form: ``evidence``, ``names``, ``free`` or ``rich``
    :param settings: budget, count, number of the call
    :return: chat messages within ``settings.budget`` characters; optional blocks are shortened, then left out, to fit
    :raises ConfigurationError: if names and task alone do not fit, or the form is unknown
    """
    if form not in FORMS:
        raise ConfigurationError(f"prompt form {form!r} is unknown; use {' or '.join(map(repr, FORMS))}.")
    focus = _focus(vocabulary, experience, form, settings)
    fixed = [
        f"Task: {vocabulary.task}",
        "What the agent sees:\n" + "\n".join(_fitting(feature_lines(vocabulary, focus.features, settings.number), settings)),
        f"Actions: {action_line(vocabulary.actions, settings.number, split=bool(focus.conditions))}",
    ]
    # asked for different actions, a small model gives one situation several of them
    record = is_record(vocabulary, focus.conditions)
    wish = "which action helps in which situation?" if record else "for different actions, the most useful first."
    closing = (
        f"Form of the answer (example from another domain): {_example(vocabulary, focus, form)}\n"
        f"Give {settings.max_rules} different rules for this task{':' if record else ','} {wish}"
    )
    room = settings.budget - len(_SYSTEM) - sum(len(part) + 2 for part in (*fixed, closing))
    if room < 0:
        raise ConfigurationError(
            f"vocabulary {vocabulary.name!r} alone needs {-room} characters more than the prompt may have; raise num_ctx or "
            "shorten the task and the features' meanings."
        )
    parts = list(fixed)
    for title, lines in _optional_blocks(vocabulary, experience, feedback, focus, settings):
        kept: list[str] = []
        size = len(title) + 2
        for line in lines:
            if size + len(line) + 1 > room:
                break
            kept.append(line)
            size += len(line) + 1
        if kept:
            parts.append(title + "\n" + "\n".join(kept))
            room -= size
    user = "\n\n".join([*parts, closing])
    return {"role": "system", "content": _SYSTEM}, {"role": "user", "content": user}


def _fitting(lines: list[str], settings: PromptSettings) -> list[str]:
    """:return: the first lines, the most important features, that fill at most a third of the prompt; at least ``WIDTH``"""
    total = 0
    for count, line in enumerate(lines):
        total += len(line) + 1
        if count >= WIDTH and total > settings.budget / 3:
            return lines[:count]
    return lines


def _optional_blocks(
    vocabulary: Vocabulary, experience: Experience, feedback: Sequence[str], focus: _Focus, settings: PromptSettings
) -> list[tuple[str, list[str]]]:
    """:return: (title, lines), the most important block first, since the last ones give way when room is short"""
    record = is_record(vocabulary, focus.conditions)
    blocks = [
        ("Hints from the user:", [f"- {hint}" for hint in settings.hints]),
        # unasked, a small model combines values that never meet, and such rules never fire
        ("Situations that occur:", situation_lines(experience, vocabulary, focus.features) if record else []),
        ("Measured in the agent's own episodes:", [str(item) for item in focus.counted]),
        ("Rules tried so far (do not repeat them; improve on them or find others):", list(feedback)),
    ]
    if focus.counted and facts(vocabulary):  # rows of numbers cost many tokens and say little
        blocks.append(("Best and worst episodes, steps that matter:", contrast_lines(experience, vocabulary)))
    return [(title, lines) for title, lines in blocks if lines]


def action_line(actions: ActionSet, number: int = 0, split: bool = False) -> str:
    """
    :param number: discrete actions come in another order with each number, since small models favour places in a list
    :param split: continuous actions as the halves that a rule may ask for
    :return: the actions' names, with range and unit where they are continuous
    """
    if actions.low is None or actions.high is None:
        names = list(actions.names)
        random.Random(number).shuffle(names)
        return ", ".join(names)
    units = actions.units or ("",) * len(actions.names)
    spans = zip(actions.names, actions.low, actions.high, units, strict=True)
    line = ", ".join(f"{name} ({low:g} to {high:g}{' ' + unit if unit else ''})" for name, low, high, unit in spans)
    return f"{line}; choose from {', '.join(heads(actions))}" if split else line
