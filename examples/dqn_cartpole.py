"""DQN on CartPole with rules from a language model, in one file.

    python examples/dqn_cartpole.py

The embedded server stands in for Ollama. With Ollama running, leave out the ``with`` line and the ``host``.
"""

import torch as th
from stable_baselines3 import DQN

from sb3_nser import NSERReplayBuffer, RuleInductionCallback
from sb3_nser.local import EmbeddedServer

th.set_num_threads(1)  # leave the other cores to the model

with EmbeddedServer("qwen2.5-coder:0.5b") as server:
    model = DQN(
        "MlpPolicy",
        "CartPole-v1",
        replay_buffer_class=NSERReplayBuffer,
        learning_rate=2.3e-3,
        batch_size=64,
        train_freq=256,
        gradient_steps=128,
        target_update_interval=10,
        exploration_fraction=0.16,
        policy_kwargs={"net_arch": [256, 256]},
        seed=0,
        verbose=1,
    )
    callback = RuleInductionCallback("qwen2.5-coder:0.5b", every=8_000, first=2_000, host=server.host, verbose=1)
    model.learn(25_000, callback=callback, log_interval=50)

print("\nRules in force at the end:", *callback.session.in_force(), sep="\n  ")
