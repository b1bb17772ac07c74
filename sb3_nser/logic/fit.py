"""Fitting thresholds, widths and confidences to logged returns.

The idea is Robinson's decomposition as used by the R-learner (Nie & Wager 2021, "Quasi-oracle estimation of heterogeneous
treatment effects"): remove from the return what the state explains, and from "took the rule's action" what the state
explains; regress the one residual on the other. The effect model is the rule itself, so the objective is this package's own
choice:

    r_i = G̃_i − ĝ(x_i),  w_ik = ±(match_ik − ê_k(x_i))        G̃ standardised, ĝ and ê ridge regressions, − for ``avoid``
    minimise over θ, τ and β ≥ 0:   Σ_i (r_i − β_k body_ik w_ik)² + κ β_k²

β has a closed form, which leaves  −(Σ_i body w r)₊² / (Σ_i body² w² + κ)  to be minimised over θ and τ. The sum runs over
*all* rows: a body that shrinks leaves effect unexplained and one that grows dilutes it, so the threshold has an optimum in
between and no reason to collapse. A rule whose action does worse has no gradient: it is not bent into its opposite.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch as th
from numpy.typing import ArrayLike

from sb3_nser.errors import ConfigurationError
from sb3_nser.logic.bank import HEAD_TAU_BOUNDS, TAU_BOUNDS, RuleBank
from sb3_nser.logic.baseline import Baseline
from sb3_nser.logic.grounded import Rows
from sb3_nser.logic.steps import Steps
from sb3_nser.rules.evidence import varies

MAX_ROWS = 10_000
"""Rows used for the gradient steps; the confidences use all."""
THETA_PRIOR = 0.5
"""Standard deviation of the prior on a threshold, in units of its scale."""
THETA_REACH = 1.5
"""No threshold moves further than this many scales."""
LOG_TAU_PRIOR = 0.5
MIN_SHARE = 0.25
"""A body keeps at least this share of its mean truth; a fit that takes more away is undone."""


@dataclass(frozen=True)
class FitReport:
    """
    :param rows: rows used for the gradient steps
    :param steps: gradient steps made (0 if the returns do not vary)
    :param seconds: wall time
    :param gain_before: explained sum of squares per rule before fitting, shape (K,)
    :param gain_after: the same after fitting, at the parameters that were kept
    :param effect: fitted effect β per rule in standard deviations of the return; may be negative; 0 without data
    :param z: effect divided by its standard error (clustered by episode if ids were given)
    :param moved: largest move of a threshold per rule, in units of its scale
    :param confidence: fitted confidence per rule
    """

    rows: int
    steps: int
    seconds: float
    gain_before: tuple[float, ...] = ()
    gain_after: tuple[float, ...] = ()
    effect: tuple[float, ...] = ()
    z: tuple[float, ...] = ()
    moved: tuple[float, ...] = ()
    confidence: tuple[float, ...] = ()


def fit(
    bank: RuleBank,
    features: Mapping[str, th.Tensor],
    actions: th.Tensor | np.ndarray,
    returns: ArrayLike,
    *,
    steps: int = 200,
    lr: float = 0.03,
    prior_strength: float = 50.0,
    seed: int = 0,
    episode_ids: ArrayLike | None = None,
    baseline: Baseline | None = None,
) -> FitReport:
    """
    Fit a bank in place. Deterministic; touches neither torch's random stream nor its thread count; never leaves a NaN behind.

    :param bank: the rules; its thresholds and confidences are the prior
    :param features: name -> tensor of shape (N,); those beyond the bank's own make the baseline better
    :param actions: in environment units, (N,) or (N, action_dim)
    :param returns: return-to-go per row, shape (N,)
    :param steps: gradient steps (Adam); 0 fits the confidences only
    :param lr: step size in units of a feature's scale; higher moves thresholds further and less precisely
    :param prior_strength: rows' worth of belief in the proposer: confidence and effect are pulled towards it; higher changes
        confidences more slowly
    :param seed: seed of the choice of rows if there are more than 10,000
    :param episode_ids: episode per row, shape (N,); makes the standard errors honest about rows that share a return. Rules
        that speak of earlier steps need it, with the rows of an episode one after the other
    :param baseline: what explains the returns from the state; fitted on these rows if None
    :return: what happened
    :raises ConfigurationError: if shapes differ or a return is not finite
    """
    began = time.perf_counter()
    target = np.asarray(returns, np.float64)
    rows, count = len(target), len(bank.rules)
    if any(len(column) != rows for column in features.values()) or len(actions) != rows or target.ndim != 1:
        raise ConfigurationError(f"features, actions and returns must have the same number of rows, got {rows} returns.")
    if not np.isfinite(target).all():
        raise ConfigurationError("returns must be finite; a reward or the final value is NaN or infinite.")
    confidence = tuple(bank.confidence.tolist())
    if not count or rows < 2 or not varies(target):
        zeros = (0.0,) * count
        return FitReport(rows, 0, time.perf_counter() - began, zeros, zeros, zeros, zeros, zeros, confidence)
    steps_of = None if episode_ids is None or not bank.history else Steps.of(np.asarray(episode_ids))
    base = baseline if baseline is not None else Baseline(features)
    design = base.design(features)
    residual = base.residual(design, th.from_numpy(target)[:, None])[:, 0]
    residual = (residual / residual.std().clamp(min=1e-9)).float()
    prepared = bank.prepare(features, steps_of)
    problem = _Problem(bank, prepared, th.as_tensor(actions), residual, base, design, prior_strength)
    chosen = problem
    if rows > MAX_ROWS:
        random = np.random.default_rng(seed)
        index = _whole_episodes(steps_of, random) if steps_of else random.choice(rows, MAX_ROWS, replace=False)
        chosen = problem.subset(th.from_numpy(np.sort(index)))
    start = _parameters(bank)
    with th.no_grad():
        before, share = problem.gains()[0], problem.share()
    with th.enable_grad():
        done = _descend(chosen, steps, lr)
    with th.no_grad():
        _undo(bank, start, (problem.share() < MIN_SHARE * share) | (problem.gains()[0] < before) | bank.crossed())
        after = problem.gains()[0]
        effect, z, amount = problem.effects(None if episode_ids is None else np.asarray(episode_ids))
        # how sure the data are that the effect is positive, weighed against the prior by the number of informative rows
        certain = (2.0 * th.special.ndtr(z) - 1.0).clamp(min=0.0)
        prior = th.tensor(confidence, dtype=th.float64)
        fitted = (prior_strength * prior + amount * certain) / (prior_strength + amount).clamp(min=1e-9)
        for k, value in enumerate(fitted.tolist()):
            bank.set_confidence(k, value)
        moved = _moved(bank, start[0])
    return FitReport(
        rows=len(chosen.residual),
        steps=done,
        seconds=time.perf_counter() - began,
        gain_before=tuple(before.tolist()),
        gain_after=tuple(after.tolist()),
        effect=tuple(effect.tolist()),
        z=tuple(z.tolist()),
        moved=moved,
        confidence=tuple(bank.confidence.tolist()),
    )


def _whole_episodes(steps: Steps, random: np.random.Generator) -> np.ndarray:
    """Rows of episodes drawn at random, about MAX_ROWS of them: a step needs the earlier ones of its episode."""
    episodes = steps.episodes.numpy()
    order = random.permutation(int(episodes.max()) + 1)
    kept = np.cumsum(np.bincount(episodes)[order]) <= MAX_ROWS
    kept[0] = True
    index: np.ndarray = np.flatnonzero(np.isin(episodes, order[kept]))[:MAX_ROWS]
    return index


class _Problem:
    """The rows of one fit, with everything computed that does not change with the body's parameters."""

    def __init__(
        self,
        bank: RuleBank,
        rows: Rows,
        actions: th.Tensor,
        residual: th.Tensor,
        base: Baseline,
        design: th.Tensor,
        prior_strength: float,
    ) -> None:
        self.bank, self.rows, self.actions, self.residual = bank, rows, actions, residual
        self.base, self.design, self.prior_strength = base, design, prior_strength
        self.fixed_contrast: th.Tensor | None = None
        self.sign = th.where(bank._avoid, -1.0, 1.0)
        with th.no_grad():
            match = bank.match(actions)
            self.expected = match - base.residual(design, match.double()).float()
            self.fixed_contrast = None if bank.continuous else self._contrast()  # discrete matches have no parameter

    def subset(self, index: th.Tensor) -> _Problem:
        part = object.__new__(_Problem)
        part.__dict__.update(self.__dict__)
        part.rows = self.rows.take(index)
        for name in ("actions", "residual", "expected", "design"):
            setattr(part, name, getattr(self, name)[index])
        part.fixed_contrast = None if self.bank.continuous else part._contrast()
        return part

    def _contrast(self) -> th.Tensor:
        return self.sign * (self.bank.match(self.actions) - self.expected)

    def weighted(self) -> tuple[th.Tensor, th.Tensor]:
        """:return: the body, and body · w, both (N, K)."""
        body = self.bank.body_of(self.rows)
        contrast = self._contrast() if self.fixed_contrast is None else self.fixed_contrast
        return body, body * contrast

    def gains(self) -> tuple[th.Tensor, th.Tensor]:
        """:return: explained sum of squares of a positive effect, (K,), and the mean truth of the bodies, (K,)."""
        body, weighted = self.weighted()
        with_return = self.residual @ weighted
        # κ: as if prior_strength rows with an even split of the action had shown no effect
        gain = with_return.clamp(min=0.0).square() / (weighted.square().sum(0) + 0.25 * self.prior_strength + 1e-6)
        return gain, body.mean(0)

    def share(self) -> th.Tensor:
        return self.bank.body_of(self.rows).mean(0)

    def effects(self, episode_ids: np.ndarray | None) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """:return: effect β, β over its standard error, and the number of informative rows; each (K,) in float64."""
        _, weighted = self.weighted()
        weighted, residual = weighted.double(), self.residual.double()
        squares = weighted.square().sum(0)
        effect = (residual @ weighted) / (squares + 1e-6)
        scores = weighted * (residual[:, None] - weighted * effect)
        if episode_ids is not None:
            _, cluster = np.unique(episode_ids, return_inverse=True)
            clusters = int(cluster.max()) + 1
            summed = th.zeros(clusters, scores.shape[1], dtype=th.float64)
            scores = summed.index_add_(0, th.from_numpy(cluster.astype(np.int64)), scores)
        spread = scores.square().sum(0).sqrt()
        z = th.where(squares > 1e-3, effect * squares / spread.clamp(min=1e-9), 0.0)
        return effect, z.clamp(-40.0, 40.0), 4.0 * squares


def _parameters(bank: RuleBank) -> tuple[th.Tensor, ...]:
    return tuple(p.detach().clone() for p in (bank.theta, bank.log_tau, bank.head_theta, bank.head_log_tau))


def _descend(problem: _Problem, steps: int, lr: float) -> int:
    """Adam (Kingma & Ba 2015) with a step size per parameter: thresholds move in units of their scale."""
    bank = problem.bank
    start = _parameters(bank)
    parameters = (bank.theta, bank.log_tau, bank.head_theta, bank.head_log_tau)
    units = (bank.scale, th.ones_like(bank.scale), 0.2 * bank.head_scale, th.ones_like(bank.head_scale))
    reach = (THETA_REACH, THETA_REACH)
    used = [at for at, parameter in enumerate(parameters) if len(parameter)]
    if not used:
        return 0
    spread = (THETA_PRIOR, LOG_TAU_PRIOR, THETA_PRIOR, LOG_TAU_PRIOR)
    first, second = [th.zeros_like(p) for p in parameters], [th.zeros_like(p) for p in parameters]
    floor = MIN_SHARE * problem.share().detach() * 1.2
    for step in range(1, steps + 1):
        gain, share = problem.gains()
        loss = -0.5 * gain.sum() + (100.0 * ((floor - share).clamp(min=0.0) / floor.clamp(min=1e-9)).square()).sum()
        for at in used:
            loss = loss + 0.5 * ((parameters[at] - start[at]) / (units[at] * spread[at])).square().sum()
        gradients = th.autograd.grad(loss, [parameters[at] for at in used])
        rate = lr * 0.5 * (1.0 + math.cos(math.pi * (step - 1) / steps)) + 0.05 * lr
        with th.no_grad():
            for at, gradient in zip(used, gradients, strict=True):
                scaled = th.nan_to_num(gradient * units[at], 0.0, 0.0, 0.0)
                first[at].mul_(0.9).add_(scaled, alpha=0.1)
                second[at].mul_(0.99).addcmul_(scaled, scaled, value=0.01)
                move = (first[at] / (1 - 0.9**step)) / ((second[at] / (1 - 0.99**step)).sqrt() + 1e-8)
                parameters[at].sub_(rate * units[at] * move)
            _bound(bank, start, units, reach)
    return steps


def _bound(bank: RuleBank, start: tuple[th.Tensor, ...], units: tuple[th.Tensor, ...], reach: tuple[float, float]) -> None:
    bank.theta.copy_(th.clamp(bank.theta, start[0] - reach[0] * units[0], start[0] + reach[0] * units[0]))
    bank.head_theta.copy_(th.clamp(bank.head_theta, start[2] - reach[1] * units[2], start[2] + reach[1] * units[2]))
    bank.log_tau.clamp_(math.log(TAU_BOUNDS[0]), math.log(TAU_BOUNDS[1]))
    bank.head_log_tau.clamp_(math.log(HEAD_TAU_BOUNDS[0]), math.log(HEAD_TAU_BOUNDS[1]))


def _undo(bank: RuleBank, start: tuple[th.Tensor, ...], which: th.Tensor) -> None:
    """Put the rules marked in ``which`` (K,) back to where they started."""
    literal = which[bank._owner]
    for parameter, origin, mask in zip(
        (bank.theta, bank.log_tau, bank.head_theta, bank.head_log_tau), start, (literal, literal, which, which), strict=True
    ):
        if len(parameter):
            parameter.copy_(th.where(mask, origin, parameter))


def _moved(bank: RuleBank, theta: th.Tensor) -> tuple[float, ...]:
    distance = ((bank.theta - theta) / bank.scale).abs()
    return tuple(max((float(distance[at]) for mine in conditions for at in mine), default=0.0) for conditions in bank._owned)
