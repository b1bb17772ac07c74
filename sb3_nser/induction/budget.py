"""When to ask, what to count, when to stop asking: the bookkeeping of one training run's calls to a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sb3_nser.errors import warn_user


@dataclass
class CallBudget:
    """
    Spacing and limits of the calls.

    :param every: environment steps between questions
    :param first: environment step of the first question
    :param max_calls: most calls of one run
    :param max_tokens: most tokens (prompt and reply) of one run
    :param max_failures: consecutive failures after which no more questions are asked
    """

    every: int
    first: int
    max_calls: int
    max_tokens: int
    max_failures: int = 5
    next_step: int = -1
    calls: int = 0
    failures: int = 0
    failures_in_a_row: int = 0
    stale_rounds: int = 0
    tokens: int = 0
    seconds: float = 0.0
    stopped: str = ""

    def __post_init__(self) -> None:
        if self.next_step < 0:
            self.next_step = self.first
        self._limit()

    def due(self, step: int) -> bool:
        """:return: True if it is time for the next turn; counted in steps, so several environments skip none"""
        return step >= self.next_step

    def passed(self, step: int) -> None:
        """A turn without a question (the limits are reached): rules are judged, nobody is asked."""
        self.next_step = step + self.every

    def asked(self, step: int) -> None:
        """Count a question and set the next one; rounds that brought nothing new double the spacing, up to eightfold."""
        self.calls += 1
        self.next_step = step + self.every * 2 ** min(3, self.stale_rounds)

    def answered(self, tokens: int, seconds: float, new_rules: int | None) -> None:
        """
        Count an answer.

        :param new_rules: new rules of the whole round, none of which widens the spacing; None while the round goes on
        """
        self.failures_in_a_row = 0
        self.tokens += tokens
        self.seconds += seconds
        if new_rules is not None:
            self.stale_rounds = 0 if new_rules else self.stale_rounds + 1
        self._limit()

    def failed(self, seconds: float) -> None:
        """Count a failure; enough of them in a row end the asking."""
        self.failures += 1
        self.failures_in_a_row += 1
        self.seconds += seconds
        self.stale_rounds += 1
        if self.failures_in_a_row >= self.max_failures:
            self.stopped = f"{self.failures_in_a_row} calls in a row failed"
        else:
            self._limit()

    def reset(self) -> None:
        """Begin anew, as at step 0."""
        self.restore(dict.fromkeys(self.state(), 0) | {"next_step": self.first})

    def _limit(self) -> None:
        self.stopped = ""
        if self.calls >= self.max_calls:
            self.stopped = f"max_calls={self.max_calls} is reached"
        elif self.tokens >= self.max_tokens:
            self.stopped = f"max_tokens={self.max_tokens} is reached"

    def state(self) -> dict[str, Any]:
        """:return: plain JSON of what a resumed run has to know"""
        names = ("next_step", "calls", "failures", "failures_in_a_row", "stale_rounds", "tokens", "seconds")
        return {name: getattr(self, name) for name in names}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over the counters of an earlier part of the run; whether asking goes on follows from today's limits."""
        for name in self.state():
            setattr(self, name, type(getattr(self, name))(state.get(name, getattr(self, name))))
        self.failures_in_a_row = 0  # today's server may be another
        self._limit()


@dataclass
class WarnOnce:
    """One warning per cause, however often it happens."""

    seen: set[str] = field(default_factory=set)

    def __call__(self, cause: str, message: str) -> bool:
        """:return: True if the warning was given now"""
        if cause in self.seen:
            return False
        self.seen.add(cause)
        warn_user(message)
        return True
