"""Names for what the agent sees and does."""

from sb3_nser.vocabulary.features import BOOLEAN_VALUES, ActionSet, Feature, Kind, Vocabulary

__all__ = ["BOOLEAN_VALUES", "ActionSet", "Feature", "Kind", "Vocabulary"]
