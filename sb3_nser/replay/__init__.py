"""Stage 3: what is replayed. Knows nothing of rules; it is given their scores."""

from sb3_nser.replay.buffers import NSERDictReplayBuffer, NSERReplayBuffer
from sb3_nser.replay.callback import PriorityCallback
from sb3_nser.replay.her import NSERHerReplayBuffer
from sb3_nser.replay.learner import LearnerLink
from sb3_nser.replay.mixin import PriorityMixin
from sb3_nser.replay.records import Episode, SampleInfo, Scorer, Transitions
from sb3_nser.replay.shuffle import ShuffledScores
from sb3_nser.replay.sum_tree import MaxTree, SumTree

__all__ = [
    "Episode",
    "LearnerLink",
    "MaxTree",
    "NSERDictReplayBuffer",
    "NSERHerReplayBuffer",
    "NSERReplayBuffer",
    "PriorityCallback",
    "PriorityMixin",
    "SampleInfo",
    "Scorer",
    "ShuffledScores",
    "SumTree",
    "Transitions",
]
