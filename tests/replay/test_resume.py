"""A run that was saved and goes on in a new process is the run that was never interrupted."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

import sb3_nser

from . import resume
from .helpers import fill, make


def test_c17_the_same_draws_and_gradient_steps_in_a_new_process(tmp_path):
    expected = {}
    for case in resume.CASES:
        folder = tmp_path / case
        folder.mkdir()
        model, callback = resume.build(case), resume.callback(case, folder)
        model.learn(401, callback=callback)
        resume.save(model, folder)
        expected[case] = resume.go_on(model, callback)
    root = str(sb3_nser.__path__[0]).removesuffix("sb3_nser")
    done = subprocess.run([sys.executable, resume.__file__, tmp_path], capture_output=True, text=True, cwd=root,
                          env={"PYTHONPATH": root, "PATH": "", "HOME": str(tmp_path)})  # fmt: skip
    assert done.returncode == 0, done.stderr
    for case in resume.CASES:
        got = pickle.loads((tmp_path / case / "later.pkl").read_bytes())
        for name, value in expected[case].items():
            np.testing.assert_array_equal(got[name], value, err_msg=f"{case}: {name}")
    assert expected["rules"]["scores"].max() > 0 and len(set(expected["rules"]["scores"])) > 10


class Score:
    def __init__(self):
        self.calls = 0

    def __call__(self, rows):
        self.calls += len(rows.rewards)
        return rows.observations[:, 0] % 5 == 0


def test_the_scorer_that_made_the_scores_need_not_make_them_again():
    buffer = fill(make(100), 70)
    buffer.set_scorer(Score(), {"rules": 1})
    buffer.sample(8)
    twin = pickle.loads(pickle.dumps(buffer))
    score = Score()
    twin.set_scorer(score, {"rules": 1}, keep_scores=True)
    assert twin.scores_complete
    np.testing.assert_array_equal(twin.scores, buffer.scores)
    fill(twin, 5, start=70)
    twin.sample(8)
    assert score.calls == 8 + 5  # tried on eight rows, then the new ones
    twin.set_scorer(score, {"rules": 1})
    assert not twin.scores_complete


def test_what_waited_to_be_scored_when_it_was_saved_still_does(monkeypatch):
    monkeypatch.setattr("sb3_nser.replay.scoring.SCORE_CHUNK", 20)
    buffer = fill(make(100, trace_decay=0.0), 70)
    buffer.set_scorer(Score())
    buffer.sample(8)
    twin = pickle.loads(pickle.dumps(buffer))
    twin.set_scorer(Score(), keep_scores=True)
    for _ in range(3):
        assert not twin.scores_complete
        twin.sample(8)
    np.testing.assert_array_equal(twin.scores, np.arange(70) % 5 == 0)


@pytest.mark.parametrize("one_array", [False, True])
@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("saved_twice", [False, True])
def test_an_episode_that_goes_on_after_loading_is_one_episode(one_array, goes_on, saved_twice):
    options = dict(optimize_memory_usage=one_array, handle_timeout_termination=not one_array, n_envs=2, trace_decay=0.5)
    buffer = fill(make(200, **options), 5)
    for _ in range(1 + saved_twice):
        buffer = pickle.loads(pickle.dumps(buffer))
    buffer.set_scorer(lambda rows: rows.observations[:, 0] == (5 if goes_on else 6))
    fill(buffer, 5, start=5 if goes_on else 6, episode=10)
    buffer.sample(4)
    assert (buffer.scores[8] == 0.5) == goes_on
    if goes_on:
        assert [len(episode.indices) for episode in buffer.complete_episodes()] == [10, 10]


def test_a_reset_that_is_known_of_is_an_end_whatever_follows():
    buffer = pickle.loads(pickle.dumps(fill(make(100, trace_decay=0.5), 5)))
    buffer.set_progress(0.0, restart=True)
    buffer.set_scorer(lambda rows: rows.observations[:, 0] == 5)
    fill(buffer, 5, start=5)
    buffer.sample(4)
    assert buffer.scores[4] == 0 and buffer.scores[5] == 1
