"""All TD errors at once, and the short way of the last batch: both end where single writes do."""

import numpy as np
import pytest

from .helpers import fill, make


@pytest.mark.parametrize("options", [{}, {"n_envs": 3}, {"optimize_memory_usage": True, "handle_timeout_termination": False}])
@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.parametrize("steps", [7, 40, 45])
def test_rewriting_all_is_the_same_as_writing_each(options, alpha, steps):
    at_once, each = (fill(make(40, alpha=alpha, **options), steps) for _ in range(2))
    slots = np.arange(at_once.n_transitions)
    for buffer in (at_once, each):
        buffer.set_scores(slots, np.linspace(0, 1, len(slots)))
    errors = np.random.default_rng(0).lognormal(size=len(slots))
    at_once.rewrite_td_errors(errors)
    each.update_priorities(slots, errors)
    np.testing.assert_array_equal(at_once.td_errors, each.td_errors)
    np.testing.assert_array_equal(at_once.probabilities(), each.probabilities())
    assert at_once.max_td_error == each.max_td_error


def test_rules_count_again_once_there_is_mass():
    buffer = fill(make(10, epsilon=0.0, rule_warmup=0), 10)
    buffer.set_scores(np.arange(10), np.full(10, 0.5))
    buffer.rewrite_td_errors(np.zeros(10))
    assert buffer._store.rule.total == 0.0
    buffer.rewrite_td_errors(np.ones(10))
    assert buffer._store.rule.total == pytest.approx(5.0)


@pytest.mark.parametrize("wrong", [np.ones(9), np.full(10, -1.0), np.full(10, np.nan), np.full(10, np.inf)])
def test_nothing_is_written_if_anything_is_wrong(wrong):
    buffer = fill(make(10), 10)
    before = buffer.td_errors
    with pytest.raises(ValueError, match="TD error"):
        buffer.rewrite_td_errors(wrong)
    np.testing.assert_array_equal(buffer.td_errors, before)


def test_what_was_drawn_cannot_be_changed_and_late_news_are_still_dropped():
    buffer = fill(make(10), 10)
    buffer.sample(4)
    drawn = buffer.last_sample
    with pytest.raises(ValueError, match="read-only"):
        drawn.indices[0] = 3
    buffer.update_priorities(drawn.indices, np.arange(1.0, 5.0), drawn.generations)
    np.testing.assert_array_equal(buffer.td_errors[drawn.indices[-1]], 4.0)
    with pytest.raises(ValueError, match="give one for each"):
        buffer.update_priorities(drawn.indices, np.ones(3), drawn.generations)
    with pytest.raises(ValueError, match="TD error"):
        buffer.update_priorities(drawn.indices, np.array([1.0, np.nan, 1.0, 1.0]), drawn.generations)
    fill(buffer, 10, start=10)
    buffer.update_priorities(drawn.indices, np.full(4, 9.0), drawn.generations)
    assert buffer.stale_writes == 4 and not (buffer.td_errors == 9.0).any()


def test_what_waits_for_the_largest_error_is_bounded_however_much_is_written():
    buffer = fill(make(4000), 4000)
    rng = np.random.default_rng(0)
    for _ in range(50):
        buffer.update_priorities(np.arange(4000), rng.exponential(size=4000))
        buffer.sample(8)
        buffer.update_last(rng.exponential(size=8))
        waiting = sum(len(indices) for indices in buffer._store._late)
        assert waiting * 32 < 4000
        if rng.random() < 0.5:
            assert buffer.max_td_error == buffer.td_errors.max()
    buffer.update_last(np.full(8, 99.0))
    assert buffer.max_td_error == 99.0
    buffer.update_last(np.zeros(8))
    assert buffer.max_td_error == buffer.td_errors.max() < 99.0
