"""Rules without a language model: decision trees that find what pays, and random rules as a control."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from stable_baselines3 import SAC

from logged import CONTINUOUS, DISCRETE, experience, question
from sb3_nser import RandomInducer, RuleInductionCallback, TreeInducer
from sb3_nser.errors import ConfigurationError
from sb3_nser.induction import InductionFailure, InductionRequest, RuleInducer, read_record
from sb3_nser.induction.episodes import conditions
from sb3_nser.logic import Dataset, judge
from sb3_nser.rules import Entry, Rule, problems
from sb3_nser.rules.schema import conforms, reply_schema
from scripted import dqn, fingerprint


def proposed(inducer: RuleInducer, request: InductionRequest) -> list[Rule]:
    rules = inducer.propose(request).rules
    assert rules is not None
    return list(rules)


def literal(rule: Rule, feature: str) -> list[tuple[str, float]]:
    return [(item.op, float(item.value)) for item in rule.literals if item.feature == feature]


# ---------------------------------------------------------------- trees


def test_trees_find_which_action_pays_where() -> None:
    rules = proposed(TreeInducer(), question(DISCRETE, experience(DISCRETE)))
    best = {str(rule.head): rule for rule in reversed(rules)}  # the surest of each head
    assert any("ahead is door" in str(rule) and str(rule.head) == "open" for rule in rules)
    (op, at), *_ = literal(best["right"], "heat")
    assert op == ">" and at == pytest.approx(0.2, abs=0.05)
    (op, at), *_ = literal(best["left"], "heat")
    assert op == "<" and at == pytest.approx(0.2, abs=0.05)


def test_continuous_heads_compare_a_dimension_with_a_number() -> None:
    rules = proposed(TreeInducer(), question(CONTINUOUS, experience(CONTINUOUS)))
    heads = Counter(str(rule.head) for rule in rules[:2])
    assert heads == {"force > 0": 1, "force < 0": 1}
    for rule in rules[:2]:
        (op, at), *_ = literal(rule, "heat")
        assert op == str(rule.head).split()[1] and at == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize("words", [DISCRETE, CONTINUOUS])
def test_on_other_episodes_its_rules_hold_and_more_often_than_random_ones(words) -> None:  # type: ignore[no-untyped-def]
    learnt_from, other = experience(words, seed=1), experience(words, seed=2)

    def supported(inducer: RuleInducer) -> float:
        rules = proposed(inducer, question(words, learnt_from, most=4))
        judging = Dataset.build(other.tensors(), other.actions, other.returns, other.episode_ids)
        judgements = judge([Entry(rule) for rule in rules], words, judging)
        return float(np.mean([judgement.evidence.verdict == "supported" for judgement in judgements]))

    assert supported(TreeInducer()) > 0.6
    assert np.mean([supported(RandomInducer(seed=seed)) for seed in range(5)]) < 0.5


@pytest.mark.parametrize("words", [DISCRETE, CONTINUOUS])
def test_rules_are_bounded_valid_different_and_marked(words) -> None:  # type: ignore[no-untyped-def]
    for most, literals in ((1, 1), (3, 2), (8, 8)):
        rules = proposed(TreeInducer(max_literals=literals), question(words, experience(words), most=most))
        assert 1 <= len(rules) <= most and len({rule.key for rule in rules}) == len(rules)
        for rule in rules:
            assert len(rule.literals) <= literals and problems(rule, words) == [] and rule.source == "tree"
            assert not {item.feature for item in rule.literals} & {"aftermath", "constant"}


def test_the_seed_decides_and_later_calls_bring_other_rules() -> None:
    seen = experience(DISCRETE)
    ask = [question(DISCRETE, seen, number) for number in range(4)]
    once = [proposed(TreeInducer(seed=3), request) for request in ask]
    assert once == [proposed(TreeInducer(seed=3), request) for request in ask]
    keys = [{rule.key for rule in rules} for rules in once]
    assert len(set.union(*keys)) > len(keys[0])


def test_where_no_action_pays_few_rules_come() -> None:
    """Returns that have nothing to do with what was done: a node passes three standard errors now and then, not often."""
    counts = []
    for seed in range(8):
        seen = experience(DISCRETE, seed=seed)
        noise = np.random.default_rng(seed).normal(size=len(seen))
        counts.append(len(proposed(TreeInducer(), question(DISCRETE, replace(seen, returns=noise), most=8))))
    assert np.mean(counts) < 3


def test_without_reward_episodes_or_varying_features_there_is_no_rule() -> None:
    silent = experience(DISCRETE, rewarded=False)
    nothing = experience(DISCRETE, episodes=0)
    seen = experience(DISCRETE)
    constant = replace(seen, columns={name: np.zeros_like(column) for name, column in seen.columns.items()})
    one_action = replace(seen, actions=np.zeros_like(seen.actions))
    for case in (silent, nothing, constant, one_action):
        assert proposed(TreeInducer(), question(DISCRETE, case)) == []


def test_wild_values_do_no_harm() -> None:
    seen = experience(DISCRETE)
    heat = seen.columns["heat"].copy()
    heat[::50], heat[1::50], heat[2::50] = np.nan, np.inf, -3e38
    rules = proposed(TreeInducer(), question(DISCRETE, replace(seen, columns={**seen.columns, "heat": heat})))
    assert rules and all(np.isfinite(at) for rule in rules for _, at in literal(rule, "heat"))


@pytest.mark.parametrize(
    "settings", [{"max_literals": 0}, {"max_literals": 9}, {"min_rows": 1}, {"seed": -1}, {"min_rows": "few"}]
)
def test_wrong_settings_of_the_tree_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        TreeInducer(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "module"), [("tree", "sklearn"), ("openai", "openai")])
def test_a_missing_package_is_named_before_training_with_its_extra(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == module else find(name, *rest))
    model = dqn()
    for require_llm in (True, False):
        with pytest.raises(ConfigurationError, match=rf"sb3-nser\[{name}\]"):
            model.learn(500, callback=RuleInductionCallback(inducer=name, require_llm=require_llm))
    assert model.num_timesteps == 0


def test_importing_needs_neither_package() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = sys.modules['openai'] = None; import sb3_nser; sb3_nser.RuleInductionCallback; "
    )
    code += "sb3_nser.TreeInducer(); sb3_nser.OpenAIInducer('m')"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


# ---------------------------------------------------------------- random rules


@pytest.mark.parametrize("words", [DISCRETE, CONTINUOUS])
@pytest.mark.parametrize("draw", ["schema", "vocabulary"])
def test_random_rules_come_in_equal_number_and_are_valid(words, draw: str) -> None:  # type: ignore[no-untyped-def]
    seen = experience(words)
    for most in (1, 4, 8):
        rules = proposed(RandomInducer(draw), question(words, seen, most=most))
        assert len(rules) == most == len({rule.key for rule in rules})
        assert all(problems(rule, words) == [] and rule.source == "random" for rule in rules)


def test_random_rules_are_drawn_from_what_the_call_offers() -> None:
    seen = experience(DISCRETE)
    offered = [text for group in conditions(DISCRETE["heat"], seen.columns["heat"]) for text in group]
    for number in range(20):
        rules = proposed(RandomInducer(), question(DISCRETE, seen, number, most=3, conditions=offered))
        assert len(rules) == 3
        for rule in rules:
            assert {item.feature for item in rule.literals} == {"heat"}
            assert {f"{item.feature} {item.op} {float(item.value):g}" for item in rule.literals} <= set(offered)


def test_thresholds_are_uniform_over_what_was_observed_and_actions_equally_likely() -> None:
    seen = experience(DISCRETE)
    rules = [r for k in range(100) for r in proposed(RandomInducer("vocabulary"), question(DISCRETE, seen, k, most=8))]
    low, high = np.quantile(seen.columns["heat"], (0.05, 0.95))
    thresholds = [at for rule in rules for _, at in literal(rule, "heat")]
    assert len(thresholds) > 100 and stats.kstest(thresholds, stats.uniform(low, high - low).cdf).pvalue > 1e-3
    heads = Counter(str(rule.head) for rule in rules)
    assert stats.chisquare(list(heads.values())).pvalue > 1e-3 and len(heads) == 3


def test_random_rules_follow_their_seed() -> None:
    request = question(DISCRETE, experience(DISCRETE))
    assert proposed(RandomInducer(seed=1), request) == proposed(RandomInducer(seed=1), request)
    assert proposed(RandomInducer(seed=1), request) != proposed(RandomInducer(seed=2), request)
    with pytest.raises(ConfigurationError, match=r"Did you mean 'schema'"):
        RandomInducer("shema")


def test_before_any_episode_thresholds_come_from_the_features_ranges() -> None:
    rules = [
        r for k in range(20) for r in proposed(RandomInducer("vocabulary"), question(DISCRETE, experience(DISCRETE, 0), k))
    ]
    assert rules and all(-1 <= at <= 1 for rule in rules for _, at in literal(rule, "heat"))


# ---------------------------------------------------------------- both, in training


@pytest.mark.parametrize("inducer", [TreeInducer(), RandomInducer()])
def test_a_request_made_by_hand_is_refused_in_words(inducer: RuleInducer) -> None:
    bare = InductionRequest(0, 0, (), reply_schema(DISCRETE, 2), 2, "free")
    with pytest.raises(InductionFailure, match="vocabulary"):
        inducer.propose(bare)


@pytest.mark.parametrize("name", ["tree", "random"])
def test_an_inducer_is_chosen_by_name_and_a_record_gives_the_same_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "induction.jsonl"
    settings = {"every": 800, "blocking": True}
    live = RuleInductionCallback(inducer=name, record=record, **settings)
    first = dqn().learn(2_500, callback=live)
    assert live.budget.calls == 3 and live.budget.failures == 0 and len(live.book) > 2
    assert {entry.rule.source for entry in live.book.entries} <= {name, "repair"}
    replayed = RuleInductionCallback(inducer=name, replay_record=record, **settings)
    find = importlib.util.find_spec  # a record replays on a machine without the package
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "sklearn" else find(name, *rest))
    second = dqn().learn(2_500, callback=replayed)
    assert replayed.book == live.book and np.array_equal(fingerprint(first), fingerprint(second))
    entries = read_record(record)
    assert all(entry.rules and str(entry.rules[0]) in (entry.reply or "") for entry in entries)


def test_trees_work_with_continuous_actions_in_training() -> None:
    callback = RuleInductionCallback(inducer="tree", every=1_000, blocking=True)
    dqn("Pendulum-v1", SAC, train_freq=20).learn(2_100, callback=callback)
    assert len(callback.book) >= 1
    assert all(entry.rule.head.op in (">", "<") for entry in callback.book.entries)


def test_the_judging_episodes_are_not_shown() -> None:
    """The share of rows that an inducer is given is the fitting share; the rest decides."""
    shown: list[int] = []

    class Watching(TreeInducer):
        def propose(self, request):  # type: ignore[no-untyped-def]
            shown.append(len(np.unique(request.experience.episode_ids)))
            return super().propose(request)

    callback = RuleInductionCallback(inducer=Watching(), every=2_000, blocking=True)
    model = dqn().learn(2_000, callback=callback)
    episodes = len(model.replay_buffer.complete_episodes())
    assert shown == [episodes - round(0.3 * episodes)]


def test_an_unknown_name_has_a_suggestion() -> None:
    with pytest.raises(ConfigurationError, match=r"inducer='three' must be one of ollama, openai, tree, random.*'tree'"):
        RuleInductionCallback(inducer="three")
    with pytest.raises(ConfigurationError, match=r"write inducer='tree'"):
        RuleInductionCallback(llm="tree")
    with pytest.raises(ConfigurationError, match=r"inducer='' must be one of"):
        RuleInductionCallback(inducer="")
    with pytest.raises(ConfigurationError, match=r"make an object of it: TreeInducer\("):
        RuleInductionCallback(inducer=TreeInducer)  # type: ignore[arg-type]


def test_conforms_knows_what_the_schemas_say() -> None:
    schema = reply_schema(DISCRETE, 2)
    good = {"thresholds": [{"feature": "heat", "op": ">", "value": 1}], "facts": [], "action": "left", "why": ""}
    assert conforms({"rules": [good, good]}, schema)
    for wrong in (
        {**good, "action": "jump"},
        {**good, "extra": 1},
        {key: value for key, value in good.items() if key != "why"},
        {**good, "thresholds": [{"feature": "heat", "op": ">", "value": "hot"}]},
        {**good, "facts": ["ahead is door"] * 3},
    ):
        assert not conforms({"rules": [good, wrong]}, schema), json.dumps(wrong)
    assert not conforms({"rules": [good]}, schema) and not conforms([], schema)
