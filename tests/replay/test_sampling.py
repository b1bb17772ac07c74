"""What is drawn, how often, and that the batch is SB3's own."""

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_nser.errors import NSERError, NSERWarning
from sb3_nser.replay import NSERReplayBuffer

from .helpers import DISCRETE, OBS, assert_same_batch, chi_square, count, fill, make, sb3_batch


def stated(td, scores, alpha, epsilon, lam, u, boost, drawable):
    """The mixture as the documentation states it, row by row."""
    b = [(t + epsilon) ** alpha if d else 0.0 for t, d in zip(td, drawable, strict=True)]
    total, rule = sum(b), sum(x * s for x, s in zip(b, scores, strict=True))
    lam = min(lam, boost * rule / (total + boost * rule)) if rule > 0 else 0.0
    if alpha == 0:
        u = 1.0
    n = sum(drawable)
    return np.array([
        (lam * s * x / rule if rule > 0 else 0.0) + (1 - lam) * ((1 - u) * x / total + u / n) if d else 0.0
        for x, s, d in zip(b, scores, drawable, strict=True)
    ])  # fmt: skip


CASES = {
    "flat": dict(buffer_size=100, steps=60),
    "wrapped": dict(buffer_size=100, steps=260),
    "four environments": dict(buffer_size=100, steps=70, n_envs=4),
    "one array": dict(buffer_size=100, steps=130, optimize_memory_usage=True, handle_timeout_termination=False),
    "one array, not full": dict(buffer_size=100, steps=60, optimize_memory_usage=True, handle_timeout_termination=False),
    "capacity 1": dict(buffer_size=1, steps=3),
    "capacity 3": dict(buffer_size=3, steps=2),
    "capacity 1000": dict(buffer_size=1000, steps=1500),
    "alpha 0": dict(buffer_size=100, steps=60, alpha=0.0),
    "no floor": dict(buffer_size=100, steps=60, uniform_fraction=0.0),
    "only floor": dict(buffer_size=100, steps=60, uniform_fraction=1.0),
    "all rules": dict(buffer_size=100, steps=60, rule_fraction=1.0, max_boost=1e6, uniform_fraction=0.0),
    "no error, no epsilon": dict(buffer_size=100, steps=60, epsilon=0.0),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("scored", [False, True])
def test_frequencies_are_the_stated_mixture(name, scored):
    case = dict(CASES[name])
    steps = case.pop("steps")
    options = dict(alpha=0.6, epsilon=0.01, rule_fraction=0.25, uniform_fraction=0.05, max_boost=4.0, rule_warmup=0) | case
    buffer = fill(make(**options), steps)
    n, rng = buffer.n_transitions, np.random.default_rng(5)
    td = rng.exponential(size=n) * (rng.random(n) < 0.8)
    scores = rng.random(n) * (rng.random(n) < 0.3) * scored
    buffer.update_priorities(np.arange(n), td)
    buffer.set_scores(np.arange(n), scores)
    drawable = np.ones(n, dtype=bool)
    if buffer.optimize_memory_usage and buffer.full:
        drawable[buffer.pos * buffer.n_envs + np.arange(buffer.n_envs)] = False
    q = stated(
        td, scores, options["alpha"], options["epsilon"], options["rule_fraction"], options["uniform_fraction"],
        options["max_boost"], drawable,
    )  # fmt: skip
    np.testing.assert_allclose(buffer.probabilities(), q, rtol=1e-9, atol=1e-15)
    # batches of one are independent draws, so the test is exact; large ones are stratified, more even than chance
    assert chi_square(count(buffer, 6000, 1), q) > 0.01
    assert chi_square(count(buffer, 100, 256), q) > 0.01
    np.testing.assert_allclose(buffer.last_sample.probabilities, q[buffer.last_sample.indices], rtol=1e-9)
    w = (drawable.sum() * q[buffer.last_sample.indices]) ** -0.4
    np.testing.assert_allclose(buffer.last_sample.weights, w / w.max(), rtol=1e-9)


def test_c04_a_bad_priority_is_refused_and_the_old_ones_stay():
    buffer = fill(make(8), 8)
    buffer.update_priorities(np.arange(8), np.linspace(0.1, 0.8, 8))
    before = buffer.probabilities()
    for bad in (np.nan, np.inf, -np.inf, -1.0):
        with pytest.raises(ValueError, match=f"index 3 is {bad}"):
            buffer.update_priorities([2, 3], [0.5, bad])
        np.testing.assert_array_equal(buffer.probabilities(), before)
        buffer.sample(4)
    buffer.update_priorities([3], [0.0])
    assert 0 < buffer.probabilities()[3] < before[3]  # floored by epsilon
    buffer.update_priorities(np.arange(8), np.zeros(8))
    np.testing.assert_allclose(buffer.probabilities(), 1 / 8)
    buffer.sample(4)


@pytest.mark.parametrize("alpha", [0.6, 1.0])
@pytest.mark.parametrize("how", ["update_priorities", "update_last", "rewrite_td_errors"])
def test_huge_errors_never_overflow_the_sums(how, alpha):
    buffer = fill(make(70, alpha=alpha, uniform_fraction=0), 70)
    buffer.sample(70)
    slots, huge = buffer.last_sample.indices, np.full(70, np.finfo(np.float64).max)
    getattr(buffer, how)(*([slots] if how == "update_priorities" else []), huge)
    written = np.arange(70) if how == "rewrite_td_errors" else np.unique(slots)
    assert np.all(buffer.td_errors[written] == np.finfo(np.float32).max)
    assert buffer.probabilities().sum() == pytest.approx(1)
    assert buffer.probabilities()[written] == pytest.approx(1 / len(written))
    buffer.sample(len(written))
    np.testing.assert_array_equal(np.sort(buffer.last_sample.indices), written)  # stratified: each once


@pytest.mark.parametrize("bad", [np.nan, np.inf, -0.1, 1.1])
def test_a_bad_score_is_refused_and_the_old_ones_stay(bad):
    buffer = fill(make(8), 8)
    buffer.set_scores([1], [0.5])
    with pytest.raises(ValueError, match="rule score for index 3"):
        buffer.set_scores([2, 3], [0.5, bad])
    assert buffer.scores.tolist() == [0, 0.5, 0, 0, 0, 0, 0, 0]


def test_c04_without_epsilon_a_row_without_error_is_drawn_by_the_floor_alone():
    buffer = fill(make(8, epsilon=0.0, uniform_fraction=0.0), 8)
    buffer.update_priorities([3], [0.0])
    assert count(buffer, 200, 64)[3] == 0
    buffer.update_priorities(np.arange(8), np.zeros(8))
    np.testing.assert_allclose(buffer.probabilities(), 1 / 8)
    assert np.all(count(buffer, 20, 64) > 0)


def test_c08_the_mass_of_one_row_and_environment_draws_that_one_only():
    buffer = fill(make(103, n_envs=4, epsilon=0.0, uniform_fraction=0.0), 25)
    assert buffer.n_slots == 100 and buffer.n_transitions == 100
    td = np.zeros(100)
    td[17 * 4 + 2] = 1.0
    buffer.update_priorities(np.arange(100), td)
    batch = buffer.sample(64)
    assert np.all(batch.rewards.numpy() == 17002.0)
    assert np.all(buffer.last_sample.indices == 70) and np.all(buffer.last_sample.env_indices == 2)
    buffer.update_priorities(buffer.last_sample.indices, np.full(64, 3.0), buffer.last_sample.generations)
    assert buffer.td_errors[70] == 3.0 and buffer.td_errors.sum() == 3.0


def test_c31_only_filled_rows_and_new_ones_at_the_current_maximum():
    buffer = fill(make(1000), 5)
    assert buffer.max_td_error == 1.0
    priorities = np.geomspace(1e-6, 1e-3, 5)
    buffer.update_priorities(np.arange(5), priorities)
    buffer.sample(64)
    assert buffer.last_sample.indices.max() < 5
    assert np.all(buffer.last_sample.weights > 0) and buffer.last_sample.weights.max() == 1.0
    fill(buffer, 1, start=5)
    assert buffer.td_errors[5] == 1e-3
    buffer.update_priorities(np.arange(6), np.full(6, 1e-5))
    fill(buffer, 1, start=6)
    assert buffer.td_errors[6] == 1e-5  # the maximum falls with the rows that held it


def test_c31_an_empty_buffer_says_so():
    for attempt in (lambda b: b.sample(4), lambda b: b.probabilities()):
        with pytest.raises(NSERError, match="empty"):
            attempt(make())
    with pytest.raises(NSERError, match="batch_size"):
        fill(make(), 3).sample(0)
    one = fill(make(1, optimize_memory_usage=True, handle_timeout_termination=False), 2)
    with pytest.raises(NSERError, match="at least 2 rows"):
        one.sample(1)


def test_indices_outside_the_filled_rows_are_refused():
    buffer = fill(make(10), 5)
    for call in (lambda i: buffer.update_priorities(i, [1.0]), lambda i: buffer.set_scores(i, [1.0]), buffer.transitions):
        with pytest.raises(IndexError, match="slots 0 to 4"):
            call([5])
        with pytest.raises(IndexError):
            call([-1])
        with pytest.raises(TypeError, match="whole numbers"):
            call([0.5])
    with pytest.raises(ValueError, match="one for each"):
        buffer.update_priorities([1, 2], [1.0])
    with pytest.raises(ValueError, match="one for each"):
        buffer.set_scores([1, 2], [1.0])
    with pytest.raises(ValueError, match="one for each"):
        buffer.update_priorities([1, 2], [1.0, 1.0], [0])


def test_c41_alpha_zero_is_uniform_and_all_weights_are_one():
    buffer = fill(make(3, alpha=0, beta=1.0), 3)
    buffer.update_priorities([0, 1, 2], [0.0, 1e-6, 5.0])
    np.testing.assert_array_equal(buffer.probabilities(), 1 / 3)
    for _ in range(20):
        buffer.sample(16)
        np.testing.assert_array_equal(buffer.last_sample.weights, 1.0)
        assert buffer.effective_sample_size == pytest.approx(16)


def test_c41_beta_zero_gives_ones_and_beta_one_the_full_correction():
    for beta, expected in ((0.0, lambda q: np.ones_like(q)), (1.0, lambda q: q.min() / q)):
        buffer = fill(make(10, beta=beta), 10)
        buffer.update_priorities(np.arange(10), np.linspace(0, 5, 10))
        buffer.sample(32)
        np.testing.assert_allclose(buffer.last_sample.weights, expected(buffer.last_sample.probabilities))


def test_a_priority_for_an_overwritten_row_is_dropped_and_counted():
    buffer = fill(make(10), 10)
    buffer.sample(32)
    info = buffer.last_sample
    fill(buffer, 4, start=10)
    buffer.update_priorities(info.indices, np.full(32, 9.0), info.generations)
    late = info.indices < 4
    assert buffer.stale_writes == late.sum() > 0
    assert np.all(buffer.td_errors[:4] == 1.0) and np.all(buffer.td_errors[info.indices[~late]] == 9.0)
    # a whole ring later too, though the row numbers are the same again
    fill(buffer, 10, start=14)
    buffer.update_priorities(info.indices, np.full(32, 7.0), info.generations)
    assert 7.0 not in buffer.td_errors


def test_reset_starts_afresh_and_drops_what_comes_late():
    buffer = fill(make(10), 13)
    buffer.set_scores([1], [1.0])
    buffer.sample(8)
    info = buffer.last_sample
    buffer.reset()
    assert buffer.n_transitions == 0 and buffer.last_sample is None
    buffer.update_priorities(info.indices, np.full(8, 9.0), info.generations)
    fill(buffer, 10)
    buffer.update_priorities(info.indices, np.full(8, 9.0), info.generations)
    assert buffer.stale_writes == 16
    np.testing.assert_array_equal(buffer.td_errors, 1.0)
    np.testing.assert_allclose(buffer.probabilities(), 0.1)


SPACES = {
    "vector": (OBS, DISCRETE),
    "float64": (spaces.Box(-1, 1, (2,), np.float64), spaces.Box(-1, 1, (2,), np.float64)),
    "image": (spaces.Box(0, 255, (3, 8, 8), np.uint8), DISCRETE),
    "discrete": (spaces.Discrete(7), DISCRETE),
    "multi": (spaces.MultiDiscrete([3, 4]), spaces.MultiDiscrete([2, 2])),
    "binary": (spaces.MultiBinary(4), spaces.Box(-2, 2, (1,), np.float32)),
}


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("one_array", [False, True])
def test_the_batch_is_the_one_sb3_would_make(space, n_envs, one_array):
    kwargs = dict(n_envs=n_envs, optimize_memory_usage=one_array, handle_timeout_termination=not one_array, device="cpu")
    ours = NSERReplayBuffer(30 * n_envs, *SPACES[space], seed=0, **kwargs)
    theirs = ReplayBuffer(30 * n_envs, *SPACES[space], **kwargs)
    rng = np.random.default_rng(0)
    for one in SPACES[space]:
        one.seed(0)
    for _ in range(47):
        obs, following = (np.stack([SPACES[space][0].sample() for _ in range(n_envs)]) for _ in range(2))
        action = np.stack([SPACES[space][1].sample() for _ in range(n_envs)])
        done = rng.random(n_envs) < 0.3
        infos = [{"TimeLimit.truncated": bool(d and rng.random() < 0.5)} for d in done]
        for buffer in (ours, theirs):
            buffer.add(obs, following, action, rng.random(n_envs), done, infos)
        theirs.rewards[:] = ours.rewards
    batch = ours.sample(64)
    assert_same_batch(batch, sb3_batch(theirs, ours.last_sample))
    batch.observations.zero_()  # a batch is a copy
    assert_same_batch(ours._gather(ours.last_sample.indices, None), sb3_batch(theirs, ours.last_sample))


def test_c07_vecnormalize_batches_are_those_of_sb3_and_stored_rows_stay_raw():
    env = VecNormalize(make_vec_env("Pendulum-v1", n_envs=2, seed=0))
    ours = NSERReplayBuffer(200, env.observation_space, env.action_space, "cpu", n_envs=2, seed=0)
    theirs = ReplayBuffer(200, env.observation_space, env.action_space, "cpu", n_envs=2)
    env.reset()
    raw = env.get_original_obs()
    for _ in range(150):
        action = np.stack([env.action_space.sample() for _ in range(2)])
        _, _, done, infos = env.step(action)
        following = env.get_original_obs()
        for buffer in (ours, theirs):
            buffer.add(raw, following, action, env.get_original_reward(), done, infos)
        raw = following
    for normalizer in (env, None):
        batch = ours.sample(64, env=normalizer)
        assert_same_batch(batch, sb3_batch(theirs, ours.last_sample, normalizer))
    stored = ours.transitions(ours.last_sample.indices)
    np.testing.assert_array_equal(stored.observations, batch.observations.numpy())


def test_c29_a_time_limit_is_no_end_and_its_next_observation_is_the_true_one():
    env = make_vec_env("Pendulum-v1", seed=0)
    buffer = NSERReplayBuffer(300, env.observation_space, env.action_space, "cpu", seed=0, epsilon=0.0, uniform_fraction=0.0)
    obs = env.reset()
    for step in range(250):
        action = np.array([env.action_space.sample()])
        following, reward, done, infos = env.step(action)
        true_next = following.copy()
        if done[0]:
            assert step == 199
            true_next[0] = terminal = infos[0]["terminal_observation"]
        buffer.add(obs, true_next, action, reward, done, infos)
        obs = following
    buffer.update_priorities(np.arange(250), np.eye(250)[199])
    batch = buffer.sample(16)
    assert np.all(batch.dones.numpy() == 0)
    np.testing.assert_array_equal(batch.next_observations.numpy(), np.tile(terminal, (16, 1)))
    row = buffer.transitions([199])
    assert row.dones[0] == 1 and row.timeouts[0] == 1


def test_c29_one_array_for_both_observations():
    with pytest.raises(ValueError, match="optimize_memory_usage"):
        make(optimize_memory_usage=True)
    buffer = make(20, n_envs=2, optimize_memory_usage=True, handle_timeout_termination=False, rule_warmup=0, max_boost=1e6)
    for number in range(35):
        fill(buffer, 1, start=number)
        n = buffer.n_transitions
        buffer.set_scores(np.arange(n), np.ones(n))
        td = np.zeros(n)
        td[buffer.pos * 2 % n : buffer.pos * 2 % n + 2] = 1e6  # the head has the highest priority
        buffer.update_priorities(np.arange(n), td)
        batch = buffer.sample(64)
        if buffer.full:
            assert buffer.pos not in buffer.last_sample.indices // 2
            assert buffer.probabilities().reshape(-1, 2)[buffer.pos].sum() == 0
        obs, following = batch.observations.numpy(), batch.next_observations.numpy()
        np.testing.assert_array_equal(following[:, 0], obs[:, 0] + 1)
        np.testing.assert_array_equal(batch.rewards.numpy()[:, 0], 1000 * obs[:, 0] + obs[:, 1])


def test_without_a_callback_it_is_uniform_and_says_so_once():
    buffer = fill(make(10), 10)
    with pytest.warns(NSERWarning, match=r"PriorityCallback\(\) or RuleInductionCallback") as caught:
        drawn = count(buffer, 300, 10)
    assert len(caught) == 1
    assert chi_square(drawn, np.full(10, 0.1)) > 0.01


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {}])
def test_no_warning_where_nothing_is_missing(options):
    buffer = fill(make(10, **options), 10)
    if not options:
        buffer.mark_linked()
    count(buffer, 150, 4)


@pytest.mark.parametrize("seed", [0, None])
def test_seeds_reproduce(seed):
    draws = []
    for _ in range(2):
        np.random.seed(9)
        buffer = fill(make(50, seed=seed), 50)
        np.random.random(10)  # what happens elsewhere does not matter
        draws.append([buffer.sample(8) and buffer.last_sample.indices for _ in range(20)])
    np.testing.assert_array_equal(*draws)


def test_effective_sample_size_of_the_last_batch():
    buffer = fill(make(10), 10)
    assert buffer.effective_sample_size == 0.0
    buffer.sample(8)
    assert buffer.effective_sample_size == pytest.approx(8)
    buffer.update_priorities(np.arange(10), np.geomspace(1e-3, 1e3, 10))
    buffer.sample(64)
    ratios = 1 / (10 * buffer.last_sample.probabilities)
    assert buffer.effective_sample_size == pytest.approx(ratios.sum() ** 2 / (ratios**2).sum())


def test_memory_of_a_million_transitions():
    buffer = make(1_000_000, observation_space=spaces.Box(0, 1, (1,), np.float32))
    assert buffer._store.nbytes <= 48 * 1_000_000
