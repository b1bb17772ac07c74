"""The study file: what is compared with what, on which environments, how often and how it is measured."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sb3_nser.arguments import as_bool, as_int, as_number, closest
from sb3_nser.errors import ConfigurationError, printable

VARIANTS = (
    "uniform",
    "per",
    "lap",
    "nser",
    "nser-tree",
    "nser-handwritten",
    "nser-shuffled",
    "nser-random-rules",
    "per+success",
)
RULE_VARIANTS = ("nser", "nser-tree", "nser-handwritten", "nser-random-rules")
"""Variants in which rules weigh on replay, and whose scores ``nser-shuffled`` can shuffle."""
ALGORITHMS = {
    "DQN": "stable_baselines3",
    "SAC": "stable_baselines3",
    "TD3": "stable_baselines3",
    "DDPG": "stable_baselines3",
    "QRDQN": "sb3_contrib",
    "TQC": "sb3_contrib",
    "CrossQ": "sb3_contrib",
}
METRICS = ("auc", "final", "steps_to_threshold")
MAX_SEEDS, MAX_CELLS = 1_000, 20_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+\-=,\[\] ]{0,79}")


def _whole(name: str, low: int) -> BeforeValidator:
    return BeforeValidator(lambda value: as_int(name, value, low))


def _number(name: str, low: float = -1e300, high: float = 1e300) -> BeforeValidator:
    return BeforeValidator(lambda value: None if value is None else as_number(name, value, low, high))


def _label(name: str) -> BeforeValidator:
    def check(value: object) -> object:
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise ConfigurationError(
                f"{name}={value!r:.100} must be a name of at most 80 letters, digits and _.+-=,[] that begins with a letter "
                "or digit: files and table rows are called by it."
            )
        return value

    return BeforeValidator(check)


def _seeds(value: object) -> object:
    if isinstance(value, list):
        seeds = [as_int("seeds", seed, 0, 2**31 - 1) for seed in value]
        if len(set(seeds)) < len(seeds):
            raise ConfigurationError(f"seeds={value!r:.200} names a seed twice; give each once.")
    else:
        try:
            seeds = list(range(as_int("seeds", value, 1, MAX_SEEDS)))
        except ConfigurationError:
            raise ConfigurationError(
                f"seeds={value!r:.100} must be how many (10) or a list of whole numbers ([0, 1, 2]), without quotation marks."
            ) from None
    if not 0 < len(seeds) <= MAX_SEEDS:
        raise ConfigurationError(f"seeds has {len(seeds)} entries; give 1 to {MAX_SEEDS}.")
    return seeds


def _rules(value: object) -> object:
    if isinstance(value, str):
        value = [line for line in value.splitlines() if line.strip()]  # a block of text, one rule a line
    if value is not None and not isinstance(value, list):
        raise ConfigurationError(
            f"rules={value!r:.100} must be a list of rules such as 'IF pole_angle > 0.1 THEN push_right'."
        )
    return value


def _zoo(value: object) -> object:
    return as_bool("zoo", value)


class Part(BaseModel):
    """Base of all parts of a study file: frozen, and a key it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class EnvironmentSpec(Part):
    """
    :ivar id: Gymnasium id; ``module:Id-v0`` imports the module first
    :ivar name: what tables call it; default the id
    :ivar category: environments of one category are also looked at together
    :ivar kwargs: arguments of ``gymnasium.make``
    :ivar wrappers: innermost first: a class of ``gymnasium.wrappers`` or ``minigrid.wrappers`` by its name, any other by
        ``package.module.Class``; ``{Class: {argument: value}}`` gives arguments
    :ivar training_wrappers: the same, put around the environments of training alone, outside ``wrappers``:
        ``{RewardNoise: {scale: 0.1}}``, say, while evaluation keeps the task's own rewards
    :ivar vocabulary: ``auto`` or the name of a registered vocabulary
    :ivar n_envs: parallel copies to train in
    :ivar success: a number (an episode whose return is above it succeeds) or ``is_success`` (Gymnasium's key in the last
        step's info); the score is then the success rate, else the mean return
    :ivar threshold: the score that *steps to threshold* waits for
    :ivar range: lowest and highest score, to put environments on one scale; a success rate has ``[0, 1]``
    :ivar steps: step budget, if it is not the study's
    :ivar hyperparameters: of the algorithm, on top of the study's
    :ivar rules: hand-written rules: texts, or mappings as in ``rules.yaml``
    :ivar rules_file: the same in a file
    """

    id: str = Field(min_length=1, max_length=200)
    name: Annotated[str, _label("environments: name")] = ""
    category: str = Field(default="", max_length=80)
    kwargs: dict[str, Any] = {}
    wrappers: list[str | dict[str, Any]] = []
    training_wrappers: list[str | dict[str, Any]] = []
    vocabulary: str = "auto"
    n_envs: Annotated[int, _whole("n_envs", 1)] = 1
    success: Literal["is_success"] | Annotated[float, _number("success")] | None = None
    threshold: Annotated[float | None, _number("threshold")] = None
    range: tuple[float, float] | None = None
    steps: Annotated[int, _whole("steps", 1)] | None = None
    hyperparameters: dict[str, Any] = {}
    rules: Annotated[list[str | dict[str, Any]] | None, BeforeValidator(_rules)] = None
    rules_file: str | None = None

    @property
    def label(self) -> str:
        """What it is called."""
        return self.name or re.sub(r"[^A-Za-z0-9_.+\-=,\[\] ]", "-", self.id)

    @model_validator(mode="after")
    def _check(self) -> EnvironmentSpec:
        if self.range is not None and not self.range[0] < self.range[1]:
            raise ConfigurationError(f"environment {self.id}: range={list(self.range)} must be [lowest, highest] score.")
        if self.rules is not None and self.rules_file is not None:
            raise ConfigurationError(f"environment {self.id}: give rules or rules_file, not both.")
        return self


class AlgorithmSpec(Part):
    """
    :ivar name: one of ``ALGORITHMS``
    :ivar policy: SB3's name of the policy
    :ivar zoo: True begins with the tuned hyper-parameters of rl-baselines3-zoo (extra ``zoo``)
    :ivar hyperparameters: arguments of the algorithm's class; ``n_steps`` reaches the buffers of all variants
    """

    name: str = "DQN"
    policy: str = "MlpPolicy"
    zoo: Annotated[bool, BeforeValidator(_zoo)] = False
    hyperparameters: dict[str, Any] = {}

    @model_validator(mode="after")
    def _check(self) -> AlgorithmSpec:
        if self.name not in ALGORITHMS:
            known = {name.lower(): name for name in ALGORITHMS}
            hint = closest(known.get(self.name.lower().replace("-", ""), self.name), ALGORITHMS)
            raise ConfigurationError(f"algorithm: name={self.name!r:.80} must be one of {', '.join(ALGORITHMS)}.{hint}")
        return self


class VariantSpec(Part):
    """
    :ivar variant: one of ``VARIANTS``
    :ivar name: what tables call it; default ``variant``
    :ivar of: for ``nser-shuffled``: the name of the variant whose scores it shuffles
    :ivar buffer: arguments of ``NSERReplayBuffer``, on top of the study's
    :ivar callback: arguments of ``RuleInductionCallback``, on top of the study's
    :ivar hyperparameters: arguments of the algorithm, on top of the environment's
    :ivar rules: for ``nser-handwritten``, in place of the environment's
    :ivar rules_file: the same in a file; ``{environment}`` is filled in
    :ivar replay_record: a record to answer from; ``{environment}``, ``{variant}`` and ``{seed}`` are filled in
    :ivar sweep: ``buffer.max_boost: [1, 4]`` makes a variant of each value, several keys one of each combination
    """

    variant: str
    name: Annotated[str, _label("variants: name")] = ""
    of: str | None = None
    buffer: dict[str, Any] = {}
    callback: dict[str, Any] = {}
    hyperparameters: dict[str, Any] = {}
    rules: Annotated[list[str | dict[str, Any]] | None, BeforeValidator(_rules)] = None
    rules_file: str | None = None
    replay_record: str | None = None
    sweep: dict[str, list[Any]] = {}

    @property
    def label(self) -> str:
        """What it is called."""
        return self.name or self.variant

    @model_validator(mode="after")
    def _check(self) -> VariantSpec:
        if self.variant not in VARIANTS:
            hint = closest(self.variant, VARIANTS)
            raise ConfigurationError(f"variants: {self.variant!r:.80} must be one of {', '.join(VARIANTS)}.{hint}")
        if self.rules is not None and self.rules_file is not None:
            raise ConfigurationError(f"variant {self.label}: give rules or rules_file, not both.")
        if self.of is not None and self.variant != "nser-shuffled":
            raise ConfigurationError(f"variant {self.label}: only nser-shuffled has 'of'.")
        if self.buffer and self.variant == "uniform":
            raise ConfigurationError(
                f"variant {self.label}: uniform is SB3's own buffer and takes no buffer arguments; "
                "n_steps and the like go into hyperparameters."
            )
        return self


class EvaluationSpec(Part):
    """
    :ivar every: environment steps between greedy evaluations; there is one at step 0 and one at the end
    :ivar episodes: of each evaluation
    :ivar seed: evaluation episode k of a run with seed s starts from ``seed + 1000 s + k``; training never uses these
    """

    every: Annotated[int, _whole("evaluation: every", 1)]
    episodes: Annotated[int, BeforeValidator(lambda v: as_int("evaluation: episodes", v, 1, 1000))] = 10
    seed: Annotated[int, BeforeValidator(lambda v: as_int("evaluation: seed", v, 0, 2**30))] = 1_000_000


class TargetSpec(Part):
    """
    :ivar variant: name of the variant
    :ivar metric: ``auc``, ``final`` or ``steps_to_threshold``
    :ivar statistic: ``iqm`` of the metric; against another variant ``difference`` (of the IQMs), ``reduction``
        (1 − ratio of the IQMs) or ``probability_of_improvement``
    :ivar against: name of the other variant
    :ivar environments: an environment's name, a category, or ``all``
    :ivar limit: still allowed
    :ivar better: whether a higher or a lower value is better
    :ivar name: what it is called; default its parts
    """

    variant: str
    metric: Literal["auc", "final", "steps_to_threshold"]
    statistic: Literal["iqm", "difference", "reduction", "probability_of_improvement"] = "iqm"
    against: str | None = None
    environments: str = "all"
    limit: Annotated[float, _number("targets: limit")]
    better: Literal["higher", "lower"] = "higher"
    name: str = Field(default="", max_length=200)

    @property
    def label(self) -> str:
        """What it is called."""
        against = f" against {self.against}" if self.against else ""
        return self.name or f"{self.variant}{against}: {self.statistic} of {self.metric}, {self.environments}"

    @model_validator(mode="after")
    def _check(self) -> TargetSpec:
        if (self.against is None) != (self.statistic == "iqm"):
            cure = "leave 'against' out" if self.statistic == "iqm" else "name the other variant with 'against'"
            raise ConfigurationError(f"target {printable(self.label, 120)!r}: {cure}.")
        return self


class Study(Part):
    """
    A whole study file.

    :ivar name: of the study; the default output folder is called by it
    :ivar environments: at least one
    :ivar algorithm: what learns, the same for all variants
    :ivar buffer: arguments of ``NSERReplayBuffer`` for every variant but ``uniform``
    :ivar callback: arguments of ``RuleInductionCallback`` for every variant with rules
    :ivar variants: at least one; a plain word stands for ``{variant: word}``
    :ivar seeds: a number n (0 to n − 1) or a list
    :ivar steps: environment steps of each run
    :ivar evaluation: how runs are measured
    :ivar compare_with: names of the variants that all others are compared with; default those that are ``uniform``,
        ``per`` and ``nser-shuffled``
    :ivar targets: limits that the study is held to
    :ivar resamples: bootstrap resamples of each interval
    """

    name: Annotated[str, _label("name")]
    environments: list[EnvironmentSpec] = Field(min_length=1)
    algorithm: AlgorithmSpec = AlgorithmSpec()
    buffer: dict[str, Any] = {}
    callback: dict[str, Any] = {}
    variants: list[VariantSpec] = Field(min_length=1)
    seeds: Annotated[list[int], BeforeValidator(_seeds)]
    steps: Annotated[int, _whole("steps", 1)]
    evaluation: EvaluationSpec
    compare_with: list[str] | None = None
    targets: list[TargetSpec] = []
    resamples: Annotated[int, BeforeValidator(lambda v: as_int("resamples", v, 100, 100_000))] = 5_000

    @model_validator(mode="before")
    @classmethod
    def _words(cls, data: Any) -> Any:
        if isinstance(data, dict):
            data = dict(data)
            for key, word in (("variants", "variant"), ("environments", "id")):
                if isinstance(data.get(key), list):
                    data[key] = [{word: item} if isinstance(item, str) else item for item in data[key]]
            if isinstance(data.get("algorithm"), str):
                data["algorithm"] = {"name": data["algorithm"]}
        return data

    @model_validator(mode="after")
    def _check(self) -> Study:
        for what, labels in (
            ("environments", [e.label for e in self.environments]),
            ("variants", [v.label for v in self.variants]),
        ):
            twice = next((label for label in labels if labels.count(label) > 1), None)
            if twice is not None:
                raise ConfigurationError(f"{what}: {twice!r} is there twice; give one of them a 'name' of its own.")
        return self
