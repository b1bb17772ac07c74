"""Rules with quantifiers in a training run: loaded from a file, judged, and scored as a slow reference scores them."""

from __future__ import annotations

import gymnasium as gym
import minigrid  # noqa: F401  (registers the environments)
import numpy as np
import pytest
from minigrid.wrappers import ImgObsWrapper
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env

from sb3_nser import NSERReplayBuffer, RuleInductionCallback
from sb3_nser.logic import Dataset, build_bank, judge, scorer
from sb3_nser.rules import Entry, parse_rule
from sb3_nser.vocabulary.features import ActionSet, Feature, Vocabulary

CARTPOLE = """
rules:
- {rule: "IF exists within 5 steps (pole_angle > 0.02) AND pole_angle between -0.02 and 0.02 THEN push_left", pinned: true}
- {rule: "IF forall earlier (cart_position about 0 OR pole_angle > 0) THEN push_right", pinned: true}
"""


def file(tmp_path, text):  # type: ignore[no-untyped-def]
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("n_envs", [1, 2])
def test_cartpole_scores_are_those_of_whole_episodes(tmp_path, n_envs: int) -> None:  # type: ignore[no-untyped-def]
    """The buffer scores rows in the order in which they arrive; here each episode is scored at once."""
    model = DQN(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=n_envs, seed=1),
        learning_starts=50,
        train_freq=1,
        seed=0,
        device="cpu",
        policy_kwargs={"net_arch": [16]},
        replay_buffer_class=NSERReplayBuffer,
        replay_buffer_kwargs={"trace_decay": 0.0},
        buffer_size=2000,
    )
    callback = RuleInductionCallback(max_calls=0, every=10_000, rules_file=file(tmp_path, CARTPOLE))
    model.learn(700, callback=callback)
    buffer = model.replay_buffer
    assert len(callback.book.active()) == 2
    while not buffer.scores_complete:
        buffer.sample(2)
    expected = np.zeros(buffer.n_transitions)
    bank = build_bank(callback.book.active(), callback.vocabulary)
    score = scorer(bank, callback.vocabulary)
    episodes = buffer.complete_episodes()
    assert len(episodes) > 15
    waiting = buffer._scored_until * n_envs  # the newest rows may not be scored yet
    for episode in episodes:
        rows = buffer.transitions(episode.indices)
        ids = np.zeros(len(episode.indices))
        expected[episode.indices] = score(rows.observations, rows.next_observations, rows.actions, ids)
    known = np.concatenate([episode.indices for episode in episodes])
    known = known[known < waiting]
    np.testing.assert_allclose(buffer.scores[known], expected[known], atol=1e-6)
    assert 0.02 < (expected[known] > 0.2).mean() < 0.98


def test_doorkey_rules_about_the_past_and_about_objects(tmp_path) -> None:  # type: ignore[no-untyped-def]
    text = """
rules:
- rule: IF exists earlier (carrying is key) AND front_object in {closed_door, locked_door, open_door} THEN toggle
  pinned: true
- rule: IF exists object (kind is key AND distance < 2.5) AND carrying is nothing THEN pickup
  pinned: true
"""
    env = ImgObsWrapper(gym.make("MiniGrid-DoorKey-5x5-v0", max_steps=60))
    model = DQN(
        "MlpPolicy", env, learning_starts=100, train_freq=4, seed=0, device="cpu", buffer_size=2000, exploration_fraction=1.0,
        policy_kwargs={"net_arch": [16]}, replay_buffer_class=NSERReplayBuffer, replay_buffer_kwargs={"trace_decay": 0.0},
    )  # fmt: skip
    callback = RuleInductionCallback(max_calls=0, every=400, rules_file=file(tmp_path, text), save_rules=tmp_path / "out.yaml")
    model.learn(900, callback=callback)
    judged = [entry for entry in callback.book.active() if entry.evidence is not None]
    assert len(judged) == 2 and all(entry.evidence.rows > 0 for entry in judged)
    assert "exists earlier (carrying is key)" in (tmp_path / "out.yaml").read_text()
    buffer, vocabulary = model.replay_buffer, callback.vocabulary
    done = min(buffer._scored_until, buffer.size())
    rows = buffer.transitions(np.arange(done))
    named = vocabulary.evaluate(rows.observations, None, ["carrying", "object:", "object:kind", "object:distance"])
    key = vocabulary.objects[0].features[0].code("key")
    seen = (named["object:"] > 0) & (named["object:kind"] == key) & (named["object:distance"] < 2.5)
    carried, near = (named["carrying"] == 1).numpy(), seen.any(1).numpy()
    action = rows.actions[:, 0]
    scores, held = buffer.scores, False
    front = vocabulary.evaluate(rows.observations, None, ["front_object"])["front_object"].numpy()
    doors = [vocabulary["front_object"].code(f"{state}_door") for state in ("closed", "locked", "open")]
    for at in range(done):
        toggles = held and action[at] == 5 and front[at] in doors
        picks = near[at] and not carried[at] and action[at] == 3
        assert (scores[at] > 0.2) == bool(toggles or picks), at
        held = (held or bool(carried[at])) and rows.dones[at] == 0


def test_evidence_counts_what_happened_earlier() -> None:
    """Opening pays only after the bell rang at an earlier step; only the rule that says so is supported."""
    features = (
        Feature("bell", "boolean", "whether the bell rings", lambda now, later: now[:, 0]),
        Feature("light", "number", "brightness", lambda now, later: now[:, 1]),
    )
    vocabulary = Vocabulary("bell", "open after the bell", features, ActionSet(("wait", "open")))
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(200), 20)
    rows = np.stack([rng.random(4000) < 0.05, rng.normal(size=4000)], axis=1).astype(np.float32)
    actions = rng.integers(0, 2, 4000)
    rang = np.array([rows[at - at % 20 : at, 0].any() for at in range(4000)])
    returns = np.where(actions == 1, np.where(rang, 1.0, -1.0), 0.0) + rng.normal(size=4000)
    texts = (
        "IF exists earlier (bell is yes) THEN open",
        "IF exists earlier (bell is yes) THEN wait",
        "IF forall earlier (bell is no) THEN wait",
        "IF forall earlier (bell is no) THEN open",
        "IF exists within 20 steps (light > 5) THEN open",
    )
    # rows of two episodes alternate, as two environments would give them
    order = np.arange(4000).reshape(100, 2, 20).transpose(0, 2, 1).ravel()
    columns = vocabulary.evaluate(rows[order])
    dataset = Dataset.build(columns, actions[order], returns[order], ids[order])
    entries = [Entry(parse_rule(text)) for text in texts]
    verdicts = [item.evidence.verdict for item in judge(entries, vocabulary, dataset)]
    assert verdicts == ["supported", "refuted", "supported", "refuted", "never_fires"]
