"""Prompts: short, with a one-line example from another domain, bounded to the context window.

Small models are the yardstick. Two forms are used in turn, since neither wins on every task: ``evidence`` shows counted
contrasts and episodes, ``names`` only names and the task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sb3_nser.errors import ConfigurationError
from sb3_nser.induction.episodes import Experience, contrast_lines, counted_evidence, feature_lines
from sb3_nser.rules.schema import facts, numbers
from sb3_nser.vocabulary import ActionSet, Vocabulary

FORMS = ("evidence", "names")


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
_EXAMPLES = {
    "symbolic": (
        '{"rules":[{"facts":["light is red","car_ahead is yes"],"action":"brake","confidence":0.8,'
        '"why":"Braking at a red light behind a car avoids a crash."}]}'
    ),
    "numeric": (
        '{"rules":[{"thresholds":[{"feature":"room_temperature","op":"<","value":17.5}],"action":"heat","confidence":0.7,'
        '"why":"A cold room needs heat."}]}'
    ),
    "mixed": (
        '{"rules":[{"facts":["light is red"],"thresholds":[{"feature":"speed","op":">","value":3.5}],"action":"brake",'
        '"confidence":0.8,"why":"Stop a moving car at a red light."}]}'
    ),
    "numeric_continuous": (
        '{"rules":[{"thresholds":[{"feature":"room_temperature","op":"<","value":17.5}],"action":"heater_power",'
        '"action_op":">","action_value":0.5,"confidence":0.7,"why":"A cold room needs heat."}]}'
    ),
}


@dataclass(frozen=True)
class PromptSettings:
    """
    :param budget: most characters of the prompt
    :param max_rules: rules asked for in one call
    :param hints: sentences from the user, shown as such
    """

    budget: int
    max_rules: int = 4
    hints: tuple[str, ...] = ()


def _example(vocabulary: Vocabulary) -> str:
    if vocabulary.actions.continuous:
        return _EXAMPLES["numeric_continuous"]
    symbolic, numeric = bool(facts(vocabulary)), bool(numbers(vocabulary))
    return _EXAMPLES["mixed" if symbolic and numeric else "symbolic" if symbolic else "numeric"]


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
    :param form: ``evidence`` or ``names``
    :param settings: budget and count
    :return: chat messages within ``settings.budget`` characters; optional blocks are shortened, then left out, to fit
    :raises ConfigurationError: if names and task alone do not fit, or the form is unknown
    """
    if form not in FORMS:
        raise ConfigurationError(f"prompt form {form!r} is unknown; use {' or '.join(map(repr, FORMS))}.")
    fixed = [
        f"Task: {vocabulary.task}",
        "What the agent sees:\n" + "\n".join(feature_lines(experience, vocabulary, ranges=form == "names")),
        f"Actions: {action_line(vocabulary.actions)}",
    ]
    closing = (
        f"Form of the answer (example from another domain): {_example(vocabulary)}\n"
        f"Give {settings.max_rules} different rules for this task, the most useful first. One or two conditions each are best."
    )
    room = settings.budget - len(_SYSTEM) - sum(len(part) + 2 for part in (*fixed, closing))
    if room < 0:
        raise ConfigurationError(
            f"vocabulary {vocabulary.name!r} alone needs {-room} characters more than the prompt may have; raise num_ctx or "
            "name fewer features."
        )
    parts = list(fixed)
    for title, lines in _optional_blocks(vocabulary, experience, feedback, form, settings):
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


def _optional_blocks(
    vocabulary: Vocabulary, experience: Experience, feedback: Sequence[str], form: str, settings: PromptSettings
) -> list[tuple[str, list[str]]]:
    """:return: (title, lines), the most important block first, since the last ones give way when room is short"""
    blocks = [
        ("Hints from the user:", [f"- {hint}" for hint in settings.hints]),
        ("Rules tried so far (do not repeat them; improve on them or find others):", list(feedback)),
    ]
    if form == "evidence":
        blocks += [
            ("Counted in the agent's own episodes, strongest first:", counted_evidence(experience, vocabulary)),
            ("Best and worst episodes, steps that matter:", contrast_lines(experience, vocabulary)),
        ]
    return [(title, lines) for title, lines in blocks if lines]


def action_line(actions: ActionSet) -> str:
    """:return: the actions' names, with range and unit where they are continuous"""
    if actions.low is None or actions.high is None:
        return ", ".join(actions.names)
    units = actions.units or ("",) * len(actions.names)
    spans = zip(actions.names, actions.low, actions.high, units, strict=True)
    return ", ".join(f"{name} ({low:g} to {high:g}{' ' + unit if unit else ''})" for name, low, high, unit in spans)
