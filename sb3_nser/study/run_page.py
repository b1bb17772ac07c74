"""The page of one training run."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from sb3_nser.errors import ConfigurationError
from sb3_nser.rules.table import summary
from sb3_nser.study import figures
from sb3_nser.study.page import (
    Block,
    Details,
    Items,
    Picture,
    Pictures,
    Section,
    Table,
    Text,
    number,
    with_interval,
    write_page,
)
from sb3_nser.study.runs import Run, read_run

_CURVES = (
    ("rollout/ep_rew_mean", "Return of training episodes", "return"),
    ("rollout/success_rate", "Success rate of training episodes", "success"),
    ("eval/mean_reward", "Return of evaluation episodes", "eval-return"),
    ("eval/success_rate", "Success rate of evaluation episodes", "eval-success"),
)
_REPLAY = (
    ("nser/ess", "Effective sample size of a batch", "ess"),
    ("nser/coverage", "Share of the buffer that as many draws as it holds transitions would reach", "coverage"),
    ("nser/mean_score", "Mean rule score in the buffer", "mean-score"),
    ("nser/rule_fraction", "Share of draws that rules decide", "rule-fraction"),
    ("nser/beta", "β of the importance weights", "beta"),
    ("nser/rules_active", "Rules in force", "rules-active"),
)
_COST = ("time/fps", "time/time_elapsed", "time/total_timesteps", "nser/llm_calls", "nser/llm_failures", "nser/llm_seconds",
         "nser/llm_tokens", "nser/seconds_waited")  # fmt: skip
MAX_RULES = 60


def write_run(folder: Path) -> list[str]:
    """
    Write ``report.html``, ``figures/*.png``, ``scalars.csv`` and ``rules.csv`` into the folder of a training run.

    :param folder: see ``read_run``
    :return: lines for the user: what was read, what is missing, where the page is
    :raises ConfigurationError: as ``read_run``, or if the folder cannot be written to
    """
    run = read_run(folder)
    try:
        if run.scalars:
            rows = [
                (tag, step, value)
                for tag, (steps, values) in run.scalars.items()
                for step, value in zip(steps, values, strict=True)
            ]
            pd.DataFrame(rows, columns=["tag", "step", "value"]).to_csv(folder / "scalars.csv", index=False)
        if run.entries:
            pd.DataFrame([summary(entry) for entry in run.entries]).to_csv(folder / "rules.csv", index=False)
        page = write_page(folder / "report.html", f"Training run {folder.resolve().name}", _lead(run), _sections(run))[0]
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written to ({error.strerror or error}).") from None
    return [f"read: {', '.join(run.found)}", *(f"missing: {text}" for text in run.missing), f"report: {page}"]


def _lead(run: Run) -> str:
    parts = []
    last = max((steps[-1] for steps, _ in run.scalars.values()), default=None)
    if last is not None:
        parts.append(f"{last:,.0f} environment steps")
    if run.entries:
        parts.append(f"{len(run.entries)} rules")
    if run.calls:
        parts.append(f"{len(run.calls)} calls")
    return ", ".join(parts) + ". One run shows what happened; whether rules helped needs a study (sb3-nser compare)."


def _sections(run: Run) -> list[Section]:
    found = []
    curves = _pictures(run, _CURVES)
    if curves:
        found.append(Section("Learning", [Pictures(curves)]))
    if run.entries:
        found.append(Section("Rules", _rules(run)))
    elif "rules.yaml" in "".join(run.found):
        found.append(Section("Rules", [Text("The rule book is empty: no rule was proposed that could be used.")]))
    replay = _pictures(run, _REPLAY)
    if replay:
        found.append(Section("Replay", [Pictures(replay)]))
    if run.calls:
        found.append(Section("Calls", _calls(run)))
    cost = [(tag, number(run.scalars[tag][1][-1], 4)) for tag in _COST if tag in run.scalars]
    if cost:
        found.append(Section("Cost", [Table(["logged", "last value"], cost)]))
    sources: list[Block] = [Text(f"Made from {', '.join(run.found)}."), Items(["sb3-nser report RUN_DIR"], code=True)]
    if run.missing:
        sources.append(Text("What was not there:"))
        sources.append(Items(run.missing))
    found.append(Section("Where this comes from", sources))
    return found


def _pictures(run: Run, wanted: tuple[tuple[str, str, str], ...]) -> list[Picture]:
    found = []
    for tag, title, file in wanted:
        if tag in run.scalars:
            steps, values = run.scalars[tag]
            ends = f"from {number(values[0])} to {number(values[-1])}"
            alt = f"{title} ({tag}): {ends}, between {number(min(values))} and {number(max(values))}."
            found.append(Picture(figures.series({tag: (steps, values)}, title), alt, file))
    return found


def _rules(run: Run) -> list[Block]:
    shown = run.entries[:MAX_RULES]
    rows = []
    for k, entry in enumerate(shown):
        one = summary(entry)
        lift = with_interval(one["lift"], one["low"], one["high"])
        rows.append(
            (
                f"{k + 1}",
                one["fitted_rule"] or one["rule"],
                one["state"],
                number(one["confidence"]),
                lift,
                one["reason"],
                one["origin"],
            )
        )
    head = ["rule", "in words", "state", "confidence", "lift", "why", "from"]
    more = "" if len(shown) == len(run.entries) else f" (the first {len(shown)} of {len(run.entries)})"
    blocks: list[Block] = [Table(head, rows, f"Rules at the end, those that count first{more}")]
    judged = {f"rule {k + 1}": list(entry.history) for k, entry in enumerate(shown[:24]) if entry.history}
    if judged:
        drawn = figures.judgements(judged, "Judgements")
        words = "; ".join(
            f"{name} {history[-1][1].replace('_', ' ')} at step {history[-1][0]}" for name, history in judged.items()
        )
        blocks.append(
            Pictures([Picture(drawn, f"Judgements of each rule over environment steps; the last ones: {words}.", "rules")])
        )
    return blocks


def _calls(run: Run) -> list[Block]:
    rows = []
    for call in run.calls:
        became = (
            call.failure_message or f"{len(call.verdicts)} rules judged" if call.applied_step is not None else "never applied"
        )
        rows.append(
            (
                f"{call.number + 1}",
                f"{call.request_step:,}",
                number(call.applied_step),
                number(call.seconds),
                call.model or "–",
                became,
            )
        )
    head = ["call", "asked at step", "applied at step", "seconds", "model", "what became of it"]
    seconds = sum(call.seconds for call in run.calls)
    verdicts = [f"{rule}: {became}" for call in run.calls for rule, became in call.verdicts.items()]
    blocks: list[Block] = [Table(head, rows, f"{len(run.calls)} calls, {seconds:.0f} seconds in all")]
    if verdicts:
        blocks.append(Details("What became of each proposal", [Items(verdicts[:200])]))
    return blocks
