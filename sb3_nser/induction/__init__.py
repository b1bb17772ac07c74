"""Stage 1: candidate rules from the agent's own episodes."""

from sb3_nser.induction.base import InductionFailure, InductionReply, InductionRequest, Outcome, RuleInducer
from sb3_nser.induction.ollama import OllamaInducer
from sb3_nser.induction.record import RecordedCalls, RecordEntry, RecordWriter, read_record
from sb3_nser.induction.worker import BackgroundCalls

__all__ = [
    "BackgroundCalls",
    "InductionFailure",
    "InductionReply",
    "InductionRequest",
    "OllamaInducer",
    "Outcome",
    "RecordEntry",
    "RecordWriter",
    "RecordedCalls",
    "RuleInducer",
    "read_record",
]
