"""A queue with a bound: who comes first is served first, who would wait too long is sent away, who leaves is forgotten."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class QueueFull(Exception):
    """As many are waiting as may wait."""


class Abandoned(Exception):
    """Whoever asked has left."""


class Turnstile:
    """Lets one in at a time, in the order of arrival.

    :param bound: How many may wait behind the one inside; more of it trades refusals for longer waits
    """

    def __init__(self, bound: int = 64) -> None:
        self.bound = bound
        self._changed = threading.Condition()
        self._line: deque[object] = deque()  # its first entry is inside

    @property
    def busy(self) -> bool:
        """Whether somebody is inside."""
        return bool(self._line)

    @contextmanager
    def turn(self, abandoned: Callable[[], bool] = lambda: False, poll: float = 0.2) -> Iterator[None]:
        """Wait for one's turn and hold it.

        :param abandoned: Asked every ``poll`` seconds while waiting
        :param poll: Seconds
        :raises QueueFull: at once, if ``bound`` others are waiting
        :raises Abandoned: if ``abandoned`` says so before the turn comes
        """
        ticket = object()
        with self._changed:
            if len(self._line) > self.bound:
                raise QueueFull
            self._line.append(ticket)
        try:
            with self._changed:
                while self._line[0] is not ticket:
                    self._changed.wait(poll)
                    if self._line[0] is not ticket and abandoned():
                        raise Abandoned
            yield
        finally:
            with self._changed:
                self._line.remove(ticket)
                self._changed.notify_all()

    @contextmanager
    def turn_if_idle(self) -> Iterator[bool]:
        """Hold the turn if nobody is inside or waiting.

        :return: Whether the turn is held
        """
        ticket = object()
        with self._changed:
            held = not self._line
            if held:
                self._line.append(ticket)
        try:
            yield held
        finally:
            if held:
                with self._changed:
                    self._line.remove(ticket)
                    self._changed.notify_all()
