"""Neuro-symbolic experience replay for Stable-Baselines3.

A language model induces behavioural rules from the agent's own episodes, torch logic grounds them, and what is replayed
follows them: ``DQN(..., replay_buffer_class=NSERReplayBuffer)`` and ``learn(..., callback=RuleInductionCallback(...))``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sb3_nser.errors import NSERError, NSERWarning

if TYPE_CHECKING:
    from sb3_nser.callbacks import RuleInductionCallback
    from sb3_nser.induction import OllamaInducer, OpenAIInducer, RandomInducer, TreeInducer
    from sb3_nser.induction.session import InductionRound
    from sb3_nser.replay import NSERHerReplayBuffer, NSERReplayBuffer, PriorityCallback

__version__ = "0.1.0"

__all__ = [
    "InductionRound",
    "NSERError",
    "NSERHerReplayBuffer",
    "NSERReplayBuffer",
    "NSERWarning",
    "OllamaInducer",
    "OpenAIInducer",
    "PriorityCallback",
    "RandomInducer",
    "RuleInductionCallback",
    "TreeInducer",
    "__version__",
]

# torch and SB3 take seconds to import; the command line and the model server do without them until they are needed
_HOMES = {
    "InductionRound": "sb3_nser.induction.session",
    "NSERHerReplayBuffer": "sb3_nser.replay",
    "NSERReplayBuffer": "sb3_nser.replay",
    "OllamaInducer": "sb3_nser.induction",
    "OpenAIInducer": "sb3_nser.induction",
    "PriorityCallback": "sb3_nser.replay",
    "RandomInducer": "sb3_nser.induction",
    "RuleInductionCallback": "sb3_nser.callbacks",
    "TreeInducer": "sb3_nser.induction",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
