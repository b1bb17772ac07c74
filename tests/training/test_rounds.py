"""Rounds of several questions, near misses repaired between answer and judgement, and the record of both."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sb3_nser import RuleInductionCallback
from sb3_nser.errors import ConfigurationError, NSERWarning
from sb3_nser.induction import InductionFailure, InductionReply, InductionRequest, read_record
from scripted import Scripted, dqn, fingerprint, reply, threshold_rule

NEAR_MISS = reply(threshold_rule("cart_velocity", ">", 0.1, "push_right"))
ANSWERS = (
    NEAR_MISS,
    reply(threshold_rule("pole_angular_velocity", ">", 0.1, "push_right")),
    reply(threshold_rule("pole_angular_velocity", ">", 0.1, "push_left")),
    reply(threshold_rule("pole_angle", "<", 0.0, "push_left")),
)


def run(inducer: Any, steps: int = 2_600, **settings: Any) -> tuple[RuleInductionCallback, Any, list[Any]]:
    rounds: list[Any] = []
    callback = RuleInductionCallback(
        inducer=inducer, every=1_000, first=2_000, blocking=True, on_round=rounds.append, **settings
    )
    model = dqn(learning_starts=3_000).learn(steps, callback=callback)
    return callback, model, rounds


def test_the_answers_of_a_round_are_judged_together(tmp_path: Path) -> None:
    inducer, record = Scripted(*ANSWERS), tmp_path / "induction.jsonl"
    callback, _, rounds = run(inducer, calls_per_round=3, repair=False, record=record)
    assert [request.number for request in inducer.requests] == [0, 1, 2]
    assert len({request.step for request in inducer.requests}) == 1
    (news,) = rounds
    assert len(news.verdicts) == 3 and "not judged yet" not in str(news.verdicts)
    assert len(callback.book) == 3 and callback.budget.calls == 3
    first, second, third = read_record(record)
    assert set(first.verdicts.values()) == set(second.verdicts.values()) == {"to be judged when the round is complete"}
    assert third.verdicts == news.verdicts


def test_a_failed_call_does_not_cost_the_round(recwarn: Any) -> None:
    class Shaky(Scripted):
        def propose(self, request: InductionRequest) -> InductionReply:
            if request.number == 1:
                raise InductionFailure("server", "the server stumbled.")
            return super().propose(request)

    callback, _, (news,) = run(Shaky(*ANSWERS), calls_per_round=3, repair=False)
    assert news.failure == "" and len(news.verdicts) == 2
    assert callback.budget.failures == 1 and "stumbled" in str([w.message for w in recwarn])


def test_the_limit_of_calls_ends_a_round_early() -> None:
    callback, _, (news,) = run(Scripted(*ANSWERS), calls_per_round=3, max_calls=2, repair=False)
    assert callback.budget.calls == 2 and len(news.verdicts) == 2


def test_a_near_miss_is_repaired_and_its_lineage_told(tmp_path: Path) -> None:
    record, file = tmp_path / "induction.jsonl", tmp_path / "rules.yaml"
    callback, _, (news,) = run(Scripted(NEAR_MISS), record=record, save_rules=file)
    repaired = [entry for entry in callback.book.entries if entry.lineage]
    assert len(repaired) == 1 and repaired[0].rule.source == "repair"
    assert repaired[0].rule.head.action == "push_right"
    assert any(item.feature == "cart_velocity" for item in repaired[0].rule.literals)
    assert repaired[0].lineage[0] == "llm: IF cart_velocity > 0.1 THEN push_right"
    verdict = news.verdicts[str(repaired[0].rule)]
    assert "repaired from 'IF cart_velocity > 0.1 THEN push_right'" in verdict
    assert read_record(record)[0].verdicts == news.verdicts
    assert "lineage:" in file.read_text()
    assert any("repaired from" in line for line in callback.book.feedback_lines())


def test_a_replayed_record_makes_the_same_rounds_and_repairs(tmp_path: Path) -> None:
    record = tmp_path / "induction.jsonl"
    live, model, told = run(Scripted(*ANSWERS), 3_500, calls_per_round=2, record=record)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NSERWarning)
        callback = RuleInductionCallback(
            inducer=Scripted("nobody asks"), every=1_000, first=2_000, replay_record=record, calls_per_round=2
        )
        again = dqn(learning_starts=3_000).learn(3_500, callback=callback)
    assert len(told) == 2 and callback.book == live.book
    assert np.array_equal(fingerprint(model), fingerprint(again))


def test_nothing_is_repaired_where_it_is_not_asked_for() -> None:
    callback, _, _ = run(Scripted(NEAR_MISS), repair=False)
    assert len(callback.book) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"calls_per_round": 0}, "calls_per_round=0"),
        ({"calls_per_round": 9}, "calls_per_round=9"),
        ({"repair": "maybe"}, "repair='maybe'"),
        ({"repair_beam": 0}, "repair_beam=0"),
        ({"repair_beams": 4}, "repair_beam"),
    ],
)
def test_wrong_settings_are_told_at_once(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        RuleInductionCallback(inducer="random", **settings)


def test_inducers_that_read_no_prompt_are_not_asked_to_translate_hints() -> None:
    with pytest.warns(NSERWarning, match="hints are not used: decision trees"):
        callback = RuleInductionCallback(
            inducer="tree", hints="push right when the pole leans right", every=500, blocking=True
        )
    asked: list[str] = []
    propose = callback.inducer.propose

    def spy(request: InductionRequest) -> InductionReply:
        asked.append(request.form)
        return propose(request)

    callback.inducer.propose = spy  # type: ignore[method-assign]
    dqn().learn(1_100, callback=callback)
    assert asked and "hint" not in asked


def test_prompts_and_inducers_see_nothing_of_the_episodes_that_judge() -> None:
    """What is counted in a prompt is copied into rules: counted on held-out episodes, it would confirm itself."""
    inducer = Scripted(NEAR_MISS)
    callback, _, _ = run(inducer)
    learnt_from, evidence = inducer.requests[0].experience, callback.book.entries[0].evidence
    assert learnt_from is not None and evidence is not None and evidence.rows > 300
    assert 1_900 < len(learnt_from) + evidence.rows <= inducer.requests[0].step  # every row on one side only
    prompt = inducer.requests[0].messages[1]["content"]
    counts = [int(count) for count in re.findall(r"in (\d+) cases", prompt)]
    assert counts and max(counts) < len(learnt_from)
