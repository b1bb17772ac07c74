"""What each variant makes of the replay buffer and of the callback that feeds it."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from sb3_nser.arguments import as_int
from sb3_nser.callbacks import RuleInductionCallback
from sb3_nser.errors import ConfigurationError
from sb3_nser.replay import NSERReplayBuffer, PriorityCallback
from sb3_nser.study.cells import Cell

RECENT_EPISODES = 100
"""Episodes among which ``per+success`` ranks a return."""
_DECIDED = ("on_round", "save_rules", "record", "replay_record", "rules_file", "inducer", "policy")
HANDWRITTEN = "handwritten.yaml"
_INDUCERS = {"nser-tree": "tree", "nser-random-rules": "random"}


class SuccessCallback(PriorityCallback):
    """
    Return-based weighting without rules: the control ``per+success``.

    When an episode ends, each of its rows gets the score

    ``S = share of the last 100 episodes, this one among them, whose return was lower``,

    so that the best episodes score nearly 1, and all score 0 as long as all returns are equal. Scores go where rule scores
    go; boost, warm-up and mixture are those of the buffer. Rows of an episode that has not ended score 0.

    :param verbose: 0 silent, 1 information, 2 debug
    """

    def __init__(self, verbose: int = 0) -> None:
        super().__init__(verbose)
        self._running: list[list[int]] = []
        self._ended: list[list[int]] = []
        self._returns: deque[float] = deque(maxlen=RECENT_EPISODES)

    def _on_training_start(self) -> None:
        super()._on_training_start()
        self._running = [[] for _ in range(self.buffer.n_envs)]
        self._ended = []

    def _on_step(self) -> bool:
        row, n = self.buffer.pos, self.buffer.n_envs  # SB3 stores the transition after this call
        for env, done in enumerate(self.locals["dones"]):
            self._running[env].append(row * n + env)
            if done:
                self._ended.append(self._running[env])
                self._running[env] = []
        return True

    def _on_rollout_end(self) -> None:
        super()._on_rollout_end()
        buffer = self.buffer
        for episode in self._ended:
            slots = np.array(
                episode[-buffer.buffer_size :], dtype=np.int64
            )  # what is left of an episode longer than the buffer
            total = float(buffer.rewards[slots // buffer.n_envs, slots % buffer.n_envs].sum())
            self._returns.append(total)
            score = float(np.mean(np.array(self._returns) < total))
            buffer.set_scores(slots, np.full(len(slots), score))
        self._ended = []


def replay_of(cell: Cell, gamma: float, hyperparameters: dict[str, Any]) -> dict[str, Any]:
    """
    :param cell: the run
    :param gamma: discount of the algorithm, which n-step returns in the buffer need too
    :param hyperparameters: arguments of the algorithm; ``n_steps`` is taken out of them where the buffer has to do it, since
        SB3 leaves it to its own buffers: all variants see the same returns
    :return: ``replay_buffer_class`` and ``replay_buffer_kwargs`` for the algorithm; nothing for ``uniform``
    """
    if cell.replay["kind"] == "uniform":
        return {}
    arguments = {"n_steps": hyperparameters.pop("n_steps", 1), **cell.replay["buffer"]}
    arguments.setdefault("gamma", gamma)
    return {"replay_buffer_class": NSERReplayBuffer, "replay_buffer_kwargs": arguments}


def callback_of(cell: Cell, folder: Path, on_round: Any = None) -> PriorityCallback | None:
    """
    :param cell: the run
    :param folder: gets ``rules.yaml`` and, where a model is asked, ``induction.jsonl``
    :param on_round: called with each ``InductionRound``
    :return: what feeds the buffer; None for ``uniform``
    :raises ConfigurationError: for an argument that the study decides itself, and as ``RuleInductionCallback``
    """
    scores = cell.replay["scores"]
    if cell.replay["kind"] == "uniform":
        return None
    if cell.replay["kind"] == "per+success" or scores == "per+success":
        return SuccessCallback()
    if not scores:
        return PriorityCallback()
    given = dict(cell.replay["callback"])
    for name in _DECIDED:
        if name in given and not (name == "inducer" and scores == "nser"):
            raise ConfigurationError(f"callback: {name!r} is decided by the study; leave it out.")
    # waiting for each answer makes a run independent of how busy the machine is
    arguments: dict[str, Any] = {"blocking": True, "vocabulary": cell.env["vocabulary"], "seed": cell.seed, **given}
    if scores in _INDUCERS:
        arguments["inducer"] = _INDUCERS[scores]
    elif scores == "nser-handwritten":
        arguments |= {"rules_file": _write_rules(cell, folder), "max_calls": 0}
    elif cell.replay_record is not None:
        arguments["replay_record"] = cell.replay_record
    if scores != "nser-handwritten":
        arguments["record"] = folder / "induction.jsonl"
    return RuleInductionCallback(**arguments, save_rules=folder / "rules.yaml", on_round=on_round)


def first_question(cell: Cell) -> int | None:
    """:return: the step of the first question of a run that asks for rules, None for other runs"""
    if cell.replay["scores"] not in ("nser", "nser-tree", "nser-random-rules"):
        return None
    given = cell.replay["callback"]
    first = given.get("first")
    return as_int("every", given.get("every", 5_000), 1) if first is None else as_int("first", first, 0)


def _write_rules(cell: Cell, folder: Path) -> Path:
    """Rules given as text always count, and fully; a mapping says itself what holds."""
    rules = [{"rule": rule, "pinned": True, "confidence": 1.0} if isinstance(rule, str) else rule for rule in cell.rules or []]
    path = folder / HANDWRITTEN
    path.write_text(yaml.safe_dump({"rules": rules}, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path
