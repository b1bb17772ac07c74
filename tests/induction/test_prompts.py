"""Prompts fit their budget, name what the schema offers, and change from call to call."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sb3_nser.errors import ConfigurationError
from sb3_nser.induction.episodes import Experience
from sb3_nser.induction.prompts import FORMS, PromptSettings, action_line, build_messages, conditions_for, forms_for
from sb3_nser.rules.schema import parse_reply, reply_schema
from sb3_nser.vocabulary import ActionSet, Feature, Vocabulary


def number(k: int) -> Feature:
    return Feature(
        f"sensor_{k}", "number", f"value of sensor {k} at the left arm of the robot", lambda o, _: o[:, 0], unit="m"
    )


def category(k: int) -> Feature:
    return Feature(f"object_{k}", "category", f"what place {k} holds", lambda o, _: o[:, 0], values=("nothing", "key", "door"))


DISCRETE = ActionSet(("left", "right", "wait"))
CONTINUOUS = ActionSet(("torque", "grip"), low=(-2.0, 0.0), high=(2.0, 1.0), units=("N", ""))


def vocabulary(numbers: int = 0, categories: int = 0, actions: ActionSet = DISCRETE) -> Vocabulary:
    features = [category(k) for k in range(categories)] + [number(k) for k in range(numbers)]
    return Vocabulary("robot", "Bring the box to the shelf.", tuple(features), actions)


def experience(words: Vocabulary, episodes: int = 50, steps: int = 20, rewarded: bool = True) -> Experience:
    rng = np.random.default_rng(0)
    n = episodes * steps
    columns = {
        feature.name: (rng.normal(size=n) if feature.kind == "number" else rng.integers(0, 3, n)).astype(np.float32)
        for feature in words.features
    }
    actions = rng.uniform(0, 1, (n, 2)) if words.actions.continuous else rng.integers(0, 3, n)
    gains = rng.normal(size=n) if rewarded else np.zeros(n)
    return Experience(columns, actions, gains, gains, np.repeat(np.arange(episodes), steps))


READY_MADE = ("evidence", "names")


def size(messages: tuple[dict[str, str], ...]) -> int:
    return sum(len(message["content"]) for message in messages)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("actions", [DISCRETE, CONTINUOUS])
@pytest.mark.parametrize("budget", [1_400, 2_000, 9_000])
def test_c20_sixty_features_and_fifty_episodes_fit_the_budget(form: str, actions: ActionSet, budget: int) -> None:
    words = vocabulary(30, 30, actions)
    feedback = [f"- IF object_{k} is key THEN left: rejected, no gain on held-out episodes" for k in range(40)]
    for call in range(4):
        settings = PromptSettings(budget, 4, hints=("Pick up the key first.",), number=call)
        messages = build_messages(words, experience(words), feedback, form, settings)
        assert size(messages) <= budget
        assert [message["role"] for message in messages] == ["system", "user"]
        text = messages[1]["content"]
        assert words.task in text and "Form of the answer" in text and "Give 4 different rules" in text


def test_optional_blocks_give_way_in_order() -> None:
    words = vocabulary(2, 2)
    seen = experience(words)
    titles = ("Hints from the user", "Measured in the agent's own", "Rules tried so far", "Best and worst episodes")
    feedback = [f"- IF object_0 is key THEN left: rejected {k}" for k in range(6)]

    def shown(budget: int) -> list[bool]:
        settings = PromptSettings(budget, hints=("Keys open doors.",))
        text = build_messages(words, seen, feedback, "evidence", settings)[1]["content"]
        return [title in text for title in titles]

    smallest = size(build_messages(words, experience(words, 0), [], "names", PromptSettings(9_000)))
    assert shown(9_000) == [True] * 4
    counts = [sum(shown(budget)) for budget in range(smallest + 40, 4_000, 20)]
    assert counts == sorted(counts) and counts[0] < 4  # the last blocks go first
    for budget in range(smallest + 40, 4_000, 100):
        flags = shown(budget)
        assert flags == sorted(flags, reverse=True)


def test_too_small_a_budget_is_explained() -> None:
    words = vocabulary(2)
    with pytest.raises(ConfigurationError, match=r"alone needs \d+ characters more .* raise num_ctx"):
        build_messages(words, experience(words), [], "names", PromptSettings(300))


def test_an_unknown_form_is_explained() -> None:
    words = vocabulary(2)
    with pytest.raises(ConfigurationError, match="prompt form 'rows' is unknown; use 'evidence' or 'names' or 'free'"):
        build_messages(words, experience(words), [], "rows", PromptSettings(9_000))


def test_forms_that_suit() -> None:
    assert forms_for(vocabulary(2)) == ("evidence",)
    assert set(forms_for(vocabulary(2, 1))) == set(READY_MADE)


@pytest.mark.parametrize("form", READY_MADE)
@pytest.mark.parametrize("words", [vocabulary(4), vocabulary(0, 4), vocabulary(2, 2), vocabulary(2, 0, CONTINUOUS)])
def test_conditions_are_those_the_prompt_speaks_of_and_every_reply_made_of_them_is_read(form: str, words: Vocabulary) -> None:
    seen = experience(words)
    for call in range(4):
        settings = PromptSettings(9_000, 3, number=call)
        text = build_messages(words, seen, [], form, settings)[1]["content"]
        conditions = conditions_for(words, seen, form, settings)
        assert conditions
        choice = reply_schema(words, 3, conditions=conditions)["properties"]["rules"]["items"]["properties"]
        for condition in conditions:
            assert f"- {condition.split()[0]} (" in text
        for head in choice["action"]["enum"]:
            assert head in text
            rules = ",".join(f'{{"facts":["{condition}"],"action":"{head}"}}' for condition in conditions)
            parsed = parse_reply(f'{{"rules":[{rules}]}}', words, 99)
            assert len(parsed.rules) == len(conditions) and not parsed.refused
        if form == "evidence":
            counted = [line for line in text.split("\n") if " (mean return " in line]
            assert counted and all(any(line.startswith(f"- {c} -> ") for c in conditions) for line in counted)


@pytest.mark.parametrize("form", READY_MADE)
def test_c37_what_is_shown_changes_with_the_call(form: str) -> None:
    words = vocabulary(0, 5)
    seen = experience(words)
    calls = [PromptSettings(9_000, number=k) for k in range(20)]
    assert len({build_messages(words, seen, [], form, settings)[1]["content"] for settings in calls}) >= 15
    shown = {c.split()[0] for settings in calls for c in conditions_for(words, seen, form, settings)}
    assert shown == {feature.name for feature in words.features}
    assert build_messages(words, seen, [], form, calls[3]) == build_messages(words, seen, [], form, calls[3])


@pytest.mark.parametrize("form", READY_MADE)
@pytest.mark.parametrize("words", [vocabulary(3), vocabulary(0, 3), vocabulary(2, 2, CONTINUOUS)])
@pytest.mark.parametrize("episodes", [0, 5])
def test_without_reward_there_is_no_evidence_and_without_experience_it_still_works(
    form: str, words: Vocabulary, episodes: int
) -> None:
    seen = experience(words, episodes, rewarded=False)
    settings = PromptSettings(9_000)
    text = build_messages(words, seen, [], form, settings)[1]["content"]
    assert "Measured" not in text and "Best and worst" not in text
    conditions = conditions_for(words, seen, form, settings)
    reply_schema(words, 3, conditions=conditions)
    numeric = any(feature.kind == "number" for feature in words.features)
    assert bool(conditions) == bool(episodes or not numeric or words.features[1].kind == "category")
    assert ("thresholds" in text) == (not conditions)


def test_actions_come_in_another_order_with_another_number() -> None:
    lines = {action_line(DISCRETE, k) for k in range(20)}
    assert len(lines) > 3 and all(sorted(line.split(", ")) == ["left", "right", "wait"] for line in lines)
    assert action_line(CONTINUOUS) == "torque (-2 to 2 N), grip (0 to 1)"
    assert action_line(CONTINUOUS, split=True).endswith("; choose from torque > 0, torque < 0, grip > 0.5, grip < 0.5")


@pytest.mark.parametrize("words", [vocabulary(4), vocabulary(0, 4), vocabulary(2, 2), vocabulary(2, 0, CONTINUOUS)])
def test_the_free_form_shows_everything_and_leaves_conditions_to_the_model(words: Vocabulary) -> None:
    seen = experience(words)
    settings = PromptSettings(9_000)
    text = build_messages(words, seen, [], "free", settings)[1]["content"]
    assert conditions_for(words, seen, "free", settings) == ()
    assert all(f"- {feature.name} (" in text for feature in words.features)
    rule = reply_schema(words, 3)["properties"]["rules"]["items"]["properties"]
    example = text.split("another domain): ")[1]
    for field in rule:  # the example has a field of the schema at least, and never one that the schema lacks
        assert field in ("facts", "thresholds", "action", "action_op", "action_value", "why")
    assert '"facts"' in example or "thresholds" in rule
    assert '"thresholds"' in example or "facts" in rule


@pytest.mark.parametrize("actions", [DISCRETE, CONTINUOUS])
@pytest.mark.parametrize(("numbers", "categories"), [(2, 0), (0, 2), (2, 2)])
def test_the_rich_form_shows_an_example_of_its_own_form(numbers: int, categories: int, actions: ActionSet) -> None:
    words = vocabulary(numbers, categories, actions)
    settings = PromptSettings(9_000)
    text = build_messages(words, experience(words), [], "rich", settings)[1]["content"]
    assert conditions_for(words, experience(words), "rich", settings) == ()
    example = text.split("Form of the answer (example from another domain): ")[1].split("\n")[0]
    shown = json.loads(example.split(" (earlier")[0])["rules"][0]
    offered = reply_schema(words, 1, rich=True)["properties"]["rules"]["items"]["properties"]
    assert list(shown) == list(offered)
    assert ("earlier" in text) == (categories > 0)


def met(pairs: dict[tuple[int, int], tuple[int, float]]) -> tuple[Vocabulary, Experience]:
    """Two symbols: (code, code) -> (rows with each of two actions, what ``left`` gains there)."""
    words = vocabulary(categories=2)
    first, second, actions, returns = [], [], [], []
    for (one, other), (rows, gain) in pairs.items():
        first += [one] * 2 * rows
        second += [other] * 2 * rows
        actions += [0] * rows + [1] * rows
        returns += [gain] * rows + [0.0] * rows
    columns = {"object_0": np.array(first, np.float32), "object_1": np.array(second, np.float32)}
    gains = np.array(returns)
    return words, Experience(columns, np.array(actions), gains, gains, np.arange(len(gains)) // 20)


def test_a_prompt_about_symbols_lists_the_situations_that_occur_the_most_telling_first() -> None:
    words, seen = met({(0, 0): (500, 0.1), (1, 0): (50, 5.0), (2, 0): (100, 2.0), (2, 2): (5, 9.0)})
    for form in READY_MADE:
        text = build_messages(words, seen, [], form, PromptSettings(9_000))[1]["content"]
        block = text.split("Situations that occur:\n")[1].split("\n\n")[0].splitlines()
        assert block == [  # nothing of (1, 2), which never occurs, nor of (2, 2), of which ten rows say too little
            '- "object_0":"key","object_1":"nothing"',
            '- "object_0":"door","object_1":"nothing"',
            '- "object_0":"nothing","object_1":"nothing"',
        ]


def test_without_a_reward_the_rarest_situations_come_first_and_numbers_have_none() -> None:
    words, seen = met({(0, 0): (500, 0.0), (1, 0): (50, 0.0)})
    text = build_messages(words, seen, [], "names", PromptSettings(9_000))[1]["content"]
    assert text.index('"object_0":"key","object_1":"nothing"') < text.index('"object_0":"nothing","object_1":"nothing"')
    plain = vocabulary(numbers=3)
    assert "Situations" not in build_messages(plain, experience(plain), [], "evidence", PromptSettings(9_000))[1]["content"]
