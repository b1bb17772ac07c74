"""``python -m sb3_nser.bench induction``: how good the rules are that an inducer proposes, and what pooling, repair and
fitting make of them, on the recorded problems."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sb3_nser.bench.induction_calls import RULES_PER_CALL, Answer, Answers, Asked
from sb3_nser.bench.induction_outcome import STEPS, StepOutcome, Yardstick
from sb3_nser.bench.problems import HALVES, VERSION, load_problem, problem_names
from sb3_nser.bench.report import Report, Target, table
from sb3_nser.demo.model_server import ModelServer
from sb3_nser.errors import InductionError
from sb3_nser.induction import OllamaInducer, RandomInducer, RuleInducer, TreeInducer

RANDOM_SEEDS = 5
"""Random rules are drawn so many times, and the mean is reported."""
DEADLINE = 600.0
JUDGED_MODEL = "qwen2.5-coder:1.5b"
"""The model that the targets speak of."""


@dataclass(frozen=True)
class Contender:
    """
    :param name: model or inducer
    :param inducers: one, or one per seed of a random control
    """

    name: str
    inducers: tuple[RuleInducer, ...]


@dataclass(frozen=True)
class Result:
    """One contender on one problem; for several seeds, there are several results."""

    contender: str
    problem: str
    half: str
    answers: tuple[Answer, ...]
    steps: dict[str, StepOutcome]


def measure(
    models: Sequence[str],
    inducers: Sequence[str],
    *,
    calls: int,
    problems: Sequence[str],
    command: str,
    host: str | None = None,
    record: Path | None = None,
    tell: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> Report:
    """
    :param models: names of models to ask
    :param inducers: ``tree``, ``random``; with a model, ``random`` is always measured too
    :param calls: independent questions per problem
    :param problems: names of the problems
    :param command: for the report
    :param host: the model server; None takes a running one or the embedded one
    :param record: JSONL file of answers; those it holds are not asked for again
    :param tell: gets progress
    :return: the report
    :raises InductionError: if no call of a model brought an answer
    """
    import torch as th

    th.set_num_threads(1)  # the model server wants the other cores
    yardsticks = [Yardstick.of(Asked.of(load_problem(name))) for name in problems]
    results: list[Result] = []
    for model in models:
        with ModelServer(model, host, tell) as server:
            inducer = OllamaInducer(server.model, server.host, deadline=DEADLINE)
            inducer.check()
            found = _run(Contender(model, (inducer,)), yardsticks, calls, record, tell)
        if all(answer.failure for result in found for answer in result.answers):
            raise InductionError(f"no call to {model} brought an answer; the last one: {found[-1].answers[-1].failure}")
        results += found
    names = [*inducers, *(["random"] if models and "random" not in inducers else [])]
    for name in names:
        chosen: tuple[RuleInducer, ...] = (TreeInducer(),)
        if name == "random":
            chosen = tuple(RandomInducer(seed=1000 * seed) for seed in range(RANDOM_SEEDS))
        results += _run(Contender(name, chosen), yardsticks, calls, None, tell)
    return _report(results, [*models, *names], calls, command)


def _run(
    contender: Contender, yardsticks: Sequence[Yardstick], calls: int, record: Path | None, tell: Callable[[str], None]
) -> list[Result]:
    results = []
    for inducer in contender.inducers:
        answers = Answers(inducer, record)
        # one call on every problem before the second on any: what is interrupted is even
        given = [[answers.ask(yardstick.asked, number, tell) for yardstick in yardsticks] for number in range(calls)]
        for at, yardstick in enumerate(yardsticks):
            mine = tuple(row[at] for row in given)
            problem = yardstick.asked.problem
            results.append(Result(contender.name, problem.name, problem.half, mine, yardstick.steps(mine)))
        tell(f"{contender.name}: judged on {len(yardsticks)} problems")
    return results


def summary(results: Sequence[Result], step: str) -> dict[str, float]:
    """
    :param results: of one contender, on the problems to be summed up
    :param step: one of ``STEPS``
    :return: figures by name; means over seeds where there are several
    """
    outcomes = [result.steps[step] for result in results]
    answers = [answer for result in results for answer in result.answers]
    problems, rules = len(results), sum(one.rules for one in outcomes)
    written = sum(answer.written for answer in answers)
    return {
        "calls": len(answers),
        "rules": rules,
        "validity": sum(len(answer.rules) for answer in answers) / max(written, 1),
        "valid_replies": sum(answer.valid for answer in answers) / max(len(answers), 1),
        "positive": sum(one.positive for one in outcomes) / max(rules, 1),
        "admitted": sum(one.admitted for one in outcomes) / max(rules, 1),
        "confirmed": sum(one.confirmed for one in outcomes) / max(rules, 1),
        "problems_admitted": sum(one.admitted > 0 for one in outcomes) / max(problems, 1),
        "problems_confirmed": sum(one.confirmed > 0 for one in outcomes) / max(problems, 1),
        "best": sum(one.best for one in outcomes) / max(problems, 1),
        "tokens_per_call": sum(answer.tokens for answer in answers) / max(len(answers), 1),
        "seconds_per_call": sum(answer.seconds for answer in answers) / max(len(answers), 1),
    }


def _report(results: Sequence[Result], contenders: Sequence[str], calls: int, command: str) -> Report:
    halves = [half for half in HALVES if any(result.half == half for result in results)]
    figures: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for name in contenders:
        for half in halves:
            mine = [result for result in results if result.contender == name and result.half == half]
            figures.setdefault(name, {})[half] = {step: summary(mine, step) for step in STEPS}
    extra = {
        "problems": {"version": VERSION, "names": list(dict.fromkeys(result.problem for result in results))},
        "calls_per_problem": calls,
        "rules_per_call": RULES_PER_CALL,
        "random_seeds": RANDOM_SEEDS,
        "summary": figures,
        "results": [_plain(result) for result in results],
    }
    notes = [_proposed(figures), _by_step(figures), _best_rules(results, contenders), *_NOTES]
    return Report(command, (), _targets(figures), extra, notes)


def _targets(figures: dict[str, dict[str, dict[str, dict[str, float]]]]) -> list[Target]:
    """Of the report half alone: the prompts may have been made to suit the other one."""
    half = figures.get(JUDGED_MODEL, {}).get("report")
    if half is None:
        return []
    control = figures["random"]["report"]
    proposed, whole, drawn = half["pooled"], half["fitted"], control["pooled"]
    return [
        Target(f"{JUDGED_MODEL}: share of valid rules", proposed["validity"], 0.99, "higher"),
        Target(
            f"{JUDGED_MODEL}: problems with a rule of positive held-out lift, as proposed",
            proposed["problems_admitted"],
            0.7,
            "higher",
        ),
        Target(
            f"{JUDGED_MODEL}: the same after repair and fit, confirmed on fresh episodes",
            whole["problems_confirmed"],
            0.7,
            "higher",
        ),
        Target(
            f"{JUDGED_MODEL}: share of rules with positive held-out lift, above random rules",
            proposed["positive"] - drawn["positive"],
            0.0,
            "higher",
        ),
        Target(
            f"{JUDGED_MODEL}: share of rules admitted and confirmed, above random rules",
            proposed["confirmed"] - drawn["confirmed"],
            0.0,
            "higher",
        ),
    ]


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _proposed(figures: dict[str, dict[str, dict[str, dict[str, float]]]]) -> str:
    lines = []
    for name, halves in figures.items():
        for half, steps in halves.items():
            one = steps["pooled"]
            shares = (one[key] for key in ("validity", "positive", "admitted", "confirmed"))
            cost = (f"{one['tokens_per_call']:.0f}", f"{one['seconds_per_call']:.2g}")
            lines.append((name, half, f"{one['rules']:.0f}", *map(_percent, shares), *cost))
    head = ("proposed by", "half", "rules", "valid", "lift > 0", "admitted", "confirmed", "tokens per call", "s per call")
    return table(head, lines)


def _by_step(figures: dict[str, dict[str, dict[str, dict[str, float]]]]) -> str:
    lines = [
        (name, half, step, *(_percent(one[key]) for key in ("problems_admitted", "problems_confirmed")), f"{one['best']:+.2f}")
        for name, halves in figures.items()
        for half, steps in halves.items()
        for step, one in steps.items()
    ]
    return table(("proposed by", "half", "after", "problems with a rule", "confirmed", "best lift"), lines)


def _best_rules(results: Sequence[Result], contenders: Sequence[str]) -> str:
    seen: dict[tuple[str, str], Result] = {}
    for result in results:
        seen.setdefault((result.contender, result.problem), result)
    lines = [
        (
            problem,
            name,
            seen[name, problem].steps["fitted"].best_rule or "none",
            f"{seen[name, problem].steps['fitted'].best:+.2f}",
        )
        for problem in dict.fromkeys(result.problem for result in results)
        for name in contenders
    ]
    return table(("problem", "proposed by", "best rule after repair and fit", "fresh lift"), lines)


_NOTES = (
    "Rules are distinct rules of all calls, as written. Valid: usable rules among those written. Lift > 0: held-out lift "
    "above 0. Admitted: its interval is above 0. Confirmed: it is so on fresh episodes as well, which nothing else has seen.",
    "Problems with a rule: share of the problems with at least one admitted rule. Best lift: of the admitted rule with the "
    "highest lower bound its lift on fresh episodes, in standard deviations of the return, 0 if none, mean over the problems.",
    f"Random rules: mean over {RANDOM_SEEDS} seeds of as many calls and rules per call, drawn from the same calls' schema.",
)


def _plain(result: Result) -> dict[str, Any]:
    calls = [
        {
            "form": answer.form,
            "rules": [str(rule) for rule in answer.rules],
            "valid": answer.valid,
            "failure": answer.failure,
            "seconds": round(answer.seconds, 2),
            "tokens": answer.tokens,
        }
        for answer in result.answers
    ]
    steps = {step: asdict(outcome) for step, outcome in result.steps.items()}
    return {"proposed_by": result.contender, "problem": result.problem, "half": result.half, "calls": calls, "steps": steps}


def default_problems(half: str, quick: bool) -> tuple[str, ...]:
    """
    :param half: ``development``, ``report`` or ``both``
    :param quick: one problem per half
    :return: names
    """
    halves = HALVES if half == "both" else (half,)
    return tuple(name for one in halves for name in problem_names(one)[: 1 if quick else None])
