"""The pages: verdicts and targets from simulated runs with a known effect, and one training run's folder."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import re
import warnings
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib.colors import to_rgb
from stable_baselines3 import DQN
from stable_baselines3.common.logger import configure

from sb3_nser import NSERReplayBuffer, RuleInductionCallback
from sb3_nser.cli import main
from sb3_nser.study import figures
from sb3_nser.study.cells import Cell
from sb3_nser.study.load import load_study
from sb3_nser.study.runner import Results
from study.tiny import RULES, TINY, write

CARTPOLE = {**TINY["environments"][0], "range": [0, 1], "threshold": 0.5}
VARIANTS = ["uniform", "per", "nser-handwritten", {"variant": "nser-shuffled", "of": "nser-handwritten"}]
NASTY = "<script>alert(1)</script>"


def simulated(cell: Cell, scores: list[float]) -> dict[str, Any]:
    """What ``run_cell`` would have written."""
    rows = [
        {"step": 50 * k, "score": s, "return": s, "success": None, "length": 1.0, "discounted_return": s, "value": s,
         "episodes": 2, "updates": k, "seconds": 1.0 * k, "rules_active": [RULES[0], NASTY]} for k, s in enumerate(scores)
    ]  # fmt: skip
    rule = {"rule": NASTY, "lift": 0.5, "state": "pinned"}
    return {
        "format": 1, "key": cell.key, "cell": {}, "versions": {"torch": "9"}, "initial": "a", "first_actions": [],
        "final": "b", "evaluations": rows, "rounds": [], "rules": [rule] if "nser" in cell.variant else [],
        "cost": {"seconds": 4.0, "evaluation_seconds": 1.0, "steps_per_second": 50.0},
    }  # fmt: skip


def begin(folder: Path) -> None:
    """Prepare a folder as ``compare`` does."""
    Results(folder).open(load_study(folder / "study.yaml")).release()


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten seeds of two environments; nser-handwritten gains 0.3 everywhere, which is far more than the noise."""
    folder = tmp_path_factory.mktemp("study")
    targets = [
        {"name": "faster", "variant": "nser-handwritten", "against": "uniform", "metric": "steps_to_threshold",
         "statistic": "reduction", "limit": 0.2},
        {"variant": "nser-handwritten", "against": "nser-shuffled", "metric": "auc", "statistic": "probability_of_improvement",
         "limit": 0.8},
        {"variant": "per", "metric": "final", "limit": 0.99},
    ]  # fmt: skip
    environments = [{**CARTPOLE, "name": "easy"}, {**CARTPOLE, "name": "hard"}]
    write(folder / "study.yaml", environments=environments, variants=VARIANTS, seeds=10, targets=targets, resamples=400)
    rng = np.random.default_rng(0)
    begin(folder)
    for cell in load_study(folder / "study.yaml").cells:
        level = 0.2 + 0.3 * (cell.variant == "nser-handwritten") + 0.02 * cell.seed + rng.normal(0, 0.02)
        place = folder / "cells" / cell.key
        place.mkdir(parents=True)
        curve = [0.0, level, level + 0.1, level + 0.2, level + 0.2]
        (place / "result.json").write_text(json.dumps(simulated(cell, curve)))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(["report", str(folder)]) == 0
    (folder / "printed.txt").write_text(printed.getvalue())
    return folder


def test_the_verdict_finds_what_is_there_and_nothing_else(study: Path) -> None:
    lines = (study / "printed.txt").read_text().splitlines()
    for place in ("easy", "hard", "all"):
        for other in ("uniform", "per", "nser-shuffled"):
            assert f"{place}: nser-handwritten against {other}: better" in lines
        assert f"{place}: uniform against per: not distinguishable" in lines
    assert "target faster: met" in "\n".join(lines)
    compared = pd.read_csv(study / "comparisons.csv")
    row = compared[(compared["group"] == "all") & (compared["metric"] == "auc") & (compared["variant"] == "nser-handwritten")]
    assert row["difference_value"].to_numpy() == pytest.approx([0.2625] * 3, abs=0.03)  # 0.3 over 3.5 of 4 intervals


def test_diagnostics_are_means_of_the_evaluations(study: Path) -> None:
    table, found = pd.read_csv(study / "evaluations.csv"), pd.read_csv(study / "diagnostics.csv")
    assert len(found) == len(table.drop_duplicates(["environment", "variant"]))
    for _, row in found.iterrows():
        mine = table[(table["environment"] == row["environment"]) & (table["variant"] == row["variant"])]
        ends = mine[mine["step"] == mine["step"].max()]
        assert row["value"] == pytest.approx(ends["value"].mean())
        assert row["coverage"] == pytest.approx(mine[mine["step"] > 0]["coverage"].mean(), nan_ok=True)


def test_targets_are_computed_from_the_evaluations(study: Path) -> None:
    faster, probability, final = json.loads((study / "targets.json").read_text())["targets"]
    runs = pd.read_csv(study / "runs.csv")

    def middle(variant: str, metric: str) -> float:
        values = np.sort(runs[runs["variant"] == variant][metric].to_numpy())
        return float(values[5:-5].mean())  # twenty runs without the quarter at either end

    expected = 1 - middle("nser-handwritten", "steps_to_threshold") / middle("uniform", "steps_to_threshold")
    assert faster["value"] == pytest.approx(expected) and faster["met"] and faster["better"] == "higher"
    assert probability["value"] > 0.9 and probability["name"].startswith("nser-handwritten against nser-shuffled")
    assert final["value"] == pytest.approx(middle("per", "final")) and not final["met"] and final["limit"] == 0.99


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def check_page(path: Path) -> None:
    """Nothing from elsewhere, fit for a phone, pictures in words."""
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert not any(tag in ("script", "link", "iframe") for tag, _ in page.tags)
    assert "@import" not in text and not re.search(r"url\(", text)
    for tag, attributes in page.tags:
        for name in ("src", "href"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:image/svg+xml;base64,"))
        if tag == "img":
            assert len(attributes["alt"] or "") > 20
            picture = base64.b64decode((attributes["src"] or "").partition(",")[2]).decode()
            assert picture.startswith("<svg") and "<script" not in picture
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in page.tags
    assert ("html", {"lang": "en"}) in page.tags
    anchors = {attributes["href"] for tag, attributes in page.tags if tag == "a"}
    assert anchors == {f"#{attributes['id']}" for tag, attributes in page.tags if tag == "h2"}


def test_the_page_of_a_study_stands_alone(study: Path) -> None:
    check_page(study / "report.html")
    text = (study / "report.html").read_text(encoding="utf-8")
    assert NASTY not in text and "&lt;script&gt;" in text  # rules are data
    for words in (
        "Targets",
        "Rules",
        "Cost",
        "Reproduce it",
        "sb3-nser compare study.yaml",
        "probability of improvement",
        "not met",
    ):
        assert words in text
    assert (study / "figures" / "easy-curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_partial_study_says_so_and_one_without_results_is_refused(study: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "study.yaml").write_text((study / "study.yaml").read_text())
    begin(tmp_path)
    assert main(["report", str(tmp_path)]) == 1
    assert "holds no finished run of this study" in capsys.readouterr().err
    for cell in load_study(study / "study.yaml").cells[:8]:
        place = tmp_path / "cells" / cell.key
        place.mkdir()
        (place / "result.json").write_text((study / "cells" / cell.key / "result.json").read_text())
    assert main(["report", str(tmp_path)]) == 0
    assert "72 runs of 80 not run yet" in (tmp_path / "report.html").read_text(encoding="utf-8")
    (final,) = [t for t in json.loads((tmp_path / "targets.json").read_text())["targets"] if t["limit"] == 0.99]
    assert final["value"] is None and not final["met"]  # one environment has no run: no number rather than a wrong one


def test_a_report_needs_no_file_that_the_study_was_made_from(study: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"rules": RULES}))
    environment = {"id": "CartPole-v1", "rules_file": "mine.yaml"}
    write(tmp_path / "study.yaml", environments=[environment], variants=["nser-handwritten"])
    (cell,) = load_study(tmp_path / "study.yaml").cells
    out = tmp_path / "out"
    Results(out).open(load_study(tmp_path / "study.yaml")).release()
    place = out / "cells" / cell.key
    place.mkdir()
    (place / "result.json").write_text(json.dumps(simulated(cell, [0.0, 1.0])))
    (tmp_path / "mine.yaml").unlink()
    assert main(["report", str(out)]) == 0
    (out / "grid.json").write_text("[")
    assert main(["report", str(out)]) == 1
    assert "it is damaged" in capsys.readouterr().err


def test_names_of_sweeps_leave_room_for_the_picture() -> None:
    names = [f"uniform learning_rate=0.000{k} gradient_steps=4 target_update_interval=1000" for k in range(12)]
    values = pd.DataFrame({"variant": names, "value": 1.0, "low": 0.5, "high": 1.5})
    curve = pd.concat([values.assign(step=step) for step in (0, 100)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns where axes have no room left
        for figure in (figures.intervals(values, names, "area", "score"), figures.curves(curve, names, "curve", "score")):
            assert figures.png(figure).startswith(b"\x89PNG")
            box = figure.axes[0].get_position()
            assert box.width * figure.get_size_inches()[0] > 1.5 and box.height * figure.get_size_inches()[1] > 1.5


def test_colours_stand_out_from_the_page() -> None:
    def luminance(colour: str) -> float:
        parts = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
        return float(np.dot(parts, [0.2126, 0.7152, 0.0722]))

    assert len(set(figures.COLOURS)) == 10
    for colour in figures.COLOURS:
        assert 1.05 / (luminance(colour) + 0.05) >= 3.0, colour  # WCAG for graphics
    looks = figures.style([str(k) for k in range(10)])
    assert len({look["marker"] for look in looks.values()}) == 10  # told apart without colour


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training run as a user leaves it."""
    folder = tmp_path_factory.mktemp("run")
    model = DQN(
        "MlpPolicy", "CartPole-v1", replay_buffer_class=NSERReplayBuffer, learning_starts=50, buffer_size=1_000, seed=0,
        policy_kwargs={"net_arch": [8]}, device="cpu",
    )  # fmt: skip
    model.set_logger(configure(str(folder), ["csv", "tensorboard"]))
    model.learn(
        600,
        log_interval=2,
        callback=RuleInductionCallback(
            inducer="random", every=200, blocking=True, save_rules=folder / "rules.yaml", record=folder / "induction.jsonl"
        ),
    )
    return folder


def test_one_training_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run)]) == 0
    assert "read: progress.csv, rules.yaml, induction.jsonl" in capsys.readouterr().out
    check_page(run / "report.html")
    text = (run / "report.html").read_text(encoding="utf-8")
    for words in ("Return of training episodes", "Rules", "Calls", "asked at step", "nser/llm_calls", "random"):
        assert words in text
    table = pd.read_csv(run / "scalars.csv")
    logged = pd.read_csv(run / "progress.csv")["rollout/ep_rew_mean"].dropna()
    assert table[table["tag"] == "rollout/ep_rew_mean"]["value"].tolist() == pytest.approx(logged.tolist())
    assert len(pd.read_csv(run / "rules.csv")) >= 1


def test_tensorboard_alone_is_enough_and_what_is_missing_is_said(run: Path, tmp_path: Path, capsys: Any) -> None:
    events = next(run.glob("events*"))
    (tmp_path / "DQN_1").mkdir()
    (tmp_path / "DQN_1" / events.name).write_bytes(events.read_bytes())
    assert main(["report", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "read: TensorBoard events in DQN_1" in out
    assert "missing: No rules.yaml, so no rules: give the callback save_rules=" in out and "No induction.jsonl" in out
    check_page(tmp_path / "report.html")
    (tmp_path / "DQN_2").mkdir()
    (tmp_path / "DQN_2" / events.name).write_bytes(events.read_bytes())
    assert main(["report", str(tmp_path)]) == 1
    assert "holds 2 runs (DQN_1, DQN_2); name the folder of one" in capsys.readouterr().err


def test_folders_without_a_run(tmp_path: Path, capsys: Any) -> None:
    assert main(["report", str(tmp_path)]) == 1
    assert "holds no training run. A report is made from TensorBoard events" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "absent")]) == 1
    assert "is no folder" in capsys.readouterr().err
    (tmp_path / "rules.yaml").write_text("rules: [{rule: nonsense}]")
    assert main(["report", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "cannot read rule 'nonsense'" in error and "Traceback" not in error
    (tmp_path / "rules.yaml").write_text("")
    assert main(["report", str(tmp_path)]) == 0
    assert "The rule book is empty" in (tmp_path / "report.html").read_text(encoding="utf-8")
