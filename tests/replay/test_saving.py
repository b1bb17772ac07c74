"""What a saved buffer holds, and that a loaded one goes on as if nothing had happened."""

import copy
import pickle
import subprocess
import sys
import threading
import tracemalloc

import cloudpickle
import numpy as np
import pytest
import torch as th
from sb3_contrib import QRDQN, TQC, CrossQ
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, CheckpointCallback, EvalCallback

from sb3_nser.errors import ConfigurationError, NSERError
from sb3_nser.replay import LearnerLink, NSERReplayBuffer

from .helpers import fill, make


class Scorer:
    """Holds something that cannot be pickled, as a client of a language model does."""

    def __init__(self):
        self.lock = threading.RLock()

    def __call__(self, transitions):
        return (transitions.observations[:, 0] % 7 == 0).astype(float)


def used_buffer():
    buffer = fill(make(100, n_envs=2, rule_warmup=50), 70, episode=11)
    buffer.set_scorer(Scorer(), {"rules": ["x > 1"]})
    buffer.set_progress(0.4)
    rng = np.random.default_rng(0)
    for _ in range(5):
        buffer.sample(16)
        buffer.update_priorities(buffer.last_sample.indices, rng.exponential(size=16), buffer.last_sample.generations)
    fill(buffer, 3, start=70)
    buffer.stale_writes = 3
    return buffer


def draws(buffer, n=1000):
    buffer.mark_linked()
    return np.array([buffer.sample(1) and buffer.last_sample.indices[0] for _ in range(n)])


@pytest.mark.parametrize("through", [pickle, cloudpickle])
def test_c17_a_loaded_buffer_draws_the_same(through):
    buffer = used_buffer()
    buffer.probabilities()  # scores what is new
    again = through.loads(through.dumps(buffer))
    assert again.rule_state == {"rules": ["x > 1"]} and again.last_batch is None
    for name in ("pos", "full", "progress", "beta_now", "stale_writes", "max_td_error", "n_transitions", "options"):
        assert getattr(again, name) == getattr(buffer, name), name
    np.testing.assert_array_equal(again.scores, buffer.scores)
    np.testing.assert_array_equal(again.td_errors, buffer.td_errors)
    np.testing.assert_array_equal(draws(again), draws(buffer))
    again.set_scorer(Scorer(), again.rule_state)
    np.testing.assert_array_equal(draws(again), draws(buffer))


def test_c17_in_another_process(tmp_path):
    buffer = used_buffer()
    buffer.set_scorer(None)
    buffer.set_scores(np.arange(30), np.linspace(0, 1, 30))
    (tmp_path / "buffer.pkl").write_bytes(pickle.dumps(buffer))
    code = (
        "import pickle, sys, numpy as np; b = pickle.load(open(sys.argv[1], 'rb'))\n"
        "b.mark_linked(); print(*[int((b.sample(1), b.last_sample.indices[0])[1]) for _ in range(1000)])"
    )
    out = subprocess.run([sys.executable, "-c", code, tmp_path / "buffer.pkl"], check=True, capture_output=True, text=True,
                         env={"SB3_NSER_NO_NUMBA": "1", "PATH": ""}).stdout  # fmt: skip
    np.testing.assert_array_equal(np.array(out.split(), dtype=int), draws(buffer))


def test_c16_a_saved_buffer_holds_no_scorer_and_a_copy_is_independent():
    buffer = used_buffer()
    buffer.sample(8)
    state = buffer.__getstate__()
    assert "_scorer" not in state and "last_batch" not in state and state["state_version"] == 3
    twin = copy.deepcopy(buffer)
    before = buffer.probabilities()
    twin.update_priorities([0], [1e6])
    twin.set_scorer(None)
    np.testing.assert_array_equal(buffer.probabilities(), before)


def test_the_state_version_is_checked():
    state = make().__getstate__()
    for version in (0, 99, None):
        with pytest.raises(NSERError, match=f"state version {version}"):
            NSERReplayBuffer.__new__(NSERReplayBuffer).__setstate__({**state, "state_version": version})


def test_c17_a_file_saved_on_a_gpu_loads_without_one(tmp_path):
    model = make_dqn()
    model.learn(40)
    model.replay_buffer.sample(8)
    model.replay_buffer.device = th.device("cuda")  # all that a buffer keeps of a GPU
    model.save_replay_buffer(tmp_path / "buffer")
    holds_tensors = [name for name, value in model.replay_buffer.__getstate__().items() if isinstance(value, th.Tensor)]
    assert holds_tensors == []
    again = make_dqn()
    again.load_replay_buffer(tmp_path / "buffer")
    again.replay_buffer.mark_linked()
    assert again.replay_buffer.sample(8).observations.device.type == "cpu"


class Linked(BaseCallback):
    """The least a callback must do."""

    def _on_training_start(self):
        self.link = LearnerLink(self.model)
        self.link.install()
        self.model.replay_buffer.set_scorer(Scorer(), {"rules": []})

    def _on_step(self):
        self.model.replay_buffer.set_progress(1 - self.model._current_progress_remaining)
        return True

    def _on_training_end(self):
        self.link.remove()


def make_dqn(**kwargs):
    return DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=NSERReplayBuffer, buffer_size=300, learning_starts=50, seed=0,
               device="cpu", policy_kwargs={"net_arch": [8]}, **kwargs)  # fmt: skip


def test_c16_all_ways_of_saving_work_while_training(tmp_path):
    model = make_dqn()
    env = make_dqn().get_env()
    callbacks = CallbackList([
        Linked(),
        CheckpointCallback(100, str(tmp_path), save_replay_buffer=True),
        EvalCallback(env, n_eval_episodes=1, eval_freq=100, best_model_save_path=str(tmp_path), verbose=0, warn=False),
    ])  # fmt: skip
    model.learn(250, callback=callbacks)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    for name in ("model", "best_model", "rl_model_200_steps"):
        loaded = DQN.load(tmp_path / name, env=env)
    loaded.load_replay_buffer(tmp_path / "rl_model_replay_buffer_200_steps.pkl")
    loaded.load_replay_buffer(tmp_path / "buffer")
    assert loaded.replay_buffer.rule_state == {"rules": []}
    np.testing.assert_array_equal(loaded.replay_buffer.td_errors, model.replay_buffer.td_errors)
    loaded.learn(50, callback=Linked(), reset_num_timesteps=False)
    assert loaded.replay_buffer.n_transitions == 300


def test_c17_a_foreign_buffer_is_found_at_training_start(tmp_path):
    plain = DQN("MlpPolicy", "CartPole-v1", buffer_size=300, learning_starts=50, seed=0, device="cpu")
    plain.learn(20)
    plain.save_replay_buffer(tmp_path / "plain")
    model = make_dqn()
    model.load_replay_buffer(tmp_path / "plain")
    assert type(model.replay_buffer) is ReplayBuffer
    with pytest.raises(ConfigurationError, match=r"ReplayBuffer, not an NSERReplayBuffer.*replay_buffer_class="):
        model.learn(20, callback=Linked())


def test_runs_with_a_seed_reproduce():
    runs = []
    for _ in range(2):
        model = make_dqn()
        model.learn(200, callback=Linked())
        runs.append((model.replay_buffer.td_errors, model.replay_buffer.last_sample.indices))
    for one, other in zip(*runs, strict=True):
        np.testing.assert_array_equal(one, other)


def test_exploration_is_the_same_with_and_without_it():
    # until learning starts, a run with our buffer sees the same random numbers as one with SB3's
    ours, theirs = make_dqn(), make_dqn()
    theirs = DQN("MlpPolicy", "CartPole-v1", buffer_size=300, learning_starts=50, seed=0, device="cpu")
    ours.learn(50, callback=Linked())
    theirs.learn(50)
    np.testing.assert_array_equal(ours.replay_buffer.observations, theirs.replay_buffer.observations)


@pytest.mark.parametrize("algorithm", [DQN, QRDQN, SAC, TD3, DDPG, TQC, CrossQ])
def test_c05_the_tuple_works_in_every_off_policy_algorithm(algorithm):
    env = "CartPole-v1" if algorithm in (DQN, QRDQN) else "Pendulum-v1"
    model = algorithm("MlpPolicy", env, replay_buffer_class=NSERReplayBuffer, replay_buffer_kwargs={"alpha": 0.0},
                      buffer_size=100, learning_starts=20, batch_size=16, device="cpu", seed=0)  # fmt: skip
    model.learn(40)
    assert model._n_updates > 0


def test_c35_saving_copies_no_array(tmp_path):
    buffer = fill(make(200_000), 10)
    size = buffer._store.nbytes + buffer.observations.nbytes + buffer.next_observations.nbytes
    tracemalloc.start()
    with open(tmp_path / "buffer.pkl", "wb") as file:
        pickle.dump(buffer, file, protocol=pickle.HIGHEST_PROTOCOL)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.5 * size
