"""The grid: one cell is one training run, described so fully that any process can run it."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from typing import Any

from pydantic import Field

from sb3_nser.arguments import closest
from sb3_nser.errors import ConfigurationError
from sb3_nser.study.spec import MAX_CELLS, RULE_VARIANTS, EvaluationSpec, Part, Study, VariantSpec

CELL_FORMAT = 1
"""Goes up when the same description would train another way."""
_SWEPT = ("buffer", "callback", "hyperparameters")


class Variant(Part):
    """
    A variant with everything filled in.

    :ivar name: what tables call it
    :ivar kind: one of ``VARIANTS``
    :ivar scores: which rules weigh on replay (one of ``RULE_VARIANTS``), empty for none; the kind itself unless shuffled
    :ivar of: name of the variant whose scores are shuffled
    :ivar buffer: arguments of the buffer
    :ivar callback: arguments of the rule callback
    :ivar hyperparameters: of the algorithm, on top of the environment's
    :ivar rules: hand-written rules that replace the environment's
    :ivar replay_record: record to answer from, placeholders not filled in yet
    """

    name: str
    kind: str
    scores: str = ""
    of: str | None = None
    buffer: dict[str, Any] = Field(default_factory=dict)
    callback: dict[str, Any] = Field(default_factory=dict)
    hyperparameters: dict[str, Any] = Field(default_factory=dict)
    rules: list[str | dict[str, Any]] | None = None
    replay_record: str | None = None


class Cell(Part):
    """
    One training run. Plain JSON values throughout, so that it can be sent anywhere.

    :ivar environment: name of the environment in tables
    :ivar variant: name of the variant
    :ivar seed: of the run
    :ivar steps: environment steps
    :ivar env: ``id``, ``kwargs``, ``wrappers``, ``vocabulary``, ``n_envs``, ``success``, and ``training_wrappers``
        if there are any
    :ivar algorithm: ``name``, ``policy``, ``hyperparameters``, ``normalize``
    :ivar replay: ``kind``, ``scores``, ``buffer``, ``callback``
    :ivar rules: the hand-written rules, for variants that use them
    :ivar replay_record: path of a record, None for none
    :ivar record_sha256: its contents
    :ivar evaluation: how it is measured
    """

    environment: str
    variant: str
    seed: int
    steps: int
    env: dict[str, Any]
    algorithm: dict[str, Any]
    replay: dict[str, Any]
    rules: list[str | dict[str, Any]] | None = None
    replay_record: str | None = None
    record_sha256: str | None = None
    evaluation: EvaluationSpec
    format: int = CELL_FORMAT

    @property
    def key(self) -> str:
        """Name of its folder; another description has another key, wherever its record lies."""
        content = json.dumps(self.model_dump(mode="json", exclude={"replay_record"}), sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:10]
        words = [re.sub(r"[^A-Za-z0-9_.+\-]", "_", text)[:60] for text in (self.environment, self.variant)]
        return f"{words[0]}--{words[1]}--seed{self.seed}--{digest}"


def resolve_variants(study: Study) -> list[Variant]:
    """
    :param study: a checked study
    :return: its variants in order, sweeps spelt out, shuffled ones with what they shuffle
    :raises ConfigurationError: if ``of``, ``compare_with`` or a target names a variant that is not there
    """
    spelt = [one for spec in study.variants for one in _swept(spec)]
    names = [spec.label for spec in spelt]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigurationError(f"variants: {twice!r} is there twice; give one of them a 'name' of its own.")
    resolved: dict[str, Variant] = {}
    for spec in spelt:
        if spec.variant != "nser-shuffled":
            resolved[spec.label] = _resolve(spec, study)
    for spec in spelt:
        if spec.variant == "nser-shuffled":
            resolved[spec.label] = _shuffled(spec, resolved, study)
    _check_names(study, names)
    return [resolved[name] for name in names]


def baselines(study: Study, variants: list[Variant], variant: Variant) -> list[str]:
    """
    :param study: the study
    :param variants: all of it
    :param variant: the one that is compared
    :return: names of the variants it is compared with; of the shuffled ones only those that shuffle its own scores, if any do
    """
    if study.compare_with is not None:
        return [name for name in study.compare_with if name != variant.name]
    found = [other.name for other in variants if other.kind in ("uniform", "per") and other.name != variant.name]
    if variant.kind == "nser-shuffled":
        return found
    controls = [other for other in variants if other.kind == "nser-shuffled"]
    own = [other for other in controls if other.of == variant.name]
    return found + [other.name for other in (own or controls)]


def grid(count: int, environments: int) -> None:
    """:raises ConfigurationError: if the grid is absurdly large"""
    if count > MAX_CELLS:
        raise ConfigurationError(f"the study has {count} runs ({environments} environments); at most {MAX_CELLS} are run.")


def _swept(spec: VariantSpec) -> list[VariantSpec]:
    if not spec.sweep:
        return [spec]
    for key, values in spec.sweep.items():
        part, _, argument = key.partition(".")
        if part not in _SWEPT or not argument:
            hint = closest(part, _SWEPT)
            raise ConfigurationError(
                f"variant {spec.label}: sweep key {key!r} must be buffer.X, callback.X or hyperparameters.X.{hint}"
            )
        if not values:
            raise ConfigurationError(f"variant {spec.label}: sweep {key} needs a list of values.")
    spelt = []
    for chosen in itertools.product(*spec.sweep.values()):
        parts: dict[str, dict[str, Any]] = {part: dict(getattr(spec, part)) for part in _SWEPT}
        words = []
        for key, value in zip(spec.sweep, chosen, strict=True):
            part, _, argument = key.partition(".")
            parts[part][argument] = value
            words.append(f"{argument}={value}")
        name = f"{spec.label} {' '.join(words)}"
        spelt.append(VariantSpec.model_validate({**spec.model_dump(), **parts, "name": name, "sweep": {}}))
    return spelt


def _resolve(spec: VariantSpec, study: Study) -> Variant:
    kind = spec.variant
    scores = kind if kind in RULE_VARIANTS else ""
    if spec.callback and not scores:
        raise ConfigurationError(f"variant {spec.label}: {kind} asks nobody for rules, so it takes no callback arguments.")
    if spec.rules is not None and scores != "nser-handwritten":
        raise ConfigurationError(f"variant {spec.label}: rules belong to nser-handwritten.")
    if spec.replay_record is not None and scores != "nser":
        raise ConfigurationError(f"variant {spec.label}: replay_record belongs to nser.")
    given = {"uniform": {}, "lap": {"priority": "lap", "alpha": 0.4, "uniform_fraction": 0.0}}.get(kind)
    buffer = {} if kind == "uniform" else {**study.buffer, **(given or {}), **spec.buffer}
    return Variant(
        name=spec.label,
        kind=kind,
        scores=scores,
        buffer=buffer,
        callback={**study.callback, **spec.callback} if scores else {},
        hyperparameters=spec.hyperparameters,
        rules=spec.rules,
        replay_record=spec.replay_record,
    )


def _shuffled(spec: VariantSpec, resolved: dict[str, Variant], study: Study) -> Variant:
    candidates = {name: variant for name, variant in resolved.items() if variant.scores or variant.kind == "per+success"}
    if spec.of is None and len(candidates) != 1:
        found = "none" if not candidates else ", ".join(candidates)
        raise ConfigurationError(
            f"variant {spec.label}: say with 'of' which variant's scores are shuffled; candidates here: {found}."
        )
    of = next(iter(candidates)) if spec.of is None else spec.of
    if of not in candidates:
        known = ", ".join(candidates) or "none"
        hint = closest(of, candidates)
        raise ConfigurationError(f"variant {spec.label}: of={of!r:.80} must name a variant with scores: {known}.{hint}")
    base = candidates[of]
    changes = {
        "name": spec.label,
        "kind": "nser-shuffled",
        "scores": base.scores or base.kind,
        "of": of,
        "buffer": {**base.buffer, **spec.buffer, "shuffle_scores": True},
        "callback": {**base.callback, **spec.callback},
        "hyperparameters": {**base.hyperparameters, **spec.hyperparameters},
        "rules": spec.rules if spec.rules is not None else base.rules,
        "replay_record": spec.replay_record or base.replay_record,
    }
    return Variant.model_validate({**base.model_dump(), **changes})


def _check_names(study: Study, names: list[str]) -> None:
    places = {environment.label for environment in study.environments} | {"all"}
    places |= {environment.category for environment in study.environments if environment.category}
    for name in study.compare_with or []:
        if name not in names:
            raise ConfigurationError(f"compare_with: no variant is called {name!r:.80}.{closest(name, names)}")
    for target in study.targets:
        for name in filter(None, (target.variant, target.against)):
            if name not in names:
                raise ConfigurationError(f"target {target.label!r}: no variant is called {name!r:.80}.{closest(name, names)}")
        if target.environments not in places:
            hint = closest(target.environments, places)
            raise ConfigurationError(
                f"target {target.label!r}: environments={target.environments!r:.80} must be 'all', a category or an "
                f"environment's name.{hint}"
            )
