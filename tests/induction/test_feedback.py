"""What a model hears of its earlier rules, and what becomes of a rule that it repeats after it was refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.wrappers import FlattenObservation

from sb3_nser import InductionRound, RuleInductionCallback
from sb3_nser.induction import InductionReply, InductionRequest, read_record
from sb3_nser.rules import Evidence, parse_rule
from scripted import Scripted, dqn, reply, threshold_rule

AGAINST = Evidence("refuted", -2.0, -3.0, -1.0, support=50, contrast=50, body_rate=0.5, head_rate=0.5, rows=200, episodes=10)


def prompts(script: Scripted) -> list[str]:
    return [request.messages[1]["content"] for request in script.requests]


class Refuting:
    """Refutes by hand whatever the first answer brought, so that a test knows which rules are refused."""

    def __init__(self) -> None:
        self.callback: Any = None
        self.keys: list[str] = []
        self.rounds: list[InductionRound] = []
        self.histories: dict[str, Any] = {}

    def __call__(self, news: InductionRound) -> None:
        self.rounds.append(news)
        book = self.callback.book
        if len(self.rounds) == 1:
            for entry in book.entries:
                book.judge(entry.key, AGAINST, None, news.step)
                self.keys.append(entry.key)
            self.histories = {key: book[key].history for key in self.keys}
        usable = {entry.key for entry in (*book.candidates(), *book.active())}
        assert not usable & set(self.keys)


def test_lift_firing_rate_and_repeats_are_told() -> None:
    script = Scripted(reply(threshold_rule("pole_angular_velocity", ">", 0.1, "push_right")))
    callback = RuleInductionCallback(inducer=script, every=500, blocking=True, repair=False)
    dqn().learn(2_000, callback=callback)
    first, second, third = prompts(script)[:3]
    assert "Rules tried so far" not in first
    told = [line for line in second.split("\n") if line.startswith("IF pole_angular_velocity > 0.1 THEN push_right: ")]
    assert len(told) == 1 and "lift" in told[0] and "fires in" in told[0] and "proposed" not in told[0]
    assert "; proposed 2 times" in third and len(callback.book) == 1


def test_names_that_nobody_knows_are_told_with_the_closest_one_and_survive_saving(tmp_path: Path) -> None:
    wrong = reply(
        threshold_rule("pole_angel", ">", 0.1, "push_right"),
        threshold_rule("pole_angle", ">", 0.1, "push_write"),
        threshold_rule("pole_angle", ">", 0.1, "push_right"),
    )
    script = Scripted(wrong)
    callback = RuleInductionCallback(inducer=script, every=500, max_calls=3, blocking=True)
    model = dqn().learn(1_700, callback=callback)
    for text in prompts(script)[1:]:
        assert text.count("refused: unknown feature 'pole_angel'; did you mean 'pole_angle'?") == 1
        assert text.count("refused: unknown action 'push_write'; did you mean 'push_right'?") == 1
    model.save_replay_buffer(tmp_path / "buffer")
    other = dqn()
    other.load_replay_buffer(tmp_path / "buffer")
    other.num_timesteps = model.num_timesteps
    later = Scripted(wrong)
    again = RuleInductionCallback(inducer=later, every=500, max_calls=9, blocking=True)
    other.learn(3_000, callback=again, reset_num_timesteps=False)  # the spacing has widened
    assert "refused: unknown feature 'pole_angel'" in prompts(later)[0]


def test_what_is_told_is_bounded() -> None:
    """A model that invents a new name each time does not fill the prompt."""

    class Inventive(Scripted):
        def propose(self, request: InductionRequest) -> InductionReply:
            self.requests.append(request)
            rules = [threshold_rule(f"{'x' * 60}{request.number}{k}", ">", 0, "push_right") for k in range(4)]
            return InductionReply(reply(*rules), "script")

    script = Inventive()
    dqn().learn(1_500, callback=RuleInductionCallback(inducer=script, every=100, max_calls=9, blocking=True))
    assert len(script.requests) > 2
    last = prompts(script)[-1]
    assert last.count("refused: ") == 4 and f"{script.requests[-1].number - 1}3" in last  # the newest


def test_a_refused_rule_that_is_repeated_is_dropped_and_told_first() -> None:
    bad = threshold_rule("pole_angular_velocity", ">", 0.1, "push_left")
    disguised = threshold_rule("pole_angular_velocity", ">", 0.10000000001, "push_left")
    fillers = [threshold_rule("cart_position", ">", k / 100, "push_right") for k in range(12)]
    script = Scripted(reply(bad), reply(disguised, *fillers[:3]), reply(bad, *fillers[3:6]), reply(bad, *fillers[6:9]), "{}")
    refuting = Refuting()
    callback = RuleInductionCallback(inducer=script, every=300, max_calls=5, blocking=True, on_round=refuting)
    refuting.callback = callback
    with pytest.warns(UserWarning, match="did not honour"):  # the script's end
        dqn().learn(3_000, callback=callback)
    entry = callback.book[refuting.keys[0]]
    assert entry.status in ("rejected", "pruned") and entry.times_proposed == 4
    assert entry.history == refuting.histories[entry.key]  # not even looked at again
    for number, news in enumerate(refuting.rounds[1:4], start=2):
        assert f"proposed {number} times" in next(v for text, v in news.verdicts.items() if parse_rule(text).key == entry.key)
    for number, text in enumerate(prompts(script)[1:5], start=1):
        told = [line for line in text.split("\n") if line.startswith(f"{entry.rule}: {entry.status}")]
        assert len(told) == 1 and ("proposed" in told[0]) == (number > 1)


@pytest.mark.llm
@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["CartPole-v1", "MiniGrid-DoorKey-5x5-v0"])
def test_with_a_real_model_a_refused_rule_is_no_candidate_again_in_three_rounds(
    env_id: str, ollama_host: str, tmp_path: Path
) -> None:
    """
    The rules of the first answer are refuted by hand; three rounds follow. Nothing here forbids the model to write a refused
    rule again, and on DoorKey the 0.5B model does. What is shown: it is told of the refusal in each of the three prompts;
    whatever it repeats is neither judged nor in force again; and the next prompt says how often it was proposed.
    """
    if "MiniGrid" in env_id:
        wrappers = pytest.importorskip("minigrid.wrappers")  # registers the environments, too
        env: Any = FlattenObservation(wrappers.ImgObsWrapper(gym.make(env_id)))
    else:
        env = gym.make(env_id)
    refuting, record = Refuting(), tmp_path / "induction.jsonl"
    callback = RuleInductionCallback(
        "qwen2.5-coder:0.5b",
        host=ollama_host,
        every=600,
        max_calls=4,
        rules_per_call=2,
        blocking=True,
        record=record,
        on_round=refuting,
    )
    refuting.callback = callback
    dqn(env).learn(6_000, callback=callback)
    entries = read_record(record)
    assert len(entries) == len(refuting.rounds) == 4 and refuting.keys and not callback.budget.failures
    for key in refuting.keys:
        entry = callback.book[key]
        assert entry.status in ("rejected", "pruned") and entry.history == refuting.histories[key]
        proposed = 1
        for call, news in zip(entries[1:], refuting.rounds[1:], strict=True):
            told = [line for line in call.messages[1]["content"].split("\n") if line.startswith(f"{entry.rule}: ")]
            assert len(told) == 1 and entry.status in told[0] and "lift -2" in told[0]
            assert ("proposed" in told[0]) == (proposed > 1)
            again = [verdict for text, verdict in news.verdicts.items() if parse_rule(text).key == key]
            proposed += len(again)
            assert all(verdict.startswith(entry.status) and "proposed" in verdict for verdict in again)
        assert entry.times_proposed == proposed
