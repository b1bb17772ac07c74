"""``sb3-nser rules show|check|diff``: what a person sees of a rules file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sb3_nser.cli import main
from sb3_nser.rules import Evidence, RuleBook, parse_rule

GOOD = "IF pole_angle > 0.1 THEN push_right"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    """A book as training leaves it: rules admitted with moved thresholds, one pinned, one switched off, one on its prior."""
    book = RuleBook()
    texts = (
        GOOD,
        "IF pole_angle < 0 THEN push_left",
        "IF cart_position > 1 THEN push_left",
        "IF cart_velocity < 0 THEN push_left",
    )
    book.propose([parse_rule(text).model_copy(update={"source": "llm"}) for text in texts], 100)
    found = Evidence("supported", 2.5, 1.25, 3.75, 0.9, 60, 40, 0.12, 0.6, 1000, 50)
    book.judge(parse_rule(texts[0]).key, found, {"theta": [0.2], "tau": [0.1], "scale": [1.0], "confidence": 0.875}, 200)
    book.judge(parse_rule(texts[3]).key, Evidence("no_evidence", body_rate=0.3, rows=100), None, 200)
    file = tmp_path / "rules.yaml"
    text = book.to_yaml()
    for rule, line in ((texts[1], "pinned: true"), (texts[2], "enabled: false")):
        before, item, after = text.partition(f"- rule: {rule}\n")
        name = line.split(":")[0]
        text = before + item + after.replace(f"{name}: {'true' if name == 'enabled' else 'false'}", line, 1)
    file.write_text(text)
    return file


def test_show_is_a_table_of_state_confidence_lift_rates_and_origin(judged: Path, capsys: Capture) -> None:
    assert main(["rules", "show", str(judged)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["state", "confidence", "lift", "interval", "fires", "acts", "origin", "rule"]
    row = next(line for line in lines if line.endswith(GOOD))
    assert row.split()[:9] == ["admitted", "0.88", "+2.5", "[+1.25,", "+3.75]", "12", "%", "60", "%"]
    assert lines[lines.index(row) + 1].strip() == "fitted: IF pole_angle > 0.2 THEN push_right"
    states = {line.partition("IF ")[2]: line.split()[0] for line in lines if "IF " in line and "fitted" not in line}
    assert states["pole_angle < 0 THEN push_left"] == "pinned"
    assert states["cart_position > 1 THEN push_left"] == "off"
    assert states["cart_velocity < 0 THEN push_left"] == "prior"
    main(["rules", "show", str(judged), "--json"])
    data = json.loads(capsys.readouterr().out)
    first = next(item for item in data if item["rule"] == GOOD)
    assert (first["lift"], first["low"], first["body_rate"], first["origin"]) == (2.5, 1.25, 0.12, "llm")
    assert next(item for item in data if item["state"] == "prior")["lift"] is None  # JSON knows no NaN


def test_check_is_silent_about_a_sound_file(judged: Path, capsys: Capture) -> None:
    assert main(["rules", "check", str(judged), "--env", "CartPole-v1", "--episodes", "0"]) == 0
    assert capsys.readouterr().out.endswith("4 rules, no problems (names of the vocabulary 'cartpole')\n")


BAD = f"""\
rules:
- IF pole_angel > 0.1 THEN push_right
- IF pole_angle > 0.1 THEN push_rigth
- {{rule: {GOOD}, pined: true}}
- {GOOD}
- IF pole angle
- IF pole_angle > 0.10 THEN push_right
- IF pole_angle > 0.2 THEN push_left
- IF pole_angle > 1 AND pole_angle < 0 THEN push_left
- IF cart_position > 4.7 THEN push_left
- {{rule: IF cart_velocity < 1000000 THEN push_right, pinned: true}}
"""


def test_check_names_every_problem_with_its_place_and_the_nearest_name(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    assert main(["rules", "check", str(file), "--env", "CartPole-v1", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    by_place = {(item["kind"], tuple(item["rules"])): item["message"] for item in found}
    assert "did you mean 'pole_angle'" in by_place["invalid", (1,)]
    assert "did you mean 'push_right'" in by_place["invalid", (2,)]
    assert "Did you mean 'pinned'" in by_place["unreadable", (3,)]
    assert "position" in by_place["unreadable", (5,)]
    assert "says the same as rule 4" in by_place["duplicate", (4, 6)]
    assert "prefer different actions" in by_place["contradiction", (4, 7)]
    assert "cannot be above 1 and below 0" in by_place["invalid", (8,)]
    assert "never fires" in by_place["firing", (9,)] and "random episodes" in by_place["firing", (9,)]
    assert "always fires" in by_place["firing", (10,)]
    # without the environment, only what the file says about itself
    assert main(["rules", "check", str(file)]) == 1
    out = capsys.readouterr().out
    assert f"{file}: rule 8: " in out and "pole_angel" not in out and "names were not checked: give --env" in out


def test_of_two_rules_that_clash_the_one_that_stands_first_is_named_first(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "clash.yaml"
    file.write_text("rules:\n- IF z > 0.2 THEN stay\n- IF z > 0.1 THEN go\n")
    assert main(["rules", "check", str(file)]) == 1
    said = "rules 1 and 2: 'IF z > 0.2 THEN stay' and 'IF z > 0.1 THEN go' prefer different actions (stay and go)"
    assert said in capsys.readouterr().out


def test_known_invalid_and_refused_rules_of_a_book_are_no_mistakes_of_the_file(tmp_path: Path, capsys: Capture) -> None:
    book = RuleBook()
    book.propose(
        [parse_rule("IF x > 1 AND x < 0 THEN go"), parse_rule("IF x > 1 THEN go"), parse_rule("IF x > 1 THEN stay")], 0
    )
    book.judge("IF x > 1 THEN stay", Evidence("refuted", -1.0, -2.0, -0.5, 0.9, 50, 50, 0.2, 0.5, 500, 20), None, 1)
    file = tmp_path / "book.yaml"
    file.write_text(book.to_yaml())
    assert main(["rules", "check", str(file)]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("first", "second", "status", "words"),
    [
        ("IF a > 0.1 AND b < 2 THEN go", "IF b < 2.0 AND NOT a < 0.10 THEN go", 0, []),
        ("IF a > 0.1 THEN go", "IF a > 0.25 THEN go", 1, ["~ IF a > 0.25 THEN go", "rule: IF a > 0.1 THEN go -> IF a > 0.25"]),
        ("IF a > 0.1 THEN go", "IF a > 0.1 THEN stay", 1, ["- IF a > 0.1 THEN go", "+ IF a > 0.1 THEN stay"]),
        ("IF a is 3 THEN go", "IF a is 4 THEN go", 1, ["- IF a is 3 THEN go", "+ IF a is 4 THEN go"]),  # names, not numbers
        ("IF obs_1 > 2 THEN go", "IF obs_2 > 2 THEN go", 1, ["- IF obs_1 > 2 THEN go", "+ IF obs_2 > 2 THEN go"]),
        (
            "{rule: IF a > 1 THEN go, pinned: true}",
            "IF a > 1 THEN go",
            1,
            ["pinned: true -> false", "status: admitted -> waiting"],
        ),
        ("{rule: IF a > 1 THEN go, confidence: 0.50}", "IF a > 1 THEN go", 0, []),
    ],
)
def test_diff_compares_what_rules_say_not_how_it_is_written(
    tmp_path: Path, capsys: Capture, first: str, second: str, status: int, words: list[str]
) -> None:
    files = tmp_path / "a.yaml", tmp_path / "b.yaml"
    common = "IF z > 9 THEN go"
    files[0].write_text(f"rules:\n- {common}\n- {first}\n")
    files[1].write_text(f"format: 1\nrules:\n- {second}\n- {common}\n")
    assert main(["rules", "diff", *map(str, files)]) == status
    out = capsys.readouterr().out
    assert all(word in out for word in words) and common not in out and bool(out) == bool(status)
    assert main(["rules", "diff", str(files[1]), str(files[0])]) == status  # both ways


def test_diff_tells_confidence_and_fitted_thresholds_but_not_evidence(judged: Path, tmp_path: Path, capsys: Capture) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(judged.read_text().replace("support: 60", "support: 61"))
    assert main(["rules", "diff", str(judged), str(other)]) == 0
    other.write_text(judged.read_text().replace("confidence: 0.875", "confidence: 0.5").replace("- 0.2\n", "- 0.3\n"))
    assert main(["rules", "diff", str(judged), str(other), "--json"]) == 1
    (change,) = json.loads(capsys.readouterr().out)["changed"]
    assert change["fields"]["confidence"] == ["0.875", "0.5"]
    assert change["fields"]["fitted_rule"] == ["IF pole_angle > 0.2 THEN push_right", "IF pole_angle > 0.3 THEN push_right"]


def test_trouble_is_a_sentence_and_a_status(tmp_path: Path, capsys: Capture) -> None:
    good = tmp_path / "good.yaml"
    good.write_text(f"rules: [{{rule: {GOOD}}}]\n")
    (tmp_path / "broken.yaml").write_text("rules: [")
    (tmp_path / "binary.yaml").write_bytes(bytes(range(256)))
    (tmp_path / "list.yaml").write_text(f"- {GOOD}\n")
    (tmp_path / "misspelt.yaml").write_text(f"rule: [{{rule: {GOOD}}}]\n")
    (tmp_path / "huge.yaml").write_bytes(b"# x\n" * 3_000_000)
    for name, words in (
        ("absent", "No such file"),
        ("broken", "not valid YAML"),
        ("binary", "cannot be read"),
        ("huge", "no rules"),
        ("list", "begins with a line 'rules:'"),
        ("misspelt", "Did you mean 'rules'?"),
    ):
        file = str(tmp_path / f"{name}.yaml")
        assert main(["rules", "diff", str(good), file]) == 2
        assert main(["rules", "show", file]) == 1
        assert main(["rules", "check", file]) == 1
        out = capsys.readouterr()
        assert words in out.err + out.out and "Traceback" not in out.err
    for env, words in (("CartPol-v1", "cannot be made"), ("no_such_module:Tank-v0", "no_such_module")):
        assert main(["rules", "check", str(good), "--env", env]) == 1
        assert words in capsys.readouterr().err
    assert main(["rules", "show", ""]) == 1
    assert "names no file" in capsys.readouterr().err
    assert main(["rules", "check", str(good), "--env", "CartPole-v1", "--episodes", "many"]) == 1
    assert "--episodes='many'" in capsys.readouterr().err


def test_what_is_no_name_of_a_module_is_a_sentence(judged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "check", str(judged), "--env", "..:CartPole-v1"]) == 1
    assert "the module '..' is missing" in capsys.readouterr().err
