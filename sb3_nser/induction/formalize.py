"""A person's own words, translated by a language model into rules of the same schema, and marked as the person's."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from sb3_nser.errors import ConfigurationError, printable
from sb3_nser.induction.base import InductionRequest
from sb3_nser.induction.episodes import Experience, conditions, feature_lines
from sb3_nser.induction.prompts import action_line
from sb3_nser.rules import Rule, format_number
from sb3_nser.rules.schema import ParsedReply, facts, is_record, numbers, offered, reply_schema
from sb3_nser.vocabulary import ActionSet, Feature, Vocabulary

FORM = "hint"
"""Name of this prompt form in a record."""
HINT_SOURCE = "user_hint"
"""``source`` of a rule that says what a person said, in a model's translation."""
MAX_HINT = 500
"""Most characters of one hint."""
SHOWN = 3
"""Features shown to the model: those that the hint speaks of. More, and small models fill in what nobody said."""

_SYSTEM = (
    "You translate a person's advice to an agent into rules of a fixed form: in which situation is which action "
    "a good choice? Say what the advice says and nothing else. Use only the names given. Answer with one line of JSON."
)
_RECORD = (
    'Advice: "brake at a red light"\n'
    'Answer: {"rules":[{"light":"red","lane":"any","weather":"any","action":"brake"}]}\n'
    'Advice: "let people cross the street in the rain"\n'
    'Answer: {"rules":[{"light":"any","lane":"people","weather":"rain","action":"wait"}]}\n'
    "(any: the advice does not say)"
)
_CHOICE = (
    'Advice: "heat a cold room"\nAnswer: {"rules":[{"facts":["room_temperature < 17.5"],"action":"heat"}]}\n'
    'Advice: "heat a small room when people come in"\n'
    'Answer: {"rules":[{"facts":["room_size < 20","people > 0"],"action":"heat"}]}'
)
_FREE = (
    'Advice: "heat a cold room unless a window is open"\n'
    'Answer: {"rules":[{"facts":["window_open is no"],"thresholds":[{"feature":"room_temperature","op":"<","value":17.5}],'
    '"action":"heat","why":"A cold room needs heat."}]}'
)
_FREE_NUMBERS = (
    'Advice: "heat a cold room"\n'
    'Answer: {"rules":[{"thresholds":[{"feature":"room_temperature","op":"<","value":17.5}],"action":"heat",'
    '"why":"A cold room needs heat."}]}'
)
_CONTINUOUS = '"action":"heater_power","action_op":">","action_value":0.5,'


def check_hint(hint: str, argument: str = "hints") -> str:
    """
    :param hint: a person's sentence
    :param argument: name of the argument that gave it, for messages
    :return: the sentence on one line
    :raises ConfigurationError: if it is empty or too long
    """
    line = printable(hint, 4 * MAX_HINT)
    if not line:
        raise ConfigurationError(f"{argument}={hint!r} is empty; write a sentence such as 'pick up the key before the door'.")
    if len(line) > MAX_HINT:
        raise ConfigurationError(
            f"{argument}: a hint may have at most {MAX_HINT} characters, got {len(line)}; write one sentence per hint."
        )
    return line


def hint_request(
    vocabulary: Vocabulary,
    hint: str,
    experience: Experience | None = None,
    *,
    max_rules: int = 1,
    budget: int = 9_000,
    number: int = 0,
    step: int = 0,
) -> InductionRequest:
    """
    The question that asks a model for a translation. It is about the features that the hint speaks of, and about the actions
    that it names, if it names one.

    :param vocabulary: the names rules speak in
    :param hint: the person's sentence
    :param experience: what was seen of the environment: conditions on numbers are then chosen from its quartiles (or from the
        numbers that the hint names), as in other prompts, instead of made up
    :param max_rules: most rules of the translation, 1 to 8
    :param budget: most characters of the prompt
    :param number: number of the call; another one is another seed
    :param step: environment step, for the record
    :return: the request
    :raises ConfigurationError: if the hint is empty or too long, or the prompt does not fit
    """
    advice, _ = _split_refusal(check_hint(hint))
    shown = dataclasses.replace(
        vocabulary, features=tuple(_relevant(vocabulary, advice)), actions=_named(vocabulary.actions, advice)
    )
    ready_made = _ready_made(shown, advice, experience)
    schema = reply_schema(shown, max_rules, max_literals=SHOWN, conditions=ready_made)
    schema["properties"]["rules"]["minItems"] = 1  # one sentence often says one rule
    if ready_made and not is_record(shown, ready_made):
        schema["properties"]["rules"]["items"]["properties"]["facts"]["maxItems"] = min(2, len(shown.features))
    many = "1 rule" if max_rules == 1 else f"1 to {max_rules} rules"
    parts = [
        f"Task: {vocabulary.task}",
        "What the agent sees:\n" + "\n".join(feature_lines(shown)),
        f"Actions: {action_line(shown.actions, split=bool(ready_made))}",
        *([f"Conditions: {', '.join(ready_made)}"] if ready_made and numbers(shown) else []),
        f"Example from another domain:\n{_example(shown, ready_made)}",
        f'Advice: "{advice}"\nAnswer with {many}:',
    ]
    user = "\n\n".join(parts)
    size = len(_SYSTEM) + len(user)
    if size > budget:
        raise ConfigurationError(
            f"a hint needs a prompt of {size} characters, more than {budget}; raise num_ctx or shorten it."
        )
    messages = ({"role": "system", "content": _SYSTEM}, {"role": "user", "content": user})
    return InductionRequest(number, step, messages, schema, max_rules, FORM)


def as_hint(parsed: ParsedReply, hint: str) -> ParsedReply:
    """
    Mark the rules of a checked reply as the person's: source ``user_hint``, the hint as their reason. "Never", "do not" or
    "avoid" at the beginning of the hint makes ``avoid`` rules.

    :param parsed: what the model answered to ``hint_request``
    :param hint: the person's sentence
    :return: the same with its rules marked, repeats left out
    """
    line = check_hint(hint)
    update: dict[str, Any] = {"source": HINT_SOURCE, "why": printable(f"hint: {line}", 200)}
    if _split_refusal(line)[1]:
        update["polarity"] = "avoid"
    unique: dict[str, Rule] = {}
    for rule in parsed.rules:
        marked = rule.model_copy(update=update)
        unique.setdefault(marked.key, marked)
    return dataclasses.replace(parsed, rules=tuple(unique.values()))


_REFUSAL = re.compile(r"(?:please,? )?(?:you )?(?:never|do not|don['’]?t|must not|should not|avoid)\b[ ,:]*", re.IGNORECASE)


def _split_refusal(hint: str) -> tuple[str, bool]:
    """:return: the hint without a "never" at its beginning, and whether it had one: small models pass over it"""
    match = _REFUSAL.match(hint)
    rest = hint[match.end() :] if match else ""
    return (rest, True) if rest else (hint, False)


def _named(actions: ActionSet, text: str) -> ActionSet:
    """:return: the actions that a text names in full ("push right", "pick up" for ``pickup``), all of them if it names none"""
    if actions.continuous:
        return actions
    said = " ".join(re.findall(r"[a-z0-9]+", text.lower()))
    run = said.replace(" ", "")
    names = [
        n for n in actions.names if n.replace("_", " ").lower() in said or ("_" not in n and len(n) > 4 and n.lower() in run)
    ]
    return ActionSet(tuple(names)) if names else actions


def _example(shown: Vocabulary, ready_made: list[str]) -> str:
    continuous = shown.actions.continuous
    if ready_made and not is_record(shown, ready_made):
        return _CHOICE.replace('"heat"', '"heater_power > 0.5"') if continuous else _CHOICE
    if ready_made:
        return _RECORD.replace('"brake"}', '"brake_force > 0.5"}') if continuous else _RECORD
    text = (
        _FREE
        if facts(shown) and numbers(shown)
        else _FREE_NUMBERS
        if numbers(shown)
        else _FREE.replace('"thresholds":[{"feature":"room_temperature","op":"<","value":17.5}],', "").replace(
            "a cold room unless a window is open", "while the window is closed"
        )
    )
    return text.replace('"action":"heat",', _CONTINUOUS) if continuous else text


def _relevant(vocabulary: Vocabulary, text: str) -> list[Feature]:
    """:return: the features that a text speaks of, at most ``SHOWN``, in the vocabulary's order; the first ones if of none"""
    said = _words(text)

    def score(feature: Feature) -> float:
        named = len(said & (_words(feature.name) | _words(" ".join(feature.values))))
        return named if named else 0.5 * bool(said & _words(feature.meaning))

    features = offered(vocabulary)
    best = max(map(score, features), default=0.0)  # where a name is mentioned, a word in some meaning says nothing
    spoken_of = [feature for feature in features if score(feature) >= min(best, 1.0)]
    ranked = sorted(spoken_of, key=score, reverse=True)[:SHOWN]  # stable: of equals the earlier one
    return [feature for feature in features if feature in ranked]


def _ready_made(shown: Vocabulary, advice: str, experience: Experience | None) -> list[str]:
    """:return: conditions to choose from; empty if the model has to find thresholds itself"""
    if not numbers(shown):
        return facts(shown)
    if experience is None or not len(experience):
        return []
    own = [format_number(float(text)) for text in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.]*\w)", advice)]
    found = facts(shown)
    for feature in shown.features:
        if feature.kind != "number":
            continue
        name, column = feature.name, experience.columns[feature.name]
        if own:
            found += [f"{name} {op} {value}" for value in own for op in (">", "<")]
            continue
        groups = [list(group) for group in conditions(feature, column)]  # the median's first, then those of the quartiles
        if (column < 0).mean() > 0.05 < (column > 0).mean():
            groups[:1] = [[f"{name} > 0", f"{name} < 0"]]  # to which side, people say
        found += [text for at, group in enumerate(groups) for text in (group if at == 0 else group[at == 1 :][:1])]
    return list(dict.fromkeys(found))


_FILLING = frozenset("the a an and or of is are be to in on at if when then it its that this with for no not yes".split())


def _words(text: str) -> set[str]:
    """:return: the words of a text in lower case, names split at ``_``, plural ``s`` cut off"""
    found: list[Any] = re.findall(r"[a-z]+", text.lower().replace("_", " "))
    return {word[:-1] if len(word) > 3 and word.endswith("s") else word for word in found} - _FILLING
