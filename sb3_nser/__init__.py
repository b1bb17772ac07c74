"""Neuro-symbolic experience replay for Stable-Baselines3.

A language model induces behavioural rules from the agent's own episodes, torch logic grounds them, and what is replayed
follows them: ``DQN(..., replay_buffer_class=NSERReplayBuffer)`` and ``learn(..., callback=RuleInductionCallback(...))``.
"""

from sb3_nser.callbacks import InductionRound, PriorityCallback, RuleInductionCallback
from sb3_nser.errors import NSERError, NSERWarning
from sb3_nser.replay import NSERReplayBuffer

__version__ = "0.1.0"

__all__ = [
    "InductionRound",
    "NSERError",
    "NSERReplayBuffer",
    "NSERWarning",
    "PriorityCallback",
    "RuleInductionCallback",
    "__version__",
]
