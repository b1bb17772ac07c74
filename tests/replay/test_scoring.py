"""Scores: when rows are scored, how credit spreads backwards, which episodes are whole."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sb3_nser.replay.ring as ring
import sb3_nser.replay.scoring as scoring
from sb3_nser.errors import NSERError
from sb3_nser.replay.trace import TRACE_FLOOR, carry_back, spread_back

from .helpers import fill, make


def trace_by_hand(scores, ends, decay):
    out = scores.copy()
    for env in range(out.shape[1]):
        for t in range(len(out)):
            for later in range(t, len(out)):
                faded = decay ** (later - t) * scores[later, env]
                if later == t or faded >= TRACE_FLOOR:
                    out[t, env] = max(out[t, env], faded)
                if ends[later, env]:
                    break
    return out


@given(st.integers(0, 2**32 - 1), st.integers(1, 70), st.integers(1, 3), st.sampled_from([0.0, 0.3, 0.8, 0.99, 1.0]))
@settings(max_examples=60, deadline=None)
def test_trace_against_the_definition(seed, steps, n_envs, decay):
    rng = np.random.default_rng(seed)
    scores = rng.random((steps, n_envs)) * (rng.random((steps, n_envs)) < 0.2)
    ends = rng.random((steps, n_envs)) < 0.1
    expected = trace_by_hand(scores, ends, decay)
    np.testing.assert_allclose(spread_back(scores, ends, decay), expected, atol=2 * TRACE_FLOOR)
    cut = steps // 2  # the same in two parts, the later one scored after the earlier one
    if decay > 0 and 0 < cut < steps:
        later = spread_back(scores[cut:], ends[cut:], decay)
        earlier = spread_back(scores[:cut], ends[:cut], decay)
        np.testing.assert_allclose(carry_back(later[0], earlier, ends[:cut], decay), expected[:cut], atol=2 * TRACE_FLOOR)


class Recorder:
    """Scores rows by number, and remembers how it was called."""

    def __init__(self, scores):
        self.scores = np.asarray(scores, dtype=float)
        self.calls = []

    def __call__(self, transitions):
        numbers = transitions.observations[:, 0].astype(int)
        self.calls.append(numbers.tolist())
        return self.scores[numbers]


def test_c10_rows_just_added_are_scored_before_the_next_draw_in_one_call():
    scorer = Recorder(np.linspace(0, 1, 100))
    buffer = make(trace_decay=0.0, n_envs=2, buffer_size=60)
    buffer.set_scorer(scorer)  # on an empty buffer
    with pytest.raises(NSERError, match="empty"):
        buffer.sample(4)
    for number in range(0, 80, 5):
        fill(buffer, 5, start=number)
        scorer.calls.clear()
        buffer.sample(4)
        assert scorer.calls == [[n for n in range(number, number + 5) for _ in range(2)]]
    np.testing.assert_allclose(buffer.scores.reshape(30, 2)[:, 0], np.roll(scorer.scores[50:80], 20))
    scorer.calls.clear()
    buffer.sample(4)
    assert scorer.calls == [] and buffer.scores_complete


def test_where_every_step_is_followed_by_a_draw_new_rows_are_scored_some_at_a_time():
    scorer = Recorder(np.full(6000, 0.5))
    buffer = fill(make(5000, trace_decay=0.0), 640)
    buffer.set_scorer(scorer)
    while not buffer.scores_complete:
        buffer.sample(4)
    waited, before = [], len(scorer.calls)
    for number in range(640, 4200):
        fill(buffer, 1, start=number)
        buffer.sample(4)
        unscored = int((buffer.scores == 0).sum())
        assert unscored < scoring.SCORE_TOGETHER and 32 * unscored <= buffer.n_transitions
        waited.append(unscored)
    assert max(waited) == scoring.SCORE_TOGETHER - 1 and len(scorer.calls) - before < 100
    buffer.reset()
    fill(buffer, 1)
    buffer.sample(4)
    assert buffer.scores[0] == 0.5  # in a small buffer every row counts


def test_rescoring_comes_in_bounded_chunks_newest_first(monkeypatch):
    monkeypatch.setattr(scoring, "SCORE_CHUNK", 20)
    buffer = fill(make(100, trace_decay=0.0), 130)
    first = Recorder(np.full(300, 0.25))
    buffer.set_scorer(first)
    assert first.calls == [list(range(122, 130))] and not buffer.scores_complete  # tried on a few rows
    first.calls.clear()
    for chunk in range(5):
        assert not buffer.scores_complete
        buffer.sample(4)
        assert first.calls[-1] == list(range(110 - 20 * chunk, 130 - 20 * chunk))
    assert buffer.scores_complete and np.all(buffer.scores == 0.25)
    buffer.set_scorer(Recorder(np.full(300, 0.5)))
    buffer.sample(4)
    assert (buffer.scores == 0.5).sum() == 20 and (buffer.scores == 0.25).sum() == 80
    fill(buffer, 50, start=130)  # more new rows than a chunk: they overtake what is still stale
    for _ in range(6):
        buffer.sample(4)
    assert buffer.scores_complete and np.all(buffer.scores == 0.5)
    buffer.rescore()
    assert not buffer.scores_complete


def test_scores_are_0_without_a_scorer_and_written_ones_are_kept():
    buffer = fill(make(50), 20)
    buffer.set_scores([3], [0.3])
    buffer.sample(4)
    assert buffer.scores[3] == 0.3 and buffer.scores.sum() == 0.3 and buffer.mean_score == pytest.approx(0.015)
    buffer.set_scorer(Recorder(np.ones(50)))
    buffer.sample(4)
    assert buffer.mean_score == 1.0
    buffer.set_scorer(None)
    assert buffer.mean_score == 0.0 and buffer.rule_state is None
    np.testing.assert_allclose(buffer.probabilities(), 1 / 20)
    assert make().mean_score == 0.0


def test_td_errors_survive_rescoring_and_scores_survive_td_errors():
    buffer = fill(make(50, rule_warmup=0, trace_decay=0.0), 50)
    td, rng = np.linspace(0, 3, 50), np.random.default_rng(0)
    buffer.update_priorities(np.arange(50), td)
    buffer.set_scorer(Recorder(rng.random(50)))
    buffer.sample(4)
    np.testing.assert_array_equal(buffer.td_errors, td)
    before = buffer.scores
    buffer.update_priorities(np.arange(50), td[::-1])
    np.testing.assert_array_equal(buffer.scores, before)
    np.testing.assert_allclose(buffer._store.rule.leaves, before * (td[::-1] + 0.01) ** 0.6)


@pytest.mark.parametrize(
    "bad", [np.zeros(3), np.zeros((8, 1)), np.full(8, np.nan), np.full(8, 1.5), np.full(8, -0.5), ["a"] * 8, 0.5]
)
def test_a_bad_scorer_is_found_when_it_is_set(bad):
    buffer = fill(make(), 30)
    good = Recorder(np.full(100, 0.5))
    buffer.set_scorer(good, {"rules": ["good"]})
    with pytest.raises(NSERError, match="scorer must return"):
        buffer.set_scorer(lambda transitions: bad, {"rules": ["bad"]})
    buffer.sample(4)
    assert buffer.mean_score == 0.5 and buffer.rule_state == {"rules": ["good"]}


def test_a_bad_scorer_on_an_empty_buffer_is_found_at_the_first_draw():
    buffer = make()
    buffer.set_scorer(lambda transitions: np.full(len(transitions.rewards), 2.0))
    fill(buffer, 3)
    with pytest.raises(NSERError, match=r"2\.0 for transition 0 of 3"):
        buffer.sample(4)


def test_scorers_may_return_booleans_and_rounding_is_forgiven():
    buffer = fill(make(trace_decay=0.0), 4)
    buffer.set_scorer(lambda transitions: transitions.observations[:, 0] > 1)
    buffer.sample(1)
    assert buffer.scores.tolist() == [0, 0, 1, 1]
    buffer.set_scorer(lambda transitions: np.full(4, 1 + 1e-7, np.float32))
    buffer.sample(1)
    assert buffer.scores.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("every", [1, 3, 200])
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("decay", [0.5, 0.9, 1.0])
def test_credit_spreads_within_the_episode_however_the_rows_arrived(every, n_envs, decay):
    rng = np.random.default_rng(1)
    scorer = Recorder(rng.random(200) * (rng.random(200) < 0.05))
    buffer = make(60 * n_envs, n_envs=n_envs, trace_decay=decay)
    buffer.set_scorer(scorer)
    for number in range(0, 200, every):
        fill(buffer, min(every, 200 - number), start=number, episode=17)
        buffer.sample(2)
    numbers = np.arange(200)
    ends = (numbers + 1) % 17 == 0
    # an episode that was cut by the ring still got the credit of its later steps
    expected = trace_by_hand(scorer.scores[:, None], ends[:, None], decay)[140:]
    got = buffer.scores.reshape(60, n_envs)[numbers[140:] % 60]
    np.testing.assert_allclose(got, np.repeat(expected, n_envs, axis=1), atol=1e-5)
    while not buffer.scores_complete:
        buffer.sample(2)
    buffer.rescore()
    buffer.sample(2)
    np.testing.assert_allclose(buffer.scores.reshape(60, n_envs)[numbers[140:] % 60], got, atol=1e-5)


def test_credit_crosses_the_borders_of_rescored_chunks(monkeypatch):
    monkeypatch.setattr(scoring, "SCORE_CHUNK", 7)
    buffer = fill(make(60, trace_decay=0.9), 60, episode=30)
    scores = np.zeros(100)
    scores[[29, 59, 64]] = 1.0
    buffer.set_scorer(Recorder(scores))
    while not buffer.scores_complete:
        buffer.sample(2)
    np.testing.assert_allclose(buffer.scores, np.tile(0.9 ** np.arange(29, -1, -1), 2), atol=1e-5)
    buffer.rescore()
    buffer.sample(2)
    fill(buffer, 5, start=60, episode=30)
    buffer.sample(2)  # new rows while older ones are still stale
    while not buffer.scores_complete:
        buffer.sample(2)
    np.testing.assert_allclose(buffer.scores[:5], 0.9 ** np.arange(4, -1, -1))


def test_a_reset_between_learn_calls_ends_the_spread():
    scores = np.zeros(100)
    scores[7] = 1.0
    buffer = fill(make(50, trace_decay=0.5), 5)
    buffer.set_progress(0.0, restart=True)
    buffer.set_scorer(Recorder(scores))
    fill(buffer, 5, start=5)
    buffer.sample(2)
    np.testing.assert_allclose(buffer.scores, [0, 0, 0, 0, 0, 0.25, 0.5, 1, 0, 0])


def test_rules_warm_up_from_the_first_positive_score_and_may_decay():
    buffer = make(1000, rule_fraction="lin_0.5", rule_warmup=100, max_boost=1e9)
    scores = np.zeros(1000)
    scores[50:] = 1.0
    buffer.set_scorer(Recorder(scores))
    seen = {}
    for number in range(200):
        fill(buffer, 1, start=number)
        buffer.sample(4)
        seen[number] = buffer.rule_fraction_now
    assert seen[49] == seen[50] == 0.0
    assert seen[75] == pytest.approx(0.125) and seen[150] == seen[199] == 0.5
    buffer.set_progress(0.5)
    buffer.sample(4)
    assert buffer.rule_fraction_now == 0.25
    buffer.set_progress(1.0)
    buffer.sample(4)
    assert buffer.rule_fraction_now == 0.0


def test_one_rare_row_is_not_drawn_more_than_the_cap_allows():
    buffer = fill(make(1000, rule_warmup=0, uniform_fraction=0.0, max_boost=4.0), 1000)
    buffer.set_scores([17], [1.0])
    q = buffer.probabilities()
    others = np.delete(q, 17)
    assert q[17] / others.max() == pytest.approx(5.0)


def episodes_by_hand(buffer, numbers, dones, breaks=()):
    """(env, numbers) of whole episodes among all that were ever played, newest first."""
    found = []
    for env in range(buffer.n_envs):
        start = 0
        for number in numbers:
            if number in breaks:
                start = number
            if dones[number, env]:
                found.append((number, env, list(range(start, number + 1))))
                start = number + 1
    oldest = numbers[-1] + 1 - buffer.size() + buffer._head_excluded()
    return [(env, steps) for _, env, steps in sorted(found, reverse=True) if steps[0] >= oldest]


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("one_array", [False, True])
def test_complete_episodes(n_envs, one_array):
    rng = np.random.default_rng(n_envs)
    dones = rng.random((120, n_envs)) < 0.15
    buffer = make(40 * n_envs, n_envs=n_envs, optimize_memory_usage=one_array, handle_timeout_termination=not one_array)
    assert buffer.complete_episodes() == []
    envs = np.arange(n_envs)
    for number in range(120):
        if number in (30, 95):
            buffer.mark_break()
        obs = np.stack([np.full(n_envs, number), envs, envs], axis=1).astype(np.float32)
        infos = [{"TimeLimit.truncated": bool(d and number % 2)} for d in dones[number]]
        buffer.add(obs, obs + np.array([1, 0, 0]), envs % 2, 1000.0 * number + envs, dones[number], infos)
        expected = episodes_by_hand(buffer, range(number + 1), dones, breaks=(30, 95))
        episodes = buffer.complete_episodes()
        got = [(e.env, (buffer.transitions(e.indices).rewards // 1000).astype(int).tolist()) for e in episodes]
        assert got == expected
        for episode in episodes:
            last = buffer.transitions(episode.indices[-1:])
            assert np.all(episode.indices % n_envs == episode.env)
            assert episode.truncated == (not one_array and int(last.rewards[0]) // 1000 % 2 == 1)


def test_complete_episodes_newest_first_within_a_bound():
    buffer = fill(make(100), 95, episode=10)
    assert [e.indices[0] for e in buffer.complete_episodes()] == [80, 70, 60, 50, 40, 30, 20, 10, 0]
    assert [e.indices[0] for e in buffer.complete_episodes(25)] == [80, 70]
    assert [e.indices[0] for e in buffer.complete_episodes(3)] == [80]


@pytest.mark.parametrize("n_envs", [1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_looking_at_the_newest_rows_first_gives_the_same_episodes(monkeypatch, n_envs, seed):
    monkeypatch.setattr(ring, "FIRST_LOOK", 1)
    rng = np.random.default_rng(seed)
    chance = rng.choice([0.01, 0.5], size=n_envs)  # very long episodes beside very short ones
    buffer = make(200 * n_envs, n_envs=n_envs)
    for number in range(331):
        obs = np.full((n_envs, 3), number, np.float32)
        buffer.add(obs, obs, np.zeros(n_envs), np.zeros(n_envs), rng.random(n_envs) < chance, [{}] * n_envs)
    everything = buffer.complete_episodes()
    for bound in (1, 5, 20, 100, 400, 10_000):
        expected, total = [], 0
        for episode in everything:
            total += len(episode.indices)
            if expected and total > bound:
                break
            expected.append(episode)
        got = buffer.complete_episodes(bound)
        assert [e.indices.tolist() for e in got] == [e.indices.tolist() for e in expected]


def test_c22_transitions_are_the_stored_arrays():
    buffer = fill(make(100, n_envs=2), 30, episode=7, timeout=True)
    rows = buffer.transitions([13, 2])
    np.testing.assert_array_equal(rows.observations, [[6, 1, 0], [1, 0, 0]])
    np.testing.assert_array_equal(rows.next_observations, [[7, 1, 0], [2, 0, 0]])
    np.testing.assert_array_equal(rows.actions, [[1], [0]])
    np.testing.assert_array_equal(rows.rewards, [6001, 1000])
    np.testing.assert_array_equal(rows.dones, [1, 0])
    np.testing.assert_array_equal(rows.timeouts, [1, 0])
    rows.observations[:] = -1  # a copy
    assert buffer.observations.min() >= 0
