"""SAC on Pendulum: a rule's head compares the torque, in N·m, with a number.

    python examples/sac_pendulum.py

The embedded server stands in for Ollama. With Ollama running, leave out the ``with`` line and the ``host``.
"""

import torch as th
from stable_baselines3 import SAC

from sb3_nser import NSERReplayBuffer, RuleInductionCallback
from sb3_nser.local import EmbeddedServer

th.set_num_threads(1)  # leave the other cores to the model

with EmbeddedServer("qwen2.5-coder:0.5b") as server:
    model = SAC(
        "MlpPolicy",
        "Pendulum-v1",
        replay_buffer_class=NSERReplayBuffer,
        learning_rate=1e-3,
        policy_kwargs={"net_arch": [64, 64]},
        seed=0,
        verbose=1,
    )
    callback = RuleInductionCallback("qwen2.5-coder:0.5b", every=2_500, first=1_000, host=server.host, verbose=1)
    model.learn(6_000, callback=callback, log_interval=10)

print("\nRules in force at the end:", *callback.session.in_force(), sep="\n  ")
