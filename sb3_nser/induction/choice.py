"""The inducers by name, as a YAML file writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sb3_nser.arguments import closest
from sb3_nser.errors import ConfigurationError, warn_user
from sb3_nser.induction.base import RuleInducer, reads_prompt
from sb3_nser.induction.controls import RandomInducer
from sb3_nser.induction.ollama import OllamaInducer
from sb3_nser.induction.openai import OpenAIInducer
from sb3_nser.induction.tree import TreeInducer

INDUCERS = ("ollama", "openai", "tree", "random")


def choose_inducer(
    inducer: RuleInducer | str | None, llm: str, host: str | None, *, seed: int, keep_alive: str | float, **call: Any
) -> RuleInducer:
    """
    :param inducer: one of ``INDUCERS``, None for the first of them, or an inducer, which is returned as it is
    :param llm: name of the model, for those that ask one
    :param host: address of the server, for those that ask one
    :param seed: base seed
    :param keep_alive: how long Ollama keeps the model loaded
    :param call: deadline, context and sampling of a model's calls
    :raises ConfigurationError: if the name is unknown, an argument is out of range, or a package is not installed
    """
    if inducer is not None and not isinstance(inducer, str):
        return inducer
    if inducer is None and llm in INDUCERS:
        raise ConfigurationError(f"llm={llm!r} would be the name of a model; write inducer={llm!r}.")
    name = INDUCERS[0] if inducer is None else inducer
    if name == "ollama":
        return OllamaInducer(llm, host, seed=seed, keep_alive=keep_alive, **call)
    if name == "openai":
        return OpenAIInducer(llm, host, seed=seed, **call)
    if name == "tree":
        return TreeInducer(seed=seed)
    if name == "random":
        return RandomInducer(seed=seed)
    known = ", ".join(INDUCERS)
    raise ConfigurationError(f"inducer={name!r} must be one of {known}, or implement RuleInducer.{closest(name, INDUCERS)}")


def warn_of_unread_hints(inducer: RuleInducer, hints: Sequence[str]) -> None:
    """Say once that hints are for inducers that read; no call is spent on them."""
    if hints and not reads_prompt(inducer):
        warn_user(
            f"hints are not used: {inducer.describe()} reads no prompt, so nobody translates them; ask a language model, or "
            "write them as rules into rules_file."
        )
