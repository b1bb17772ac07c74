"""One run of the grid: variants of a seed begin alike, evaluation leaves training alone, every variant does what it says."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from scipy import stats
from stable_baselines3 import DQN

from fake_ollama import GOOD, FakeOllama
from sb3_nser import NSERReplayBuffer
from sb3_nser.errors import NSERError
from sb3_nser.study.analysis import pairing
from sb3_nser.study.environments import make_vec_env
from sb3_nser.study.evaluation import value_estimates
from sb3_nser.study.replays import SuccessCallback
from sb3_nser.study.training import build, run_cell
from sb3_nser.study.wrappers import RewardNoise
from study.tiny import TINY, loaded

CARTPOLE = TINY["environments"][0]


def results(**changes: Any) -> dict[str, dict[str, Any]]:
    return {cell.variant: json.loads(run_cell(cell)["result.json"]) for cell in loaded(**changes).cells}


def test_all_variants_of_a_seed_begin_alike() -> None:
    study = loaded(variants=["uniform", "per", "nser-handwritten", "per+success"], seeds=2, steps=100)
    found = {cell.key: json.loads(run_cell(cell)["result.json"]) for cell in study.cells}
    by_seed = {seed: [found[cell.key] for cell in study.cells if cell.seed == seed] for seed in (0, 1)}
    for runs in by_seed.values():
        assert len({run["initial"] for run in runs}) == 1  # the networks
        assert len({str(run["first_actions"][:20]) for run in runs}) == 1  # exploration, before anything is learnt
        assert len({str(run["evaluations"][0]["return"]) for run in runs}) == 1  # evaluation episodes
        assert len({run["final"] for run in runs}) == len(runs)  # and then they differ
    assert by_seed[0][0]["initial"] != by_seed[1][0]["initial"]
    assert pairing(study.cells, found).startswith("For every environment and seed, all variants began with the same")
    next(iter(found.values()))["initial"] = "another"
    assert pairing(study.cells, found).startswith(
        "NOT PAIRED: variants began with different networks or actions in CartPole-v1"
    )


def test_n_steps_of_the_algorithm_reach_the_buffers_of_all_variants(tmp_path: Path) -> None:
    algorithm = {**TINY["algorithm"], "hyperparameters": {**TINY["algorithm"]["hyperparameters"], "n_steps": 3, "gamma": 0.9}}
    one_step = {"name": "one step", "variant": "per", "buffer": {"n_steps": 1}}
    for cell in loaded(variants=["uniform", "per", one_step], algorithm=algorithm, seeds=1).cells:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # SB3 warns where it does not use its n_steps
            buffer = build(cell, tmp_path)[0].replay_buffer
        assert buffer.n_steps == (1 if cell.variant == "one step" else 3), cell.variant
        assert buffer.gamma == 0.9


def test_a_cell_is_reproducible_and_evaluation_leaves_it_alone() -> None:
    (cell,) = loaded(variants=["nser-tree"], steps=300).cells
    other = cell.model_copy(update={"evaluation": cell.evaluation.model_copy(update={"every": 30, "episodes": 4})})
    first, again, more = (json.loads(run_cell(one)["result.json"]) for one in (cell, pickle.loads(pickle.dumps(cell)), other))
    assert first["final"] == again["final"] == more["final"]
    assert [row["step"] for row in first["evaluations"]] == [0, 100, 200, 300]
    assert len(more["evaluations"]) == 11
    assert first["versions"]["torch"] == th.__version__ and first["versions"]["python"]


def test_every_variant_without_a_model_does_what_it_says() -> None:
    shuffled = {"variant": "nser-shuffled", "of": "nser-handwritten"}
    variants = ["uniform", "per", "lap", "nser-tree", "nser-handwritten", shuffled, "nser-random-rules", "per+success"]
    found = results(variants=variants, steps=300)
    last = {name: result["evaluations"][-1] for name, result in found.items()}
    assert "ess" not in last["uniform"]  # SB3's own buffer
    assert last["per"]["ess"] < 1.0 and last["per"]["mean_score"] == 0.0
    assert all(0.0 < last[name]["coverage"] < 0.65 for name in last if name != "uniform")
    for name in ("nser-handwritten", "nser-shuffled"):
        assert sorted(last[name]["rules_active"]) == sorted(CARTPOLE["rules"])
        assert last[name]["mean_score"] > 0.05 and last[name]["rule_fraction"] > 0.0
    assert [one["requested"] for one in found["nser-tree"]["rounds"]] == [100, 200]
    assert any(rule["origin"] == "random" for rule in found["nser-random-rules"]["rules"])
    assert last["per+success"]["mean_score"] > 0.05 and last["per+success"]["rules_active"] is None
    assert found["nser-handwritten"]["cost"]["llm_calls"] == 0


def test_a_live_model_and_its_record() -> None:
    with FakeOllama(lambda exchange: exchange.reply(GOOD)) as server:
        (cell,) = loaded(variants=[{"variant": "nser", "callback": {"host": server.host, "llm": "fake"}}], steps=250).cells
        files = run_cell(cell)
    result = json.loads(files["result.json"])
    assert result["cost"]["llm_calls"] == 2 and result["rules"]
    assert b"IF " in files["rules.yaml"]
    record = [json.loads(line) for line in files["induction.jsonl"].splitlines()]
    assert [entry["request_step"] for entry in record if entry["number"] >= 0] == [100, 200]


@pytest.mark.llm
@pytest.mark.slow
def test_a_real_model(ollama_host: str) -> None:
    from sb3_nser.local import DEFAULT_MODEL

    callback = {"host": ollama_host, "llm": DEFAULT_MODEL, "max_calls": 1}
    (cell,) = loaded(variants=[{"variant": "nser", "callback": callback}], steps=150).cells
    result = json.loads(run_cell(cell)["result.json"])
    (first,) = result["rounds"]
    assert not first["failure"] and result["cost"]["llm_seconds"] > 0 and result["cost"]["llm_tokens"] > 0


def test_a_record_answers_in_place_of_a_model(tmp_path: Any) -> None:
    with FakeOllama(lambda exchange: exchange.reply(GOOD)) as server:
        (live,) = loaded(variants=[{"variant": "nser", "callback": {"host": server.host, "llm": "fake"}}], steps=250).cells
        files = run_cell(live)
    (tmp_path / "seed0.jsonl").write_bytes(files["induction.jsonl"])
    variants = [{"variant": "nser", "replay_record": "seed{seed}.jsonl", "callback": {"llm": "fake"}}]
    (replayed,) = loaded(tmp_path, variants=variants, steps=250).cells
    assert json.loads(run_cell(replayed)["result.json"])["final"] == json.loads(files["result.json"])["final"]


class Payday(gym.Env[Any, Any]):
    """Episodes of three steps; the whole return comes at the end and follows a list."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    PAYS = (0.0, 0.0, 1.0, 0.0, 2.0, 1.0)

    def __init__(self) -> None:
        self.episode, self.at = -1, 0

    def reset(self, **kwargs: Any) -> Any:
        super().reset(**kwargs)
        self.episode, self.at = self.episode + 1, 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.at += 1
        over = self.at == 3
        reward = self.PAYS[self.episode % len(self.PAYS)] if over else 0.0
        return self.observation_space.sample(), reward, over, False, {}


def test_success_scores_are_the_share_of_recent_episodes_that_did_worse() -> None:
    model = DQN(
        "MlpPolicy", Payday(), replay_buffer_class=NSERReplayBuffer, replay_buffer_kwargs={"trace_decay": 0.0},
        learning_starts=5, buffer_size=100, seed=0, device="cpu",
    )  # fmt: skip
    model.learn(20, callback=SuccessCallback())
    # ranks at the end of each episode: 0 of 1, 0 of 2, 2 of 3, 0 of 4, 4 of 5, 3 of 6; the seventh has not ended
    expected = np.repeat([0.0, 0.0, 2 / 3, 0.0, 4 / 5, 3 / 6], 3)
    assert model.replay_buffer.scores[:18] == pytest.approx(expected)
    assert (model.replay_buffer.scores[18:20] == 0.0).all()


def test_value_estimates_are_those_of_the_greedy_action() -> None:
    model = DQN("MlpPolicy", "CartPole-v1", seed=0, device="cpu", buffer_size=10)
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    with th.no_grad():
        expected = model.q_net(th.as_tensor(observations)).numpy().max(axis=1)
    assert value_estimates(model, observations) == pytest.approx(expected)


@pytest.mark.parametrize("algorithm", ["QRDQN", "SAC", "TQC", "TD3", "CrossQ"])
def test_other_algorithms_and_parallel_environments(algorithm: str) -> None:
    env_id = "CartPole-v1" if algorithm == "QRDQN" else "Pendulum-v1"
    (cell,) = loaded(
        algorithm={
            "name": algorithm,
            "hyperparameters": {
                "learning_starts": 60,
                "buffer_size": 500,
                "train_freq": 10,
                "policy_kwargs": {"net_arch": [16]},
            },
        },
        environments=[{"id": env_id, "n_envs": 2}],
        variants=["per"],
        evaluation={"every": 100, "episodes": 1},
    ).cells
    described = cell.key
    result = json.loads(run_cell(cell)["result.json"])
    assert cell.key == described  # QR-DQN writes a class into its policy_kwargs
    assert [row["step"] for row in result["evaluations"]] == [0, 100, 200]
    assert all(np.isfinite(row["value"]) for row in result["evaluations"])
    assert result["evaluations"][-1]["updates"] > 0


def test_success_is_a_return_or_the_environments_own_word() -> None:
    wrappers = [{"TimeLimit": {"max_episode_steps": 7}}]
    environment = {"id": "FrozenLake-v1", "kwargs": {"is_slippery": False}, "success": 0, "wrappers": wrappers}
    found = results(environments=[environment], variants=["uniform"], steps=100, evaluation={"every": 100, "episodes": 3})
    row = found["uniform"]["evaluations"][-1]
    assert row["score"] == row["success"] and row["success"] in (0.0, 1.0) and row["length"] <= 7
    environment["success"] = "is_success"  # FrozenLake does not say it
    found = results(environments=[environment], variants=["uniform"], steps=100, evaluation={"every": 100, "episodes": 3})
    assert found["uniform"]["evaluations"][-1]["success"] == 0.0


def test_training_wrappers_leave_evaluation_alone() -> None:
    plain = {"id": "FrozenLake-v1", "kwargs": {"is_slippery": False}, "success": 0}
    noisy = {**plain, "training_wrappers": [{"RewardNoise": {"scale": 0.5}}]}
    (cell,) = loaded(environments=[plain], variants=["per"]).cells
    assert "training_wrappers" not in cell.env  # so that its key is what it was before there were any
    (cell,) = loaded(environments=[noisy], variants=["per"]).cells
    evaluated = json.loads(run_cell(cell)["result.json"])["evaluations"]
    assert all(row["return"] == row["success"] for row in evaluated)  # the lake's own rewards, 0 or 1
    trained = make_vec_env(cell.env, False, 0.99)
    trained.seed(3)
    trained.reset()
    rewards = np.concatenate([trained.step(np.zeros(trained.num_envs, dtype=int))[1] for _ in range(400)])
    assert stats.kstest(rewards / 0.5, "norm").pvalue > 0.01  # going left reaches no goal, so noise is all there is


def test_reward_noise_follows_the_seed_and_nothing_else_does() -> None:
    def walk(scale: float, seed: int) -> tuple[list[Any], list[float]]:
        env = RewardNoise(gym.make("FrozenLake-v1"), scale=scale)
        env.reset(seed=seed)
        steps = [env.step(2)[:2] for _ in range(4)]
        return [int(observation) for observation, _ in steps], [float(reward) for _, reward in steps]

    assert walk(0.1, 5) == walk(0.1, 5)
    assert walk(0.1, 5)[1] != walk(0.1, 6)[1]
    assert walk(0.1, 5)[0] == walk(0.0, 5)[0]
    with pytest.raises(NSERError, match=r"scale=-1 must be"):
        RewardNoise(gym.make("FrozenLake-v1"), scale=-1)
