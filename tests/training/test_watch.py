"""A person edits rules.yaml while training runs (``watch=True``)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from stable_baselines3.common.callbacks import BaseCallback

from sb3_nser import NSERWarning, RuleInductionCallback
from sb3_nser.errors import ConfigurationError
from sb3_nser.rules import RuleBook
from scripted import CARTPOLE, Scripted, dqn

RIGHT = "IF pole_angular_velocity > 0.1 THEN push_right"
LEFT = "IF pole_angular_velocity < -0.1 THEN push_left"
OWN = "IF pole_angle > 0.05 THEN push_right"


class Person(BaseCallback):
    """Edits at given steps, and gives training the time to notice: at most 20 s until ``noticed`` says so."""

    def __init__(self, *edits: tuple[int, Callable[[], Any], Callable[[], bool]]) -> None:
        super().__init__()
        self.edits = list(edits)
        self.waiting: Callable[[], bool] | None = None
        self.until = 0.0

    def _on_step(self) -> bool:
        if self.waiting is not None:
            if self.waiting():
                self.waiting = None
            else:
                assert time.monotonic() < self.until, "the edit was never noticed"
                time.sleep(0.02)
        elif self.edits and self.num_timesteps >= self.edits[0][0]:
            _, edit, self.waiting = self.edits.pop(0)
            self.until = time.monotonic() + 20.0
            edit()
        return True


def edited(file: Path, change: Callable[[dict[str, dict[str, Any]]], Any]) -> None:
    """Change the file's rules, by text, as an editor would: whole file at once."""
    data = yaml.safe_load(file.read_text())
    rules = {item["rule"]: item for item in data["rules"]}
    change(rules)
    file.write_text(yaml.safe_dump({"format": 1, "rules": list(rules.values())}, sort_keys=False))


def active(callback: RuleInductionCallback) -> set[str]:
    return {str(entry.rule) for entry in callback.book.active()}


def test_pinned_edited_disabled_and_deleted_rules_take_effect_while_training_runs(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    callback = RuleInductionCallback(
        inducer=Scripted(CARTPOLE), every=500, max_calls=1, blocking=True, save_rules=file, watch=True
    )
    wrong = "IF pole_angular_velocity > 0.1 THEN push_left"

    def pin_and_disable(rules: dict[str, dict[str, Any]]) -> None:
        rules[wrong]["pinned"] = True  # whatever the data say
        rules[RIGHT]["enabled"] = False
        rules[OWN] = {"rule": OWN, "pinned": True}

    def change_text_and_delete(rules: dict[str, dict[str, Any]]) -> None:
        rules[LEFT]["rule"] = "IF pole_angular_velocity < -0.3 THEN push_left"
        del rules[wrong]

    person = Person(
        (
            700,
            lambda: edited(file, pin_and_disable),
            lambda: {wrong, OWN} <= active(callback) and RIGHT not in active(callback),
        ),
        (900, lambda: edited(file, change_text_and_delete), lambda: wrong not in callback.book),
    )
    model = dqn(learning_starts=50)
    model.learn(1_500, callback=[callback, person])
    assert person.waiting is None and not person.edits
    book = callback.book
    assert wrong not in book and LEFT not in book
    new = book["IF pole_angular_velocity < -0.3 THEN push_left"]
    assert new.rule.source == "user" and new.history and new.history[0][0] >= 1_000  # judged afresh, from then on
    assert OWN in active(callback) and not book[RIGHT].rule.enabled
    # the file and the buffer say the same as the book
    assert RuleBook.from_yaml(file.read_text()).active() == book.active()
    assert RuleBook.from_dict(model.replay_buffer.rule_state["book"]) == book
    # and replay follows: the pinned rule's rows score
    n = model.replay_buffer.size()
    model.replay_buffer.sample(32)
    angle, action = model.replay_buffer.observations[:n, 0, 2], model.replay_buffer.actions[:n, 0, 0]
    follows, against = (angle > 0.1) & (action == 1), (angle > 0.1) & (action == 0)
    assert model.replay_buffer.scores[:n][follows].mean() > model.replay_buffer.scores[:n][against].mean() + 0.1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("rules:\n- rule: IF pole_angle > 0.05 TH", "cannot read rule"),  # saved half way
        ("rules: [", "not valid YAML"),
        ("", "is empty"),
        ("rules:\n- rule: IF pole_angel > 0.05 THEN push_right\n", "did you mean 'pole_angle'"),
        ("\x00\xff binary", "cannot be read|not valid YAML"),
    ],
)
def test_a_broken_file_changes_nothing_is_told_once_and_is_not_written_to(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "rules.yaml"
    callback = RuleInductionCallback(
        inducer=Scripted(CARTPOLE), every=300, blocking=True, save_rules=file, watch=True, max_calls=1
    )
    broken = {"seen": 0}

    def spoil() -> None:
        file.write_bytes(content.encode("latin-1"))

    def waited() -> bool:
        broken["seen"] += 1
        return broken["seen"] > 40  # of at least 20 ms each

    good: dict[str, str] = {}
    person = Person(
        (500, lambda: (good.update(text=file.read_text()), spoil()), waited),
        (700, lambda: None, waited),
    )
    with pytest.warns(NSERWarning, match=words) as caught:
        dqn(learning_starts=50).learn(1_400, callback=[callback, person])  # judged again, so it would be written
    assert len([item for item in caught if issubclass(item.category, NSERWarning)]) == 1
    assert file.read_bytes() == content.encode("latin-1")
    before = RuleBook.from_yaml(good["text"])
    assert {entry.key for entry in callback.book.entries} == {entry.key for entry in before.entries}


def test_own_writes_are_no_edits_and_looking_costs_next_to_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    callback = RuleInductionCallback(
        inducer=Scripted(CARTPOLE), every=300, blocking=True, save_rules=tmp_path / "r.yaml", watch=True, verbose=1
    )
    dqn().learn(1_500, callback=callback)
    assert "rules were edited" not in capsys.readouterr().out
    started = time.perf_counter()
    for _ in range(1_000):
        callback._watch.poll(callback.book)
    assert time.perf_counter() - started < 0.5


def test_an_edit_at_the_very_end_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"rules:\n- rule: {OWN}\n  pinned: true\n")

    class Last(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 399:
                file.write_text(f"rules:\n- rule: {OWN}\n  enabled: false\n- {RIGHT}\n")
            return True

    callback = RuleInductionCallback(rules_file=file, save_rules=file, max_calls=0, watch=True, every=10_000)
    dqn().learn(400, callback=[callback, Last()])
    assert not callback.book.active() and RIGHT in callback.book
    assert "enabled: false" in file.read_text() and RIGHT in file.read_text()


def test_a_watched_rules_file_is_never_written_to(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"# my own comment\nrules:\n- {RIGHT}\n")
    callback = RuleInductionCallback(rules_file=file, save_rules=tmp_path / "out.yaml", max_calls=0, watch=True, every=200)
    text = f"# my own comment\nrules:\n- rule: {RIGHT}\n  pinned: true\n"
    person = Person(
        (300, lambda: file.write_text(text), lambda: RIGHT in active(callback) and callback.book[RIGHT].rule.pinned)
    )
    dqn().learn(800, callback=[callback, person])
    assert callback.book[RIGHT].evidence is not None  # what was measured before the edit is kept
    assert file.read_text() == text and "pinned: true" in (tmp_path / "out.yaml").read_text()


def test_a_link_stays_a_link_and_who_may_read_the_file_stays_too(tmp_path: Path) -> None:
    file, link = tmp_path / "mine.yaml", tmp_path / "link.yaml"
    file.write_text(f"rules:\n- {RIGHT}\n")
    file.chmod(0o600)
    link.symlink_to(file)
    dqn().learn(200, callback=RuleInductionCallback(rules_file=link, save_rules=file, max_calls=0, watch=True, every=10_000))
    assert link.is_symlink() and file.stat().st_mode & 0o777 == 0o600
    assert "evidence" in file.read_text() and link.read_text() == file.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.yaml", "mine.yaml"]


def test_watching_needs_a_file() -> None:
    with pytest.raises(ConfigurationError, match="watch=True needs a file"):
        RuleInductionCallback(inducer=Scripted(CARTPOLE), watch=True)
    with pytest.raises(ConfigurationError, match="watch='perhaps'"):
        RuleInductionCallback(inducer=Scripted(CARTPOLE), watch="perhaps", save_rules="r.yaml")
