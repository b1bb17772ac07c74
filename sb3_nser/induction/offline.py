"""Induction without training: the same questions, checks, fits and verdicts, on episodes that exist already."""

from __future__ import annotations

import sys
from collections.abc import Callable

from sb3_nser.errors import ConfigurationError
from sb3_nser.induction.base import RuleInducer
from sb3_nser.induction.budget import CallBudget, WarnOnce
from sb3_nser.induction.data import EpisodeSource
from sb3_nser.induction.ollama import OllamaInducer
from sb3_nser.induction.record import RecordWriter
from sb3_nser.induction.session import InductionRound, InductionSession
from sb3_nser.induction.settings import SessionSettings
from sb3_nser.induction.worker import BackgroundCalls
from sb3_nser.rules import RuleBook
from sb3_nser.vocabulary import Vocabulary


def induce(
    source: EpisodeSource,
    vocabulary: Vocabulary,
    inducer: RuleInducer | None,
    *,
    calls: int,
    gamma: float,
    settings: SessionSettings,
    book: RuleBook,
    step: int = 0,
    writer: RecordWriter | None = None,
    tell: Callable[[InductionRound], None] | None = None,
) -> RuleBook:
    """
    Ask for rules about stored episodes and judge them there. As in training, each answer is judged before the next question,
    which hears of it; a rule is judged once, since the data stay the same.

    :param source: the episodes
    :param vocabulary: the names rules speak in
    :param inducer: who is asked; None only judges the book's rules
    :param calls: questions; fewer if five in a row fail
    :param gamma: discount of the returns, in [0, 1]
    :param settings: validated settings
    :param book: rules to begin with; gets the new ones
    :param step: what the book's history says as the step of the judgements
    :param writer: record of the calls
    :param tell: called after each answer or failure
    :return: the book
    :raises ConfigurationError: if there is no whole episode, or a prompt cannot fit
    """
    if not source.complete_episodes(settings.max_transitions):
        raise ConfigurationError(
            "the buffer holds no whole episode: nothing can be judged on it. It has to hold an episode from its first step to "
            "its last; one that still runs, or whose beginning was overwritten, does not count."
        )
    asked = inducer if inducer is not None else OllamaInducer("nobody")
    budget = CallBudget(1, 0, max_calls=calls if inducer is not None else 0, max_tokens=sys.maxsize)
    session = InductionSession(vocabulary, book, budget, BackgroundCalls(asked), asked, settings, WarnOnce(), writer)
    session.rehearse()
    for _ in range(max(1, budget.max_calls)):
        session.turn(source, step, gamma)
        news = session.pick_up(source, step, gamma, wait=True)
        if news is not None and tell is not None:
            tell(news)
        if budget.stopped:
            break
    return book
