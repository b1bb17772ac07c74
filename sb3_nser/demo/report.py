"""What is left when the demo has run: a table, a picture and the files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from stable_baselines3.common.base_class import BaseAlgorithm


@dataclass(frozen=True)
class TaskResult:
    """One trained environment; see ``print_table`` for the columns."""

    env_id: str
    score_name: str
    curve: list[tuple[int, float]]
    rounds: list[int]
    mean_return: float
    episodes: int
    admitted: int
    pruned: int
    proposed: int
    calls: int
    failures: int
    llm_seconds: float
    seconds: float
    waited: float
    fingerprint: str


def fingerprint(model: BaseAlgorithm) -> str:
    """:return: twelve hexadecimal digits over all parameters; equal for runs that are equal bit for bit"""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.policy.state_dict().items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(tensor.cpu().numpy()).tobytes())
    return digest.hexdigest()[:12]


def print_table(console: Console, results: Sequence[TaskResult]) -> None:
    """Print one row per quantity, one column per environment."""
    table = Table(title="What happened")
    table.add_column("")
    for result in results:
        table.add_column(result.env_id, justify="right")
    rows: list[tuple[str, list[str]]] = [
        ("greedy score at the end", [f"{r.score_name} {r.curve[-1][1]:.2f}" if r.curve else "–" for r in results]),
        ("mean return, last 100 training episodes", [f"{r.mean_return:.2f}" for r in results]),
        ("episodes", [str(r.episodes) for r in results]),
        ("rules proposed", [str(r.proposed) for r in results]),
        ("rules in force at the end", [str(r.admitted) for r in results]),
        ("rules pruned", [str(r.pruned) for r in results]),
        ("LLM calls (failed)", [f"{r.calls} ({r.failures})" for r in results]),
        ("LLM seconds", [f"{r.llm_seconds:.0f}" for r in results]),
        ("seconds in all", [f"{r.seconds:.0f}" for r in results]),
        ("share of time spent waiting", [f"{100 * r.waited / max(r.seconds, 1e-9):.1f} %" for r in results]),
        ("fingerprint of the weights", [r.fingerprint for r in results]),
    ]
    for name, values in rows:
        table.add_row(name, *values)
    console.print(table)


def draw_curves(results: Sequence[TaskResult], path: Path) -> None:
    """
    Greedy score over environment steps, one panel per environment, with a mark where the model's rules were applied.

    :param results: trained environments
    :param path: PNG file to write
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(results), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for number, result in enumerate(results, start=1):
        axes = figure.add_subplot(1, len(results), number)
        for index, step in enumerate(result.rounds):
            axes.axvline(step, color="#b35900", lw=0.8, ls=":", label="rules applied" if index == 0 else None)
        steps, scores = zip(*result.curve, strict=True) if result.curve else ((), ())
        axes.plot(steps, scores, color="#1f4e8c", marker="o", ms=3, lw=1.6, label="DQN with NSER")
        axes.set_title(result.env_id, fontsize=10)
        axes.set_xlabel("environment steps")
        axes.set_ylabel(f"greedy {result.score_name}, 10 episodes")
        axes.set_ylim(bottom=0, top=1.05 if result.score_name == "success rate" else None)
        axes.grid(alpha=0.25)
        axes.legend(fontsize=8, loc="best")
    figure.savefig(path, dpi=130)
