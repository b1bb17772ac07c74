"""Stage 1: candidate rules from the agent's own episodes."""

from sb3_nser.induction.base import InductionFailure, InductionReply, InductionRequest, Outcome, RuleInducer
from sb3_nser.induction.controls import RandomInducer
from sb3_nser.induction.ollama import OllamaInducer
from sb3_nser.induction.openai import OpenAIInducer
from sb3_nser.induction.record import RecordedCalls, RecordEntry, RecordWriter, read_record
from sb3_nser.induction.tree import TreeInducer
from sb3_nser.induction.worker import BackgroundCalls

__all__ = [
    "BackgroundCalls",
    "InductionFailure",
    "InductionReply",
    "InductionRequest",
    "OllamaInducer",
    "OpenAIInducer",
    "Outcome",
    "RandomInducer",
    "RecordEntry",
    "RecordWriter",
    "RecordedCalls",
    "RuleInducer",
    "TreeInducer",
    "read_record",
]
