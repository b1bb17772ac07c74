"""What the data say about a rule: firing rates, and the lift in return with a bootstrap interval. NumPy only.

The lift is the design's own choice: within the states where the body fires, the mean return-to-go of the transitions that took
the rule's action minus that of the transitions that did not. Transitions of one episode share their return, so the interval
resamples whole episodes (cluster bootstrap).
"""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sb3_nser.errors import ConfigurationError

Verdict = typing.Literal["supported", "outdone", "refuted", "inconclusive", "no_evidence", "never_fires", "always_fires"]
VERDICTS: tuple[str, ...] = typing.get_args(Verdict)

NEVER_RATE = 1e-4
"""A body that fires in a smaller share of the rows never fires."""
ALWAYS_RATE = 0.98
"""A body that fires in a larger share of the rows always fires: it tells no states apart."""
MIN_EPISODES = 4
"""With fewer episodes the spread between episodes cannot be estimated."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Evidence:
    """What was measured about one rule. Numbers that could not be computed are NaN (None in JSON).

    :param verdict: ``supported`` (interval above 0), ``outdone`` (the same, but another single action does better in these
        states), ``refuted`` (below 0), ``inconclusive`` (contains 0), ``no_evidence`` (returns do not vary, or too few rows on
        one side), ``never_fires`` or ``always_fires``
    :param lift: mean return with the rule's action minus mean return without, in the states of the body; for an ``avoid``
        rule the other way round, so that positive always speaks for the rule
    :param low: lower end of the interval
    :param high: upper end of the interval
    :param level: its nominal coverage
    :param support: rows where body and head hold
    :param contrast: rows where the body holds and the head does not
    :param body_rate: share of all rows where the body holds
    :param head_rate: share of the body's rows whose action matches the head
    :param rows: rows that were looked at
    :param episodes: episodes in which the body holds at least once
    :param p_value: chance of such a lift if there were none, one-sided, normal approximation of the bootstrap; small speaks
        for the rule
    :param rival: name of the action that outdoes the rule's, empty if none does
    :param rival_lift: by how much it does, NaN if none does
    """

    verdict: Verdict
    lift: float = math.nan
    low: float = math.nan
    high: float = math.nan
    level: float = 0.9
    support: int = 0
    contrast: int = 0
    body_rate: float = 0.0
    head_rate: float = math.nan
    rows: int = 0
    episodes: int = 0
    p_value: float = math.nan
    rival: str = ""
    rival_lift: float = math.nan

    def to_dict(self) -> dict[str, typing.Any]:
        """:return: plain JSON values; NaN becomes None."""
        return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, typing.Any]) -> Evidence:
        """
        :param data: what ``to_dict`` returned
        :raises ConfigurationError: if a key is unknown, the verdict is, or a number is none
        """
        if not isinstance(data, Mapping):
            raise ConfigurationError(f"evidence must be a mapping, got {data!r}.")
        kinds = {field.name: str(field.type) for field in fields(cls)}
        unknown = sorted(str(key) for key in set(data) - set(kinds))
        if unknown:
            raise ConfigurationError(f"evidence has unknown keys {', '.join(unknown)}; known: {', '.join(kinds)}.")
        if data.get("verdict") not in VERDICTS:
            raise ConfigurationError(f"evidence verdict {data.get('verdict')!r} must be one of {', '.join(VERDICTS)}.")
        values: dict[str, typing.Any] = {"verdict": data["verdict"]}
        for key in set(data) - {"verdict"}:
            value = data[key]
            if kinds[key] == "str":
                if not isinstance(value, str):
                    raise ConfigurationError(f"evidence {key}={value!r} must be text.")
                values[key] = value
            elif value is None and kinds[key] == "float":
                values[key] = math.nan
            elif isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigurationError(f"evidence {key}={value!r} must be a number.")
            else:
                values[key] = float(value) if kinds[key] == "float" else int(value)
        return cls(**values)


def measure(
    body: ArrayLike,
    match: ArrayLike,
    returns: ArrayLike,
    episode_ids: ArrayLike,
    *,
    min_support: int = 20,
    level: float = 0.9,
    resamples: int = 400,
    seed: int = 0,
    avoid: bool = False,
    min_episodes: int = MIN_EPISODES,
    actions: ArrayLike | None = None,
    names: Sequence[str] = (),
) -> Evidence:
    """
    Measure one rule on logged transitions. Body and match are read as crisp: above 0.5 holds.

    :param body: truth of the body per row, shape (N,), in [0, 1]
    :param match: truth of "the action is the head's" per row, shape (N,), in [0, 1]
    :param returns: return-to-go per row, shape (N,), finite; may be detrended or otherwise adjusted for the state
    :param episode_ids: episode of each row, shape (N,)
    :param min_support: rows needed on each side of the contrast; higher asks for more data before anything is said
    :param level: nominal coverage of the interval in (0, 1); higher makes intervals wider and verdicts rarer
    :param resamples: bootstrap resamples; more makes the interval's ends less noisy and costs time in proportion
    :param seed: seed of the resampling
    :param avoid: True for an ``avoid`` rule: the sign of the lift flips
    :param min_episodes: episodes needed on which the body fires
    :param actions: index of the action of each row, shape (N,): a ``prefer`` rule is then also compared with every other
        single action. Where some actions are very bad, a mediocre one beats their mean, and should not be preferred
    :param names: names of the actions by index
    :return: the evidence
    :raises ConfigurationError: if the shapes differ or a return is not finite
    """
    fires = np.asarray(body, np.float64) > 0.5
    taken = np.asarray(match, np.float64) > 0.5
    target = np.asarray(returns, np.float64)
    ids = np.asarray(episode_ids)
    if not fires.shape == taken.shape == target.shape == ids.shape or fires.ndim != 1:
        raise ConfigurationError(
            f"body {fires.shape}, match {taken.shape}, returns {target.shape} and episode_ids {ids.shape} must be (N,) alike."
        )
    if not np.isfinite(target).all():
        raise ConfigurationError("returns must be finite; a reward or the final value is NaN or infinite.")
    rows, body_rows = len(fires), int(fires.sum())
    head_rows = int((fires & taken).sum())
    body_rate = body_rows / rows if rows else 0.0
    if body_rows == 0 or body_rate < NEVER_RATE:
        return Evidence("never_fires", level=level, support=head_rows, body_rate=body_rate, rows=rows)
    episodes, cluster = np.unique(ids[fires], return_inverse=True)
    sums = _sums_per_episode(cluster, len(episodes), taken[fires], target[fires], -1.0 if avoid else 1.0)
    lift, low, high, p_value = _interval(sums, level, resamples, seed)
    enough = min(head_rows, body_rows - head_rows) >= min_support and len(episodes) >= min_episodes
    verdict = _verdict(lift, low, high, body_rate, enough and varies(target))
    rival, rival_lift = "", math.nan
    if verdict == "supported" and actions is not None and not avoid:
        done = np.asarray(actions)[fires]
        code, rival_lift = _rival(done, taken[fires], target[fires], cluster, min_support, level, resamples, seed)
        if code is not None:
            verdict, rival = "outdone", names[code] if code < len(names) else str(code)
    return Evidence(
        verdict=verdict,
        lift=lift,
        low=low,
        high=high,
        level=level,
        support=head_rows,
        contrast=body_rows - head_rows,
        body_rate=body_rate,
        head_rate=head_rows / body_rows,
        rows=rows,
        episodes=len(episodes),
        p_value=p_value,
        rival=rival,
        rival_lift=rival_lift,
    )


def varies(returns: ArrayLike) -> bool:
    """:return: whether returns differ beyond rounding; they do not before the first reward of a sparse task is seen."""
    values = np.asarray(returns, np.float64)
    return bool(values.size) and float(np.ptp(values)) > 1e-9 * max(1.0, float(np.abs(values).max()))


def discounted_returns(rewards: ArrayLike, gamma: float, final_value: float = 0.0) -> Array:
    """
    Return-to-go of one episode: G_t = r_t + γ G_{t+1}, with G at the end equal to ``final_value``.

    :param rewards: rewards in order, shape (T,)
    :param gamma: discount in [0, 1]
    :param final_value: value of the state after the last one: 0 for a terminated episode; for one cut by a time limit an
        estimate (for instance mean reward / (1 − γ)), or the cut itself looks like a loss or a gain
    :return: float64, shape (T,)
    """
    out = np.empty(np.size(rewards), np.float64)
    running = float(final_value)
    for at, reward in zip(
        range(len(out) - 1, -1, -1), reversed(np.ravel(np.asarray(rewards, np.float64)).tolist()), strict=True
    ):
        running = reward + gamma * running
        out[at] = running
    return out


def detrend(returns: ArrayLike, episode_ids: ArrayLike, blocks: int = 10) -> Array:
    """
    Subtract from each return the mean of its time block, blocks being equal numbers of consecutive episodes.

    As the policy improves, later episodes return more whatever the action, and the actions it takes change too: an action that
    has merely become frequent would look good. Within a block the policy is nearly the same, so what is left is closer to the
    effect of the action.

    :param returns: return-to-go per row, shape (N,)
    :param episode_ids: episode of each row, shape (N,); they grow with time
    :param blocks: number of blocks; more follow a faster improvement but leave less contrast in each. Never fewer than five
        episodes per block
    :return: detrended returns, float64, shape (N,)
    """
    target = np.asarray(returns, np.float64)
    episodes, order = np.unique(np.asarray(episode_ids), return_inverse=True)
    if not len(episodes):
        return np.zeros(0, np.float64)
    used = max(1, min(int(blocks), len(episodes) // 5))
    block = order * used // len(episodes)
    totals = np.bincount(block, weights=target, minlength=used)
    counts = np.bincount(block, minlength=used)
    means = totals / np.maximum(counts, 1)
    return np.asarray(target - means[block], np.float64)


def describe_evidence(evidence: Evidence | None) -> str:
    """:return: the evidence in words, one line, for logs, ``rules.yaml`` and prompts."""
    if evidence is None:
        return "not judged yet"
    rate = f"fires in {percent(evidence.body_rate)} of {evidence.rows} steps"
    if evidence.verdict == "never_fires":
        return f"never fires ({rate})"
    if evidence.verdict == "always_fires":
        return f"always fires ({rate})"
    sides = f"{evidence.support} with the action, {evidence.contrast} without, {evidence.episodes} episodes"
    if evidence.verdict == "no_evidence":
        return f"too few rows to judge: {rate}, {sides}" if evidence.lift else f"no reward to judge by yet: {rate}, {sides}"
    verdict = evidence.verdict if not evidence.rival else f"outdone by {evidence.rival} ({evidence.rival_lift:+.3g})"
    return f"{verdict}: {describe_lift(evidence)} at {percent(evidence.level)}, {rate}, {sides}"


def describe_lift(evidence: Evidence) -> str:
    """:return: ``lift +3.2 [+1.1, +5]``."""
    return f"lift {evidence.lift:+.3g} [{evidence.low:+.3g}, {evidence.high:+.3g}]"


def percent(share: float) -> str:
    """:return: ``12 %``; small shares keep a digit (``0.4 %``)."""
    return f"{100 * share:.2g} %" if 0 < share < 0.1 else f"{100 * share:.0f} %"


def _sums_per_episode(cluster: NDArray[np.intp], episodes: int, taken: NDArray[np.bool_], target: Array, sign: float) -> Array:
    """:return: shape (episodes, 4): rows with the action, sum of returns with it, rows without, sum without."""
    centred = sign * (target - target.mean())  # keeps the sums small; the lift does not change
    columns = (taken, taken * centred, ~taken, ~taken * centred)
    return np.stack([np.bincount(cluster, weights=column, minlength=episodes) for column in columns], axis=1)


def _interval(sums: Array, level: float, resamples: int, seed: int) -> tuple[float, float, float, float]:
    """:return: lift, the percentile interval, widened about the lift by √(E/(E−1)) for few episodes, and the p-value."""
    lift = float(_lift(sums.sum(axis=0)))
    episodes = len(sums)
    if not math.isfinite(lift) or episodes < 2:
        return lift, math.nan, math.nan, math.nan
    # a resample of E episodes with replacement is a multinomial count per episode: one matrix product does all resamples
    counts = np.random.default_rng(seed).multinomial(episodes, np.full(episodes, 1.0 / episodes), size=resamples)
    lifts = _lift(counts.astype(np.float64) @ sums)
    lifts = lifts[np.isfinite(lifts)]
    if len(lifts) < 0.8 * resamples:  # one side of the contrast hangs on a handful of episodes
        return lift, math.nan, math.nan, math.nan
    wider, tail = math.sqrt(episodes / (episodes - 1)), 0.5 * (1.0 - level)
    low, high = lift + wider * (np.quantile(lifts, [tail, 1.0 - tail]) - lift)
    error = wider * float(lifts.std())
    p_value = 0.5 * math.erfc(lift / error / math.sqrt(2.0)) if error > 0.0 else math.nan
    return lift, float(low), float(high), p_value


def _rival(
    done: Array,
    taken: NDArray[np.bool_],
    target: Array,
    cluster: NDArray[np.intp],
    min_support: int,
    level: float,
    resamples: int,
    seed: int,
) -> tuple[int | None, float]:
    """:return: the action that does better than the one taken by the most, if one certainly does, and by how much."""
    codes, counts = np.unique(done[~taken], return_counts=True)
    codes = codes[counts >= min_support]
    best: int | None = None
    by = math.nan
    for code in codes.tolist():
        rows = taken | (done == code)
        pair = _sums_per_episode(cluster[rows], int(cluster.max()) + 1, ~taken[rows], target[rows], 1.0)
        # as many comparisons as there are actions: each at a stricter level
        lift, low, _, _ = _interval(pair, 1.0 - (1.0 - level) / len(codes), resamples, seed)
        if low > 0.0 and not lift <= by:
            best, by = int(code), lift
    return best, by


def _lift(sums: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        lift: Array = sums[..., 1] / sums[..., 0] - sums[..., 3] / sums[..., 2]
    return lift


def _verdict(lift: float, low: float, high: float, body_rate: float, enough: bool) -> Verdict:
    if body_rate > ALWAYS_RATE:
        return "always_fires"
    if not enough or not math.isfinite(low) or not math.isfinite(lift):
        return "no_evidence"
    if low > 0.0:
        return "supported"
    return "refuted" if high < 0.0 else "inconclusive"
