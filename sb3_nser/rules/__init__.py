"""What a rule is, how it prints, and what the data say about it."""

from sb3_nser.rules.book import Proposal, RuleBook
from sb3_nser.rules.check import conflicts, contradictions, problems, redundancies, subsumed
from sb3_nser.rules.entry import AdmissionPolicy, Entry, Judgement, moved_rule
from sb3_nser.rules.evidence import Evidence, describe_evidence, detrend, discounted_returns, measure
from sb3_nser.rules.formula import Condition, Connective, Quantified
from sb3_nser.rules.model import Head, Literal, Rule, RuleSet, format_number
from sb3_nser.rules.text import parse_condition, parse_rule

__all__ = [
    "AdmissionPolicy",
    "Condition",
    "Connective",
    "Entry",
    "Evidence",
    "Head",
    "Judgement",
    "Literal",
    "Proposal",
    "Quantified",
    "Rule",
    "RuleBook",
    "RuleSet",
    "conflicts",
    "contradictions",
    "describe_evidence",
    "detrend",
    "discounted_returns",
    "format_number",
    "measure",
    "moved_rule",
    "parse_condition",
    "parse_rule",
    "problems",
    "redundancies",
    "subsumed",
]
