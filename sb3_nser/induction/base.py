"""What an inducer is asked, what it answers, and how it fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from sb3_nser.errors import printable
from sb3_nser.induction.episodes import Experience
from sb3_nser.rules import Rule
from sb3_nser.vocabulary import Vocabulary


@dataclass(frozen=True)
class InductionRequest:
    """One question to an inducer.

    :param number: 0 for the first call of a run, counted up; inducers vary their seed with it
    :param step: environment step at which the question was asked
    :param messages: chat messages, each with ``role`` and ``content``
    :param schema: the flat JSON schema that the reply is held to
    :param max_rules: most rules in the reply
    :param form: name of the prompt form, for the record
    :param vocabulary: the names rules may use, for inducers that read no prompt; None in a request made by hand
    :param experience: the episodes that rules may be learnt from, for inducers that read no prompt: those that will judge the
        rules are left out
    """

    number: int
    step: int
    messages: tuple[dict[str, str], ...]
    schema: dict[str, Any]
    max_rules: int
    form: str
    vocabulary: Vocabulary | None = field(default=None, compare=False, repr=False)
    experience: Experience | None = field(default=None, compare=False, repr=False)

    @property
    def characters(self) -> int:
        """Length of all messages together."""
        return sum(len(message["content"]) for message in self.messages)


@dataclass(frozen=True)
class InductionReply:
    """What came back, before anybody has looked at it.

    :param text: the reply's text; data, never executed
    :param model: the model's name
    :param digest: the model's digest, empty if unknown
    :param seconds: wall-clock seconds of the whole call
    :param prompt_tokens: tokens the server evaluated, 0 if unknown
    :param reply_tokens: tokens the server generated, 0 if unknown
    :param notes: warnings that belong to this reply (cut, context window, schema fallback)
    :param rules: rules that need no parsing (offline inducers); None if ``text`` has to be read
    """

    text: str
    model: str = ""
    digest: str = ""
    seconds: float = 0.0
    prompt_tokens: int = 0
    reply_tokens: int = 0
    notes: tuple[str, ...] = ()
    rules: tuple[Rule, ...] | None = None


class InductionFailure(Exception):
    """A call that brought no usable reply.

    :param cause: short code, one warning is given per code: ``deadline``, ``connection``, ``server``, ``model``, ``schema``,
        ``prose``, ``cut``, ``context``, ``reply``, ``internal``
    :param message: one sentence for the user
    :param seconds: wall-clock seconds spent
    """

    def __init__(self, cause: str, message: str, seconds: float = 0.0) -> None:
        super().__init__(printable(message))
        self.cause, self.message, self.seconds = cause, printable(message), seconds


@dataclass(frozen=True)
class Outcome:
    """How one call ended: with a reply, or with a failure."""

    request: InductionRequest
    reply: InductionReply | None = None
    failure: InductionFailure | None = None
    original: BaseException | None = field(default=None, compare=False, repr=False)

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of the call."""
        return self.reply.seconds if self.reply else self.failure.seconds if self.failure else 0.0


def reads_prompt(inducer: object) -> bool:
    """
    :return: whether an inducer reads the messages of a request. One that looks at the episodes alone says
        ``reads_prompt = False``; it can translate no hints
    """
    return bool(getattr(inducer, "reads_prompt", True))


@runtime_checkable
class RuleInducer(Protocol):
    """Anything that answers an ``InductionRequest``."""

    deadline: float
    """Seconds after which a call is given up; the worker abandons a call that overruns it."""

    def describe(self) -> str:
        """:return: name for logs, for example ``qwen3:4b at http://127.0.0.1:11434``"""
        ...

    def check(self) -> str | None:
        """
        Called once before training starts.

        :return: a sentence to warn about, or None
        :raises LLMUnavailableError: if no call can succeed (no server, no such model)
        """
        ...

    def propose(self, request: InductionRequest) -> InductionReply:
        """
        Answer; called from a background thread, at most one call at a time.

        :raises InductionFailure: if no usable reply came
        """
        ...
