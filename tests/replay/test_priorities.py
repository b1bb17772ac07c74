"""Numbers from YAML, schedules, the mixture and its cap."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sb3_nser.arguments import as_int, as_number
from sb3_nser.errors import ConfigurationError
from sb3_nser.replay.priorities import (
    Schedule,
    base_mass,
    effective_size,
    expected_coverage,
    importance_weights,
    make_mixture,
    parse_schedule,
    seeded_generator,
)

from .helpers import make


def test_c43_numbers_may_be_text():
    assert as_number("epsilon", "1e-3") == 1e-3
    assert as_int("rule_warmup", "2e3", 0) == 2000
    assert as_int("rule_warmup", 2e3, 0) == 2000
    assert as_int("seed", 2**60 + 1, 0) == 2**60 + 1
    buffer = make(alpha="0.5", epsilon="1e-6", rule_warmup="1e3", rule_fraction="lin_5e-1", seed="7", beta="0")
    assert (buffer.alpha, buffer.epsilon, buffer.options.rule_warmup, buffer.options.seed) == (0.5, 1e-6, 1000, 7)
    assert buffer.options.rule_fraction(0.5) == 0.25


@pytest.mark.parametrize(
    "name, value",
    [
        ("priority", "rank"), ("priority", 1), ("priority", None),
        ("alpha", -0.1), ("alpha", 1.1), ("alpha", float("nan")), ("alpha", True), ("alpha", None), ("alpha", "much"),
        ("alpha", [0.6]), ("beta", -1), ("beta", float("nan")), ("beta", np.inf), ("beta_final", 0.1), ("beta_final", 2),
        ("rule_fraction", 1.5), ("rule_fraction", "lin_2"), ("rule_fraction", "lin_x"), ("rule_fraction", "exp_0.5"),
        ("rule_fraction", lambda left: 2.0), ("rule_fraction", False), ("max_boost", -1), ("max_boost", np.inf),
        ("rule_warmup", -1), ("rule_warmup", 0.5), ("rule_warmup", True), ("uniform_fraction", 1.01),
        ("trace_decay", 1.5), ("trace_decay", np.nan), ("epsilon", -1e-3), ("epsilon", "1e-3x"), ("seed", -1), ("seed", 1.5),
        ("seed", True),
    ],
)  # fmt: skip
def test_c41_c43_a_bad_value_is_refused_by_name(name, value):
    with pytest.raises(ConfigurationError, match=name) as error:
        make(**{name: value})
    assert not isinstance(error.value, ValueError)


def test_an_unknown_argument_is_named_with_the_closest():
    with pytest.raises(ConfigurationError, match=r"'aplha'\. Did you mean 'alpha'\? Valid ones: .*rule_fraction"):
        make(aplha=0.5)
    with pytest.raises(ConfigurationError, match=r"'zzz'\. Valid ones"):
        make(zzz=1)


def test_schedules():
    assert parse_schedule("rule_fraction", 0.25, 0, 1)(0.9) == 0.25
    falling = parse_schedule("rule_fraction", "lin_0.5", 0, 1)
    assert [falling(p) for p in (0.0, 0.5, 1.0, 2.0)] == [0.5, 0.25, 0.0, 0.0]
    assert parse_schedule("rule_fraction", falling, 0, 1) is falling
    # an SB3 schedule is a function of the *remaining* progress
    assert parse_schedule("rule_fraction", lambda left: 0.5 * left**2, 0, 1)(0.5) == pytest.approx(0.125, abs=1e-6)
    assert Schedule((1.0, 0.0, 1.0))(0.75) == 0.5


def test_c41_alpha_zero_is_uniform_even_for_no_error():
    np.testing.assert_array_equal(base_mass(np.array([0.0, 1e-6, 5.0]), 0.0, 0.0), 1.0)


masses = st.lists(st.tuples(st.floats(1e-6, 1e6), st.floats(0, 1)), min_size=1, max_size=30)


@given(masses, st.floats(0, 1), st.floats(0, 1), st.floats(0, 20))
def test_the_mixture_is_what_the_formula_says(rows, lam, u, max_boost):
    base, scores = np.array(rows).T
    rule, n = base * scores, len(base)
    mixture = make_mixture(n, base.sum(), rule.sum(), alpha=0.6, wanted=lam, uniform_fraction=u, max_boost=max_boost)
    q = mixture.probabilities(base, rule)
    assert q.sum() == pytest.approx(1.0) and np.all(q >= 0)
    assert mixture.rule_fraction <= lam + 1e-12 and mixture.boost <= max_boost * (1 + 1e-9) + 1e-300
    base_share = base / base.sum()
    assert np.all(q <= base_share * (1 + max_boost) + u / n + 1e-9)
    if u == 0 and mixture.rule_fraction:
        expected = base * (1 + mixture.boost * scores)
        np.testing.assert_allclose(q, expected / expected.sum(), rtol=1e-6)


def test_the_cap_lowers_lambda_only_where_few_rows_score():
    wide = make_mixture(100, 100.0, 50.0, alpha=0.6, wanted=0.25, uniform_fraction=0.0, max_boost=4.0)
    assert wide.rule_fraction == 0.25
    rare = make_mixture(100, 100.0, 1.0, alpha=0.6, wanted=0.25, uniform_fraction=0.0, max_boost=4.0)
    assert rare.boost == pytest.approx(4.0) and rare.rule_fraction == pytest.approx(4 / 104)


def test_without_a_cap_to_speak_of_rules_may_decide_every_draw():
    mixture = make_mixture(4, 4.0, 1.0, alpha=0.6, wanted=1.0, uniform_fraction=0.05, max_boost=1e30)
    assert mixture.rule_fraction == 1.0 and mixture.boost == np.inf
    np.testing.assert_array_equal(mixture.probabilities(np.ones(4), np.array([0, 0.5, 0.5, 0])), [0, 0.5, 0.5, 0])


def test_importance_weights():
    q = np.array([0.5, 0.25, 0.125])
    np.testing.assert_array_equal(importance_weights(q, 0.0), 1.0)
    np.testing.assert_allclose(importance_weights(q, 1.0), [0.25, 0.5, 1.0])
    np.testing.assert_allclose(importance_weights(q, 0.5), np.sqrt([0.25, 0.5, 1.0]))
    extreme = importance_weights(np.array([1.0, 1e-300]), 1.0)
    assert np.all(extreme.astype(np.float32) > 0) and extreme.max() == 1.0


def test_expected_coverage_is_what_draws_reach():
    rng = np.random.default_rng(0)
    q = rng.gamma(0.3, size=2000) + 1e-4
    q /= q.sum()
    reached = np.mean([len(np.unique(rng.choice(2000, 2000, p=q))) / 2000 for _ in range(50)])
    batches = [expected_coverage(q[rng.choice(2000, 64, p=q)], 2000) for _ in range(2000)]
    assert np.mean(batches) == pytest.approx(reached, abs=4 * np.std(batches) / np.sqrt(len(batches)) + 0.005)
    assert expected_coverage(np.full(64, 1 / 2000), 2000) == pytest.approx(1 - np.exp(-1))


def test_effective_size():
    assert effective_size(np.full(8, 0.1)) == pytest.approx(8)
    assert effective_size(np.array([1e-9] + [1.0] * 7)) == pytest.approx(1)


def test_the_global_random_state_is_read_but_not_advanced():
    np.random.seed(3)
    first = seeded_generator(None).random(4)
    unchanged = np.random.random(4)
    np.random.seed(3)
    np.testing.assert_array_equal(np.random.random(4), unchanged)
    np.testing.assert_array_equal(first, seeded_generator_after(3))
    np.random.seed(4)
    assert not np.array_equal(first, seeded_generator(None).random(4))


def seeded_generator_after(seed):
    np.random.seed(seed)
    return seeded_generator(None).random(4)


def test_c44_beta_never_falls_by_itself():
    buffer = make(beta=0.4, beta_final=1.0)
    seen = []
    for progress in (0.0, 0.5, 1.0, 0.5, 0.6):
        buffer.set_progress(progress)
        seen.append(buffer.beta_now)
    np.testing.assert_allclose(seen, [0.4, 0.7, 1.0, 1.0, 1.0])
    buffer.set_progress(0.0, restart=True)
    assert buffer.beta_now == pytest.approx(0.4)
    buffer.set_progress("0.5")
    assert buffer.beta_now == pytest.approx(0.7)
    for bad in (np.nan, True, None):
        with pytest.raises(ConfigurationError, match="progress"):
            buffer.set_progress(bad)
