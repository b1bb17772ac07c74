"""The control: scores keep their distribution and lose their meaning."""

import pickle

import numpy as np
import pytest
from scipy import stats

import sb3_nser.replay.scoring as scoring
from sb3_nser.errors import ConfigurationError
from sb3_nser.replay import ShuffledScores

from .helpers import chi_square, count, fill, make
from .test_her import make_her, play


def meaningful(transitions):
    """Rare scores with a plain meaning, different ones per environment: every tenth row."""
    number, env = transitions.observations[:, 0], transitions.observations[:, 1]
    return np.where(number % 10 == 0, (number % 7 + 1 + env) / 10, 0.0)


def pair(steps, n_envs=1, buffer_size=4000, between=0, **options):
    """The same rows and the same scorer twice, as they are and shuffled."""
    both = []
    for shuffle in (False, True):
        buffer = make(buffer_size, n_envs, shuffle_scores=shuffle, **options)
        buffer.set_scorer(meaningful)
        for start in range(0, steps, between or steps):
            fill(buffer, min(between or steps, steps - start), start, episode=25)
            buffer.sample(4)
        both.append(buffer)
    return both


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("trace_decay", [0.0, 0.8])
@pytest.mark.parametrize("between", [0, 1, 7])
@pytest.mark.parametrize("steps", [700, 2100])  # the ring of 1200 slots is part full, and overwritten
def test_the_very_same_scores_are_dealt_to_other_rows(n_envs, trace_decay, between, steps, monkeypatch):
    monkeypatch.setattr(scoring, "SCORE_TOGETHER", 1)  # rows that wait to be scored still bear what their slot bore before
    plain, shuffled = pair(steps, n_envs, 1200 * n_envs, between, trace_decay=trace_decay)
    assert plain.mean_score > 0 and shuffled.mean_score == pytest.approx(plain.mean_score)
    np.testing.assert_array_equal(np.sort(plain.scores), np.sort(shuffled.scores))
    positive = plain.scores > 0
    assert positive.any() and (shuffled.scores > 0)[positive].mean() < 0.9  # not in the same places


@pytest.mark.parametrize("n_envs", [1, 4])
def test_what_a_row_bears_tells_nothing_of_what_it_has_earned(n_envs):
    plain, shuffled = pair(8000, n_envs, 4000 * n_envs, between=50, trace_decay=0.5)
    earned, borne = plain.scores, shuffled.scores
    table = np.array([[np.sum((earned > 0) == a) for a in (0, 1)], [np.sum((borne > 0) == a) for a in (0, 1)]])
    assert np.array_equal(table[0], table[1])
    joint = [[np.sum(((earned > 0) == a) & ((borne > 0) == b)) for b in (0, 1)] for a in (0, 1)]
    assert stats.chi2_contingency(joint).pvalue > 1e-3
    assert abs(stats.spearmanr(earned, borne).statistic) < 4 / np.sqrt(len(earned))
    # nor of its neighbours' scores, its age, or its environment
    assert abs(np.corrcoef(earned[n_envs:], borne[:-n_envs])[0, 1]) < 4 / np.sqrt(len(earned))
    assert abs(stats.spearmanr(np.arange(len(borne)), borne).statistic) < 4 / np.sqrt(len(earned))
    if n_envs > 1:
        groups = [borne[env::n_envs] for env in range(n_envs)]
        assert stats.kruskal(*groups).pvalue > 1e-3
    assert stats.ks_2samp(earned, borne).statistic == 0  # equal as sets of numbers


def test_every_permutation_is_equally_likely():
    seen = np.zeros((6, 6), dtype=int)
    for seed in range(3000):
        shuffle = ShuffledScores(6, np.random.default_rng(seed))
        for filled in (1, 2, 4, 6):  # grown in steps, as a buffer is
            shuffle.place(np.arange(filled), np.zeros(filled), filled)
        assert sorted(shuffle.source) == list(range(6))
        seen[np.arange(6), shuffle.source] += 1
    assert stats.chisquare(seen.ravel()).pvalue > 1e-3


@pytest.mark.parametrize("n_envs", [1, 2])
def test_scoring_again_puts_the_same_scores_into_the_same_places(n_envs, monkeypatch):
    monkeypatch.setattr(scoring, "SCORE_CHUNK", 50)
    _, buffer = pair(900, n_envs, 600 * n_envs)
    while not buffer.scores_complete:
        buffer.sample(4)
    before = buffer.scores
    buffer.rescore()
    while not buffer.scores_complete:
        buffer.sample(4)
    np.testing.assert_array_equal(buffer.scores, before)
    buffer.set_scorer(lambda rows: 0.5 * meaningful(rows))  # other rules: other scores, on the same rows
    while not buffer.scores_complete:
        buffer.sample(4)
    np.testing.assert_allclose(buffer.scores, 0.5 * before)
    buffer.set_scorer(None)
    assert not buffer.scores.any() and chi_square(count(buffer, 200, 64), buffer.probabilities()) > 1e-4


def test_a_seed_gives_the_same_shuffle_and_the_draw_follows_the_scores():
    one, other = (pair(500, seed=3, rule_warmup=0)[1] for _ in range(2))
    np.testing.assert_array_equal(one.scores, other.scores)
    assert not np.array_equal(one.scores, pair(500, seed=4)[1].scores)
    assert chi_square(count(one, 300, 64), one.probabilities()) > 1e-4
    assert one.probabilities()[one.scores > 0].mean() > 1.2 * one.probabilities()[one.scores == 0].mean()


def test_a_saved_buffer_goes_on_with_its_shuffle():
    _, buffer = pair(300, buffer_size=400, between=10)
    copy = pickle.loads(pickle.dumps(buffer))
    copy.set_scorer(meaningful, keep_scores=True)
    np.testing.assert_array_equal(copy.scores, buffer.scores)
    for one in (buffer, copy):
        fill(one, 250, 300, episode=25)
        one.sample(4)
    np.testing.assert_array_equal(copy.scores, buffer.scores)


def test_a_reset_begins_anew():
    _, buffer = pair(300, buffer_size=400)
    buffer.reset()
    fill(buffer, 100, episode=25)
    buffer.sample(4)
    plain, _ = pair(100, buffer_size=400)
    np.testing.assert_array_equal(np.sort(buffer.scores), np.sort(plain.scores))


def test_scores_written_by_hand_are_shuffled_too():
    buffer = fill(make(200, shuffle_scores=True), 150)
    buffer.set_scores(np.arange(150), np.arange(150) / 150)
    assert not np.array_equal(buffer.scores, np.arange(150) / 150)
    np.testing.assert_allclose(np.sort(buffer.scores), np.arange(150) / 150)


def test_the_option_reads_what_yaml_writes():
    assert make(10, shuffle_scores="yes")._shuffled is not None and make(10)._shuffled is None
    with pytest.raises(ConfigurationError, match="shuffle_scores"):
        make(10, shuffle_scores="maybe")


@pytest.mark.parametrize("between", [1, 40])
def test_hindsight_deals_scores_out_too_and_draws_finished_episodes_only(between):
    """Rows of unfinished episodes take part: a finished row may bear the score of one, and the other way round."""
    both = []
    for shuffle in (False, True):
        buffer = make_her(400, shuffle_scores=shuffle, rule_warmup=0)
        buffer.set_scorer(lambda rows: (rows.observations["observation"][:, 0] % 10 == 0).astype(float))
        for start in range(0, 1000, between):
            play(buffer, between, start, length=30)
            if start + between > 40:
                buffer.sample(4)
        both.append(buffer)
    plain, shuffled = both
    assert shuffled.mean_score == pytest.approx(plain.mean_score, rel=0.1) and plain.mean_score > 0.1
    assert (shuffled.scores[plain.scores > 0.5] > 0.5).mean() < 0.6
    assert chi_square(count(shuffled, 200, 64), shuffled.probabilities()) > 1e-4
