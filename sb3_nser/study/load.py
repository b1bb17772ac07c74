"""From a file to a checked grid; whatever is wrong is said before anything trains."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from sb3_nser.arguments import closest
from sb3_nser.errors import ConfigurationError, printable
from sb3_nser.rules.files import PlainLoader
from sb3_nser.study.cells import Cell, Variant, grid, resolve_variants
from sb3_nser.study.spec import EnvironmentSpec, Study
from sb3_nser.study.zoo import tuned

MAX_FILE = 1_000_000


@dataclass(frozen=True)
class LoadedStudy:
    """
    A study and its grid.

    :param study: as the file says it
    :param text: the file itself
    :param variants: all variants, sweeps spelt out
    :param cells: all runs: environment by environment, then seed by seed, then variant by variant, so that every variant
        has a part of its runs early
    """

    study: Study
    text: str
    variants: list[Variant]
    cells: list[Cell]


def load_study(file: str | os.PathLike[str]) -> LoadedStudy:
    """
    :param file: a study file; paths in it are relative to its folder
    :return: the study
    :raises ConfigurationError: one sentence on the first thing that is wrong
    """
    path = Path(file)
    try:
        data = path.read_bytes()[: MAX_FILE + 1]
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or printable(error, 120)
        raise ConfigurationError(f"study file {os.fspath(file)!r} cannot be read ({reason}).") from None
    if len(data) > MAX_FILE:
        raise ConfigurationError(f"study file {path.name!r} is larger than {MAX_FILE} bytes; that is no study file.")
    return parse_study(text, path.parent, path.name)


def grid_json(loaded: LoadedStudy) -> str:
    """:return: variants and runs, for ``load_grid``"""
    variants = [variant.model_dump(mode="json") for variant in loaded.variants]
    return json.dumps({"variants": variants, "cells": [cell.model_dump(mode="json") for cell in loaded.cells]})


def load_grid(file: Path, grid_file: Path) -> LoadedStudy:
    """
    A study that has begun: rules and records that it named are in its grid, wherever their files are now.

    :param file: copy of the study file
    :param grid_file: what ``grid_json`` returned
    :return: the study
    :raises ConfigurationError: if either cannot be read
    """
    try:
        text = file.read_text(encoding="utf-8")
        parts = json.loads(grid_file.read_text(encoding="utf-8"))
        study = Study.model_validate(yaml.load(text, PlainLoader))
        variants = [Variant.model_validate(one) for one in parts["variants"]]
        cells = [Cell.model_validate(one) for one in parts["cells"]]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        reason = printable(error, 200)
        raise ConfigurationError(
            f"{file.parent} is no folder of a study, or it is damaged ({reason}); run 'sb3-nser compare' with this folder as "
            "--out again, which repeats no finished run."
        ) from None
    return LoadedStudy(study, text, variants, cells)


def parse_study(text: str, folder: Path, name: str = "study.yaml") -> LoadedStudy:
    """
    :param text: contents of a study file
    :param folder: paths in it are relative to this
    :param name: of the file, for messages
    :return: the study
    :raises ConfigurationError: one sentence on the first thing that is wrong
    """
    try:
        return _parse(text, folder)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from error


def _parse(text: str, folder: Path) -> LoadedStudy:
    try:
        content = yaml.load(text, PlainLoader)
    except (yaml.YAMLError, ValueError, RecursionError, TypeError, AttributeError, OverflowError) as error:
        raise ConfigurationError(f"not valid YAML: {printable(error, 300)}") from None
    if not isinstance(content, Mapping):
        raise ConfigurationError(
            "a study file is a mapping with the keys name, environments, variants, seeds, steps, evaluation."
        )
    try:
        study = Study.model_validate(dict(content))
    except ValidationError as error:
        raise ConfigurationError(_sentence(error)) from None
    variants = resolve_variants(study)
    grid(len(variants) * len(study.seeds) * len(study.environments), len(study.environments))
    cells = []
    for spec in study.environments:
        common = _environment(study, spec, folder)
        here = [_with_rules(variant, spec_rules(study, variant), folder, spec.label) for variant in variants]
        for seed in study.seeds:
            cells += [_cell(study, spec, common, variant, seed, folder) for variant in here]
    return LoadedStudy(study, text, variants, cells)


def spec_rules(study: Study, variant: Variant) -> str | None:
    """:return: the ``rules_file`` of a variant, None if it has none of its own"""
    return next((spec.rules_file for spec in study.variants if spec.label == (variant.of or variant.name)), None)


def _with_rules(variant: Variant, rules_file: str | None, folder: Path, environment: str) -> Variant:
    if rules_file is None:
        return variant
    if variant.scores != "nser-handwritten":
        raise ConfigurationError(f"variant {variant.name}: rules_file belongs to nser-handwritten.")
    return variant.model_copy(update={"rules": _read_rules(rules_file.replace("{environment}", environment), folder)})


def _read_rules(rules_file: str, folder: Path) -> list[str | dict[str, Any]]:
    from sb3_nser.induction.persistence import read_text

    text = read_text(folder / rules_file)
    try:
        data = yaml.load(text, PlainLoader)
    except (yaml.YAMLError, ValueError, RecursionError, TypeError, AttributeError, OverflowError) as error:
        raise ConfigurationError(f"rules_file={rules_file!r} is not valid YAML: {printable(error, 200)}") from None
    rules = data.get("rules") if isinstance(data, Mapping) else data
    if not isinstance(rules, list) or not rules:
        raise ConfigurationError(f"rules_file={rules_file!r} holds no rules; write a list under the key 'rules'.")
    return rules


def _environment(study: Study, spec: EnvironmentSpec, folder: Path) -> dict[str, Any]:
    """What all cells of an environment share."""
    zoo = tuned(study.algorithm.name, spec.id) if study.algorithm.zoo else {}
    env = {
        "id": spec.id,
        "kwargs": spec.kwargs,
        "wrappers": spec.wrappers or zoo.get("wrappers", []),
        "vocabulary": spec.vocabulary,
        "n_envs": zoo["n_envs"] if "n_envs" in zoo and "n_envs" not in spec.model_fields_set else spec.n_envs,
        "success": spec.success,
        # only where there are any, so that the keys of runs without stay what they were
        **({"training_wrappers": spec.training_wrappers} if spec.training_wrappers else {}),
    }
    algorithm = {
        "name": study.algorithm.name,
        "policy": study.algorithm.policy if not zoo or "policy" in study.algorithm.model_fields_set else zoo["policy"],
        "hyperparameters": {
            **zoo.get("hyperparameters", {}),
            **study.algorithm.hyperparameters,
            **spec.hyperparameters,
        },
        "normalize": zoo.get("normalize", False),
    }
    rules = _read_rules(spec.rules_file, folder) if spec.rules_file is not None else spec.rules
    return {"env": env, "algorithm": algorithm, "rules": rules}


def _cell(study: Study, spec: EnvironmentSpec, common: dict[str, Any], variant: Variant, seed: int, folder: Path) -> Cell:
    algorithm = dict(common["algorithm"])
    algorithm["hyperparameters"] = {**algorithm["hyperparameters"], **variant.hyperparameters}
    rules = None
    if variant.scores == "nser-handwritten":
        rules = variant.rules if variant.rules is not None else common["rules"]
        if not rules:
            raise ConfigurationError(
                f"variant {variant.name}: environment {spec.label} has no hand-written rules; give it 'rules' or 'rules_file'."
            )
    record = digest = None
    if variant.replay_record is not None:
        record, digest = _record(variant, spec, seed, folder)
    return Cell(
        environment=spec.label,
        variant=variant.name,
        seed=seed,
        steps=spec.steps or study.steps,
        env=common["env"],
        algorithm=algorithm,
        replay={"kind": variant.kind, "scores": variant.scores, "buffer": variant.buffer, "callback": variant.callback},
        rules=rules,
        replay_record=record,
        record_sha256=digest,
        evaluation=study.evaluation,
    )


def _record(variant: Variant, spec: EnvironmentSpec, seed: int, folder: Path) -> tuple[str, str]:
    name = str(variant.replay_record)
    for word, value in (("environment", spec.label), ("variant", variant.of or variant.name), ("seed", str(seed))):
        name = name.replace("{" + word + "}", value)
    path = (folder / name).resolve()
    try:
        return str(path), hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigurationError(
            f"variant {variant.name}: replay_record={name!r} cannot be read ({error.strerror or error})."
        ) from None


def _sentence(error: ValidationError) -> str:
    """:return: the first complaint of pydantic in one sentence, with the nearest key where a key is unknown"""
    # a key that is unknown explains one that is missing, so it goes first
    first = min(error.errors(), key=lambda item: item["type"] != "extra_forbidden")
    steps = list(first["loc"])
    place = ".".join(str(step) for step in steps)
    if first["type"] == "extra_forbidden":
        known = _keys(steps[:-1])
        where = f"{'.'.join(map(str, steps[:-1]))} has" if steps[1:] else "there is"
        return f"{where} no key {str(steps[-1])[:80]!r}.{closest(str(steps[-1]), known)} Known: {', '.join(known)}."
    if first["type"] == "missing":
        return f"the key {place!r} is missing."
    return f"{place}={printable(repr(first['input']), 80)}: {first['msg']}."


def _keys(steps: list[Any]) -> list[str]:
    model: Any = Study
    for step in steps:
        if isinstance(step, str) and isinstance(model, type) and issubclass(model, BaseModel):
            model = model.model_fields[step].annotation
            while get_origin(model) is not None:
                model = next((arg for arg in get_args(model) if isinstance(arg, type) and issubclass(arg, BaseModel)), str)
    return list(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []
