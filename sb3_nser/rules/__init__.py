"""What a rule is, how it prints, and what the data say about it."""

from sb3_nser.rules.model import Head, Literal, Rule, RuleSet, format_number

__all__ = ["Head", "Literal", "Rule", "RuleSet", "format_number"]
