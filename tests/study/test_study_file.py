"""Study files: what they can say, and one sentence for whatever is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sb3_nser.errors import ConfigurationError
from sb3_nser.study.cells import Cell, baselines
from sb3_nser.study.load import load_study, parse_study
from sb3_nser.study.runner import check_cells
from study.tiny import RULES, TINY, changed, loaded, write

CARTPOLE = TINY["environments"][0]


def test_the_grid_is_every_environment_seed_and_variant() -> None:
    study = loaded(
        variants=["uniform", "per", {"variant": "nser-tree"}], seeds=[3, 5], environments=["CartPole-v1", "Acrobot-v1"]
    )
    assert len(study.cells) == 2 * 2 * 3
    assert [cell.variant for cell in study.cells[:3]] == ["uniform", "per", "nser-tree"]  # all variants have runs early
    assert {cell.seed for cell in study.cells} == {3, 5}
    assert len({cell.key for cell in study.cells}) == len(study.cells)
    cell = study.cells[0]
    assert Cell.model_validate_json(cell.model_dump_json()).key == cell.key  # it can be sent to another process


def test_arguments_add_up_from_the_study_to_the_variant() -> None:
    study = loaded(
        buffer={"alpha": 0.5, "beta": 0.5},
        variants=[
            {
                "variant": "nser-tree",
                "buffer": {"beta": 0.7},
                "callback": {"max_rules": 3},
                "hyperparameters": {"train_freq": 8},
            },
            "lap",
        ],
    )
    tree, lap = study.cells
    assert tree.replay["buffer"] == {"alpha": 0.5, "beta": 0.7}
    assert tree.replay["callback"] == {"every": 100, "max_rules": 3}
    assert tree.algorithm["hyperparameters"]["train_freq"] == 8
    assert lap.replay["buffer"]["priority"] == "lap" and "train_freq" not in lap.algorithm["hyperparameters"]


def test_a_sweep_makes_a_variant_of_each_combination() -> None:
    study = loaded(
        variants=[
            "per",
            {"variant": "nser-handwritten", "sweep": {"buffer.max_boost": [1, 4], "buffer.trace_decay": [0, 0.8]}},
        ]
    )
    assert [variant.name for variant in study.variants[1:]] == [
        f"nser-handwritten max_boost={boost} trace_decay={decay}" for boost in (1, 4) for decay in (0, 0.8)
    ]
    assert study.variants[2].buffer["trace_decay"] == 0.8 and study.variants[2].buffer["max_boost"] == 1


def test_a_shuffled_variant_is_what_it_shuffles_with_its_scores_dealt_out() -> None:
    study = loaded(
        variants=[
            "uniform",
            "per",
            {"variant": "nser-handwritten", "name": "mine", "buffer": {"max_boost": 9}},
            "nser-tree",
            {"variant": "nser-shuffled", "of": "mine"},
        ]
    )
    shuffled = study.variants[-1]
    assert shuffled.scores == "nser-handwritten" and shuffled.buffer["max_boost"] == 9 and shuffled.buffer["shuffle_scores"]
    mine, tree = study.variants[2:4]
    assert baselines(study.study, study.variants, mine) == ["uniform", "per", "nser-shuffled"]
    assert baselines(study.study, study.variants, tree) == ["uniform", "per", "nser-shuffled"]  # for want of one of its own
    assert baselines(study.study, study.variants, shuffled) == ["uniform", "per"]


def test_rules_may_stand_in_a_file_and_belong_to_the_cell(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"rules": [{"rule": RULES[0], "pinned": True}]}))
    environment = {**CARTPOLE, "rules_file": "mine.yaml"}
    del environment["rules"]
    file = write(tmp_path / "study.yaml", environments=[environment], variants=["nser-handwritten"])
    (before,) = load_study(file).cells
    assert before.rules == [{"rule": RULES[0], "pinned": True}]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"rules": [RULES[1]]}))
    assert load_study(file).cells[0].key != before.key  # other rules are another run


def test_a_variant_may_have_a_rules_file_for_each_environment(tmp_path: Path) -> None:
    for name, rule in (("CartPole-v1", RULES[0]), ("twin", RULES[1])):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({"rules": [{"rule": rule}]}))
    proposed = {"name": "proposed", "variant": "nser-handwritten", "rules_file": "{environment}.yaml"}
    environments = [CARTPOLE, {**CARTPOLE, "name": "twin"}]
    cells = loaded(tmp_path, environments=environments, variants=["nser-handwritten", proposed], seeds=1).cells
    assert [cell.rules for cell in cells] == [RULES, [{"rule": RULES[0]}], RULES, [{"rule": RULES[1]}]]


def test_a_record_is_found_by_environment_variant_and_seed(tmp_path: Path) -> None:
    for seed in (0, 1):
        (tmp_path / f"CartPole-v1-{seed}.jsonl").write_text(f'{{"seed": {seed}}}\n')
    variants = [{"variant": "nser", "replay_record": "{environment}-{seed}.jsonl"}]
    cells = loaded(tmp_path, variants=variants, seeds=2).cells
    assert [Path(str(cell.replay_record)).name for cell in cells] == ["CartPole-v1-0.jsonl", "CartPole-v1-1.jsonl"]
    assert cells[0].record_sha256 != cells[1].record_sha256
    with pytest.raises(ConfigurationError, match=r"replay_record='CartPole-v1-2.jsonl' cannot be read"):
        loaded(tmp_path, variants=variants, seeds=[2])


def test_tuned_hyperparameters_come_from_the_zoo() -> None:
    pytest.importorskip("rl_zoo3")
    (cell,) = loaded(algorithm={"name": "DQN", "zoo": True, "hyperparameters": {"batch_size": 32}}, variants=["uniform"]).cells
    given = cell.algorithm["hyperparameters"]
    assert given["train_freq"] == 256 and given["policy_kwargs"] == {"net_arch": [256, 256]}  # text in the zoo's own file
    assert given["batch_size"] == 32  # the study has the last word
    with pytest.raises(ConfigurationError, match="no tuned SAC for 'CartPole-v1'; give hyperparameters instead"):
        loaded(algorithm={"name": "SAC", "zoo": True})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"variants": ["unifrom"]}, "variants: 'unifrom' must be one of uniform, per, .* Did you mean 'uniform'?"),
        ({"variants": ["per", "per"]}, "'per' is there twice"),
        ({"variants": ["nser-shuffled"]}, "say with 'of' which variant's scores are shuffled; candidates here: none"),
        ({"variants": ["nser-tree", {"variant": "nser-shuffled", "of": "nser-tre"}]}, "Did you mean 'nser-tree'?"),
        ({"variants": [{"variant": "uniform", "buffer": {"alpha": 1}}]}, "uniform is SB3's own buffer"),
        ({"variants": [{"variant": "per", "callback": {"every": 5}}]}, "takes no callback arguments"),
        ({"variants": [{"variant": "per", "bufer": {}}]}, "variants.0 has no key 'bufer'. Did you mean 'buffer'?"),
        ({"variants": [{"variant": "per", "sweep": {"max_boost": [1]}}]}, "must be buffer.X, callback.X or hyperparameters.X"),
        ({"variants": []}, "variants=.*at least 1 item"),
        ({"seeds": "0, 1, 2"}, r"seeds='0, 1, 2' must be how many \(10\) or a list"),
        ({"seeds": ["0", "one"]}, "seeds='one' must be a number"),
        ({"seeds": [1, 1]}, "names a seed twice"),
        ({"seeds": 0}, "seeds=0 must be how many"),
        ({"steps": "many"}, "steps='many' must be a number"),
        ({"enviroments": []}, "there is no key 'enviroments'. Did you mean 'environments'?"),
        ({"environments": [{**CARTPOLE, "wrapers": []}]}, "environments.0 has no key 'wrapers'. Did you mean 'wrappers'?"),
        ({"environments": [{**CARTPOLE, "range": [1, 0]}]}, r"range=\[1.0, 0.0\] must be \[lowest, highest\]"),
        ({"environments": ["CartPole-v1"], "variants": ["nser-handwritten"]}, "CartPole-v1 has no hand-written rules"),
        ({"algorithm": "qr-dqn"}, "must be one of DQN, .* Did you mean 'QRDQN'?"),
        ({"evaluation": {"every": 0}}, "evaluation: every=0 must be a number of at least 1"),
        ({"compare_with": ["pre"]}, "compare_with: no variant is called 'pre'. Did you mean 'per'?"),
        ({"targets": [{"variant": "per", "metric": "auc", "limit": 1, "statistic": "reduction"}]}, "name the other variant"),
        ({"targets": [{"variant": "p", "metric": "auc", "limit": 1}]}, "no variant is called 'p'"),
        ({"name": "../../tmp"}, "must be a name"),
    ],
)
def test_mistakes_are_one_sentence(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        loaded(**changes)
    assert str(caught.value).startswith("study.yaml: ") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"environments": [{**CARTPOLE, "id": "CartPol-v1"}]}, "'CartPol-v1' cannot be made"),
        ({"environments": [{**CARTPOLE, "wrappers": ["FlattenObservaton"]}]}, "Did you mean 'FlattenObservation'?"),
        ({"algorithm": {"hyperparameters": {"learning_rat": 1}}}, "no argument 'learning_rat'. Did you mean 'learning_rate'?"),
        ({"algorithm": {"hyperparameters": {"policy_kwargs": {"net_arc": [8]}}}}, "cannot be built"),
        ({"buffer": {"max_bost": 1}}, "Did you mean 'max_boost'?"),
        ({"variants": ["nser-tree"], "callback": {"evry": 1}}, "Did you mean 'every'?"),
        ({"variants": ["nser-tree"], "callback": {"record": "x"}}, "'record' is decided by the study"),
        ({"variants": ["nser-handwritten"], "environments": [{**CARTPOLE, "rules": ["IF pole_angl > 0 THEN push_left"]}]},
         "variant nser-handwritten on CartPole-v1: rule .* did you mean 'pole_angle'?"),
        ({"variants": [{"variant": "nser", "callback": {"host": "127.0.0.1:9"}}]}, "variant nser: "),
    ],
)  # fmt: skip
def test_what_only_building_can_tell_is_told_before_training(changes: dict[str, Any], words: str) -> None:
    from sb3_nser.errors import NSERError

    with pytest.raises(NSERError, match=words):
        check_cells(loaded(**changes))


def test_rules_that_would_come_too_late_are_noted() -> None:
    (note,) = check_cells(loaded(variants=["nser-tree"], callback={"every": 5_000}))
    assert "its first question comes at step 5000 of 200" in note


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a study file is a mapping"),
        ("[1, 2]", "a study file is a mapping"),
        ("name: [", "not valid YAML"),
        ("a: &x {b: 1}\nc: *x", "aliases"),
        ("name: x", "the key 'environments' is missing"),
        ("a" * 2_000_000, "is larger than"),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_files_that_are_no_study(tmp_path: Path, text: str | bytes, words: str) -> None:
    file = tmp_path / "s.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigurationError, match=words):
        load_study(file)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_study(tmp_path / "absent.yaml")


def test_the_shipped_studies_are_sound() -> None:
    folder = Path(__file__).parents[2] / "examples" / "studies"
    files = sorted(folder.glob("*.yaml"))
    assert len(files) >= 2
    for file in files:
        assert check_cells(load_study(file)) == []


def test_numbers_may_be_texts_as_yaml_reads_them() -> None:
    text = yaml.safe_dump(changed()).replace("steps: 200", "steps: 2e2").replace("seeds: 1", "seeds: ['0', '1']")
    study = parse_study(text, Path("."))
    assert study.study.steps == 200 and study.study.seeds == [0, 1]
