"""One call at a time in the background; training never waits longer than it was told to."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from typing import Protocol

from sb3_nser.induction.base import InductionFailure, InductionReply, InductionRequest, Outcome, RuleInducer
from sb3_nser.rules import Rule

GRACE = 5.0
"""Seconds beyond the inducer's deadline after which the worker stops believing in it."""


class CallRunner(Protocol):
    """Where the callback hands in a question and picks up the answer: live, or from a record."""

    def submit(self, request: InductionRequest) -> None:
        """Start a call; only when ``busy`` is False."""
        ...

    def poll(self, step: int, wait: bool = False) -> Outcome | None:
        """:return: the outcome of the running call if there is one to apply at this step, else None"""
        ...

    @property
    def busy(self) -> bool:
        """True from ``submit`` until ``poll`` has returned the outcome."""
        ...

    def close(self) -> InductionRequest | None:
        """Give up whatever runs; returns the request that never got its answer."""
        ...


class BackgroundCalls:
    """Runs an inducer's calls on a daemon thread.

    A call that overruns its deadline is abandoned: its thread may linger in the network, its result is never looked at.

    :param inducer: answers the requests; its ``propose`` is never called twice at the same time by one worker unless a call
        was abandoned
    """

    def __init__(self, inducer: RuleInducer) -> None:
        self._inducer = inducer
        self._request: InductionRequest | None = None
        self._box: list[Outcome] = []
        self._thread: threading.Thread | None = None
        self._until = 0.0
        self._started = 0.0

    @property
    def busy(self) -> bool:
        """True from ``submit`` until the outcome was handed out."""
        return self._request is not None

    def submit(self, request: InductionRequest) -> None:
        """
        :param request: the question
        :raises RuntimeError: if a call is still running
        """
        if self._request is not None:
            raise RuntimeError("a call is still running")
        box: list[Outcome] = []
        allowed = max(self._inducer.deadline, getattr(self._inducer, "first_deadline", 0.0))
        self._request, self._box, self._started = request, box, time.monotonic()
        self._until = self._started + allowed + GRACE
        self._thread = threading.Thread(target=_run, args=(self._inducer, request, box), name="nser-induction", daemon=True)
        self._thread.start()

    def poll(self, step: int, wait: bool = False) -> Outcome | None:
        """
        :param step: current environment step (a record needs it; a live call does not)
        :param wait: True waits for the answer, at most until the deadline
        :return: the outcome, once; None while the call runs
        """
        if self._request is None or self._thread is None:
            return None
        if wait:
            self._thread.join(max(0.0, self._until - time.monotonic()))
        outcome: Outcome | None = None
        if self._box:
            outcome = self._box[0]
        elif not self._thread.is_alive() or time.monotonic() > self._until:
            seconds = time.monotonic() - self._started
            message = f"{self._inducer.describe()} gave no answer within {seconds:.1f} s; the call was abandoned."
            outcome = Outcome(self._request, failure=InductionFailure("deadline", message, seconds))
        if outcome is not None:
            self._request = self._thread = None
        return outcome

    def close(self) -> InductionRequest | None:
        """:return: the request that was still running, None if there was none"""
        request, self._request, self._thread = self._request, None, None
        return request


def _run(inducer: RuleInducer, request: InductionRequest, box: list[Outcome]) -> None:
    started = time.monotonic()
    try:
        box.append(Outcome(request, reply=_checked(inducer.propose(request))))
    except InductionFailure as failure:
        box.append(Outcome(request, failure=failure, original=failure.__cause__))
    except BaseException as error:
        message = f"{type(inducer).__name__}: unexpected {type(error).__name__}: {error}"
        box.append(Outcome(request, failure=InductionFailure("internal", message, time.monotonic() - started), original=error))


def _checked(reply: object) -> InductionReply:
    """
    What an inducer, perhaps a user's own, has returned, with text that any file can hold.

    :raises TypeError: if it is not a reply, or a field has another type than documented
    """
    if not isinstance(reply, InductionReply):
        raise TypeError(f"propose() returned {type(reply).__name__}, not an InductionReply")
    numbers = (reply.seconds, reply.prompt_tokens, reply.reply_tokens)
    rules = () if reply.rules is None else reply.rules
    texts = (reply.text, reply.model, reply.digest, *reply.notes)
    if not all(isinstance(text, str) for text in texts) or not all(isinstance(rule, Rule) for rule in rules):
        raise TypeError("propose() returned a reply whose texts are not str, or whose rules are not Rule objects")
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        raise TypeError("propose() returned a reply whose seconds or tokens are not finite numbers")
    # half of a surrogate pair is no text: no file and no terminal takes it
    return dataclasses.replace(reply, text=reply.text.encode("utf-8", "replace").decode("utf-8"))
