"""The arithmetic of drawing: schedules, the mixture of rules, TD errors and uniform draws, importance weights.

``(|δ| + ε)^α`` and the importance weights are those of prioritised experience replay (Schaul et al. 2015). The mixture
with rule scores, its cap, its warm-up and the uniform floor are our own choice.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sb3_nser.arguments import as_number
from sb3_nser.errors import ConfigurationError

FloatArray = npt.NDArray[np.float64]

_TABLE_POINTS = 1001
_TINY = float(np.finfo(np.float32).tiny)
_NO_MASS = 1e-200  # sums below cannot be divided by safely


@dataclass(frozen=True)
class Schedule:
    """
    A number that may change with training progress, as a table: plain data, so it pickles whatever it was made from.

    :param values: one value (constant), or values at equal distances from progress 0 to progress 1
    """

    values: tuple[float, ...]

    def __call__(self, progress: float) -> float:
        """
        :param progress: share of the training that is done, in [0, 1]
        :return: the value there, linear between the table's points
        """
        if len(self.values) == 1:
            return self.values[0]
        position = min(max(progress, 0.0), 1.0) * (len(self.values) - 1)
        low = min(int(position), len(self.values) - 2)
        return self.values[low] + (position - low) * (self.values[low + 1] - self.values[low])


def parse_schedule(name: str, value: object, low: float, high: float) -> Schedule:
    """
    A schedule from a number, ``"lin_0.5"`` (from 0.5 linearly to 0 at the end of training, as in rl_zoo3) or an
    SB3-style function of the remaining progress, which is read at 1001 points.

    :param name: the argument's name, for the message
    :param value: what was given
    :param low: smallest value allowed
    :param high: largest value allowed
    :raises ConfigurationError: if it is none of these or leaves the range
    """
    if isinstance(value, Schedule):
        return value
    if isinstance(value, str) and value.startswith("lin_"):
        try:
            return Schedule((as_number(name, value[4:], low, high), 0.0))
        except ConfigurationError as error:
            raise _no_schedule(name, value, low, high) from error
    if callable(value):
        function: Callable[[float], Any] = value
        remaining = np.linspace(1.0, 0.0, _TABLE_POINTS)
        return Schedule(tuple(as_number(f"{name}({left:g})", function(float(left)), low, high) for left in remaining))
    try:
        return Schedule((as_number(name, value, low, high),))
    except ConfigurationError as error:
        raise _no_schedule(name, value, low, high) from error


def _no_schedule(name: str, value: object, low: float, high: float) -> ConfigurationError:
    span = f"a number from {low:g} to {high:g}"
    return ConfigurationError(f"{name}={value!r} must be {span}, or 'lin_' and such a number (falling to 0), or a function.")


def base_mass(td_errors: FloatArray, alpha: float, epsilon: float) -> FloatArray:
    """
    ``b = (|δ| + ε)^α`` (Schaul et al. 2015, proportional variant); exactly 1 for α = 0.

    :param td_errors: ``|δ|``, finite and not negative
    :param alpha: exponent, 0 or more
    :param epsilon: added to every error, 0 or more
    """
    if alpha == 0.0:
        return np.ones_like(td_errors)
    mass: FloatArray = np.power(td_errors + epsilon, alpha)
    return mass


class Mixture(NamedTuple):
    """
    The distribution of one draw: ``q = λ q_rule + (1 − λ) [(1 − u) b/B + u/N]`` with ``q_rule = S b / R``.

    :param n_drawable: N, slots that can be drawn
    :param rule_fraction: λ after schedule, warm-up and cap; 0 where no score is positive
    :param uniform_fraction: u; 1 where the base has no mass at all, or is uniform anyway (α = 0)
    :param base_total: B, sum of b
    :param rule_total: R, sum of S·b
    """

    n_drawable: int
    rule_fraction: float
    uniform_fraction: float
    base_total: float
    rule_total: float

    @property
    def boost(self) -> float:
        """η = λB / ((1 − λ)R): with u = 0, q ∝ b (1 + η S); infinite for λ = 1."""
        if self.rule_fraction == 0.0:
            return 0.0
        if self.rule_fraction == 1.0:  # under a very large cap rounding takes λ there
            return math.inf
        return self.rule_fraction * self.base_total / ((1.0 - self.rule_fraction) * self.rule_total)

    @property
    def even(self) -> bool:
        """Whether all slots have the same chance."""
        return self.uniform_fraction == 1.0 and self.rule_fraction == 0.0

    @property
    def factors(self) -> tuple[float, float, float]:
        """What q is made of: a constant, the factor of b and the factor of S·b."""
        lam, u = self.rule_fraction, self.uniform_fraction
        by_base = (1.0 - lam) * (1.0 - u) / self.base_total if u < 1.0 else 0.0
        return (1.0 - lam) * u / self.n_drawable, by_base, lam / self.rule_total if lam > 0.0 else 0.0

    def probabilities(self, base: FloatArray, rule: FloatArray) -> FloatArray:
        """
        :param base: b of the slots asked for
        :param rule: S·b of the same slots
        :return: their q, same shape
        """
        constant, by_base, by_rule = self.factors
        q: FloatArray = constant + base * by_base
        if by_rule > 0.0:
            q += rule * by_rule
        return q


def make_mixture(
    count: int, base_total: float, rule_total: float, *, alpha: float, wanted: float, uniform_fraction: float, max_boost: float
) -> Mixture:
    """
    Build the distribution of one draw. λ is lowered until η ≤ ``max_boost``, so that no slot is drawn more than
    ``1 + max_boost`` times its base share.

    :param count: slots that can be drawn
    :param base_total: sum of b over them
    :param rule_total: sum of S·b over them
    :param alpha: the exponent; at 0 the base is uniform whatever the TD errors
    :param wanted: λ after schedule and warm-up, before the cap, in [0, 1]
    :param uniform_fraction: u in [0, 1]
    :param max_boost: largest η, 0 or more
    """
    if not base_total > _NO_MASS:
        return Mixture(count, 0.0, 1.0, 0.0, 0.0)
    lam = 0.0
    if rule_total > _NO_MASS:
        lam = min(wanted, max_boost * rule_total / (base_total + max_boost * rule_total))
    return Mixture(count, lam, 1.0 if alpha == 0.0 else uniform_fraction, base_total, rule_total)


def importance_weights(probabilities: FloatArray, beta: float, smallest: float | None = None) -> FloatArray:
    """
    ``w = (N q)^−β``, divided by the largest of the batch (Schaul et al. 2015), which is ``(min q / q)^β`` whatever N.

    :param probabilities: q of the drawn slots, above 0
    :param beta: strength of the correction, 0 (none: all weights 1) or more
    :param smallest: the smallest q, where it is known
    :return: numbers in (0, 1], same shape
    """
    if beta == 0.0:
        return np.ones_like(probabilities)
    weights: FloatArray = (np.minimum.reduce(probabilities) if smallest is None else smallest) / probabilities
    np.power(weights, beta, out=weights)
    np.maximum(weights, _TINY, out=weights)  # stays above 0 when it becomes float32
    return weights


def effective_size(probabilities: FloatArray) -> float:
    """
    Kish's effective sample size ``(Σρ)²/Σρ²`` of the full importance ratios ``ρ = 1/(N q)`` of a batch: its length where
    the draw was uniform, towards 1 where few rows carry all the weight. It does not depend on β (our own choice).

    :param probabilities: q of the drawn slots, above 0
    """
    ratios = importance_weights(probabilities, 1.0)
    return float(ratios.sum() ** 2 / np.square(ratios).sum())


def expected_coverage(probabilities: FloatArray, count: int) -> float:
    """
    Share of the stored transitions that N draws would reach at least once, N being their number: the mean over all slots of
    ``1 − exp(−N q)`` (the limit of many slots), estimated without bias from a batch as the mean of ``(1 − exp(−N q))/(N q)``.
    ``1 − 1/e``, about 0.63, where the draw is uniform; less, the more of the buffer is left out (our own choice).

    :param probabilities: q of the drawn slots, above 0
    :param count: N
    """
    expected = probabilities * count
    return float(np.mean(-np.expm1(-expected) / expected))


def seeded_generator(seed: int | None) -> np.random.Generator:
    """
    The buffer's own random stream.

    :param seed: a whole number, or ``None`` to derive it from NumPy's global state, which is read but not advanced: a run
        seeded as usual reproduces, and a run without this buffer sees the same random numbers elsewhere
    """
    if seed is not None:
        return np.random.default_rng(seed)
    state: Any = np.random.get_state(legacy=False)
    digest = hashlib.blake2b(digest_size=16)
    for key, value in sorted(state["state"].items()):
        digest.update(key.encode() + (value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()))
    return np.random.default_rng(int.from_bytes(digest.digest(), "little"))
