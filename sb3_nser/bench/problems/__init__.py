"""A fixed, versioned set of induction problems: recorded episodes of twelve environments, from random play to mid skill."""

from sb3_nser.bench.problems.source import HALVES, VERSION, Problem, RecordedSource, load_problem, problem_names

__all__ = ["HALVES", "VERSION", "Problem", "RecordedSource", "load_problem", "problem_names"]
