"""A run in two halves. As a script it loads what the first half saved and does the second half in a process of its own."""

import pickle
import random
import sys
from pathlib import Path

import cloudpickle
import numpy as np
import torch as th
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv

from sb3_nser import NSERHerReplayBuffer, NSERReplayBuffer, PriorityCallback, RuleInductionCallback

RULE = 'rules:\n- rule: "IF pole_angle > 0.02 THEN push_right"\n  pinned: true\n'
CASES = ("rules", "continuous", "goals")


def build(case):
    common = dict(learning_starts=100, buffer_size=260, batch_size=16, train_freq=2, seed=3, device="cpu",
                  policy_kwargs={"net_arch": [8]})  # fmt: skip
    if case == "rules":
        options = {"rule_warmup": 50, "trace_decay": 0.9, "n_steps": 3}
        return DQN("MlpPolicy", make_vec_env("CartPole-v1", 2), replay_buffer_class=NSERReplayBuffer,
                   replay_buffer_kwargs=options, target_update_interval=50, **common)  # fmt: skip
    if case == "continuous":
        return SAC("MlpPolicy", "Pendulum-v1", replay_buffer_class=NSERReplayBuffer, **common)
    env = make_vec_env(BitFlippingEnv, 2, env_kwargs={"n_bits": 4})
    return DQN("MultiInputPolicy", env, replay_buffer_class=NSERHerReplayBuffer, **common)


def callback(case, folder):
    if case != "rules":
        return PriorityCallback()
    (folder / "rules.yaml").write_text(RULE)
    return RuleInductionCallback(rules_file=folder / "rules.yaml", max_calls=0, every=150)


def save(model, folder):
    model.save(folder / "model")
    model.save_replay_buffer(folder / "buffer")
    # what SB3 does not save
    rest = {
        "env": model.env,
        "torch": th.get_rng_state(),
        "numpy": np.random.get_state(),
        "random": random.getstate(),
        "actions": model.action_space,
    }
    (folder / "rest.pkl").write_bytes(cloudpickle.dumps(rest))


def load(case, folder):
    rest = pickle.loads((folder / "rest.pkl").read_bytes())
    algorithm = SAC if case == "continuous" else DQN
    model = algorithm.load(folder / "model", env=rest["env"], force_reset=False, device="cpu")
    model.load_replay_buffer(folder / "buffer", truncate_last_traj=False)
    # after loading, which sets all of them from the seed
    model.action_space = rest["actions"]
    th.set_rng_state(rest["torch"])
    np.random.set_state(rest["numpy"])
    random.setstate(rest["random"])
    return model


def go_on(model, callback):
    """At least 100 gradient steps and 1000 draws; returns all that was drawn, and where it led."""
    buffer, drawn = model.replay_buffer, []
    sample = buffer.sample

    def recorded(*args, **kwargs):
        batch = sample(*args, **kwargs)
        drawn.append(np.concatenate([buffer.last_sample.indices, buffer.last_sample.weights]))
        return batch

    buffer.sample = recorded
    model.learn(240 * model.n_envs, callback=callback, reset_num_timesteps=False)
    assert len(drawn) >= 100 and len(drawn) * 16 >= 1000
    parameters = th.cat([p.detach().flatten() for p in model.policy.parameters()]).numpy()
    return {
        "drawn": np.array(drawn),
        "parameters": parameters,
        "td_errors": buffer.td_errors,
        "scores": buffer.scores,
        "beta": buffer.beta_now,
    }


if __name__ == "__main__":
    th.set_num_threads(1)
    for case in CASES:
        folder = Path(sys.argv[1]) / case
        (folder / "later.pkl").write_bytes(pickle.dumps(go_on(load(case, folder), callback(case, folder))))
