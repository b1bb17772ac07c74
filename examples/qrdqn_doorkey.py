"""QR-DQN on MiniGrid-DoorKey: rules over symbols (what is in front, what is carried) from a language model.

    pip install minigrid
    python examples/qrdqn_doorkey.py

The embedded server stands in for Ollama. With Ollama running, leave out the ``with`` line and the ``host``.
"""

import gymnasium as gym
import minigrid  # noqa: F401  (registers the environments)
import torch as th
from minigrid.wrappers import ImgObsWrapper, OneHotPartialObsWrapper
from sb3_contrib import QRDQN
from stable_baselines3.common.monitor import Monitor

from sb3_nser import NSERReplayBuffer, RuleInductionCallback
from sb3_nser.local import EmbeddedServer

th.set_num_threads(1)  # leave the other cores to the model

env = gym.make("MiniGrid-DoorKey-5x5-v0")
env = Monitor(gym.wrappers.FlattenObservation(ImgObsWrapper(OneHotPartialObsWrapper(env))))

with EmbeddedServer("qwen2.5-coder:0.5b") as server:
    model = QRDQN(
        "MlpPolicy",
        env,
        replay_buffer_class=NSERReplayBuffer,
        buffer_size=50_000,
        learning_rate=5e-4,
        learning_starts=1_000,
        batch_size=64,
        gamma=0.97,
        target_update_interval=500,
        train_freq=8,
        exploration_fraction=0.5,
        exploration_final_eps=0.08,
        policy_kwargs={"net_arch": [128, 128], "n_quantiles": 25},
        seed=0,
        verbose=1,
    )
    callback = RuleInductionCallback("qwen2.5-coder:0.5b", every=6_000, first=1_000, host=server.host, verbose=1)
    model.learn(25_000, callback=callback, log_interval=20)

print("\nRules in force at the end:", *callback.session.in_force(), sep="\n  ")
