"""From logged transitions to a judgement of each rule: fit on some episodes, measure on the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch as th
from numpy.typing import ArrayLike

from sb3_nser.errors import ConfigurationError
from sb3_nser.logic.advantage import ADVANTAGE_TRACE, advantages
from sb3_nser.logic.bank import RuleBank
from sb3_nser.logic.baseline import Baseline
from sb3_nser.logic.fit import fit
from sb3_nser.logic.steps import Steps
from sb3_nser.rules.entry import AdmissionPolicy, Entry, Judgement, moved_rule
from sb3_nser.rules.evidence import detrend, measure, varies
from sb3_nser.rules.model import Rule
from sb3_nser.vocabulary.features import Vocabulary


@dataclass(frozen=True)
class Dataset:
    """
    Logged transitions, ready for fitting and measuring.

    :param features: name -> float32 tensor of shape (N,), of objects (N, places)
    :param actions: in environment units, (N,) indices or (N, action_dim)
    :param returns: return-to-go per row, float64, shape (N,)
    :param episode_ids: episode per row, growing with time, shape (N,); the rows of an episode follow each other
    :param held_out: rows kept for measuring, bool, shape (N,); whole episodes
    :param gamma: discount of the returns; None if it is not known, or the rows of an episode are not all there in order
    """

    features: Mapping[str, th.Tensor]
    actions: np.ndarray
    returns: np.ndarray
    episode_ids: np.ndarray
    held_out: np.ndarray
    gamma: float | None = None

    def __len__(self) -> int:
        return len(self.returns)

    @classmethod
    def build(
        cls,
        features: Mapping[str, th.Tensor],
        actions: ArrayLike,
        returns: ArrayLike,
        episode_ids: ArrayLike,
        held_out_fraction: float = 0.3,
        seed: int = 0,
        gamma: float | None = None,
    ) -> Dataset:
        """
        Rows of one episode are taken to be in the order in which they happened; where episodes alternate they are sorted.

        :param held_out_fraction: share of the episodes kept for measuring, in (0, 1); more narrows the intervals and coarsens
            the fit
        :param seed: seed of the choice of episodes
        :return: the dataset; at least one episode is on each side if there are two
        :raises ConfigurationError: if lengths differ, a return is not finite, or the fraction is out of range
        """
        if not 0.0 < held_out_fraction < 1.0:
            raise ConfigurationError(f"held_out_fraction={held_out_fraction!r} must lie between 0 and 1.")
        target = np.asarray(returns, np.float64)
        ids, taken = np.asarray(episode_ids), np.asarray(actions)
        lengths = {len(target), len(ids), len(taken), *(len(column) for column in features.values())}
        if len(lengths) != 1:
            raise ConfigurationError(
                f"features, actions, returns and episode_ids must have one length, got {sorted(lengths)}."
            )
        if not np.isfinite(target).all():
            raise ConfigurationError("returns must be finite; a reward or the final value is NaN or infinite.")
        episodes = np.unique(ids)
        columns = {name: th.as_tensor(column).to(th.float32) for name, column in features.items()}
        if np.count_nonzero(ids[1:] != ids[:-1]) >= max(len(episodes), 1):
            order = np.argsort(ids, kind="stable")
            ids, taken, target = ids[order], taken[order], target[order]
            columns = {name: column[th.from_numpy(order)] for name, column in columns.items()}
        share = round(held_out_fraction * len(episodes))
        share = min(max(share, 1), len(episodes) - 1) if len(episodes) > 1 else 0
        # one in each run of consecutive episodes, so that both sides span the whole time
        chosen = _spread_choice(len(episodes), share, np.random.default_rng(seed))
        return cls(columns, taken, target, ids, np.isin(ids, episodes[chosen]), gamma)

    def part(self, held_out: bool) -> Dataset:
        """:return: the rows kept for measuring, or the others."""
        rows = self.held_out if held_out else ~self.held_out
        index = th.from_numpy(np.flatnonzero(rows))
        columns = {name: column[index] for name, column in self.features.items()}
        parts = (self.actions[rows], self.returns[rows], self.episode_ids[rows], self.held_out[rows])
        return Dataset(columns, *parts, self.gamma)

    def steps(self, bank: RuleBank) -> Steps | None:
        """:return: which rows are steps of one episode, None if the bank's rules do not ask"""
        return Steps.of(self.episode_ids) if bank.history else None


def scales_from(features: Mapping[str, th.Tensor]) -> dict[str, float]:
    """
    Spread of each feature in the data: half the width of its middle 68 %, which a few wild values cannot blow up, or the
    standard deviation where that is 0. Constant and empty features are left out; the bank has a rule for them.

    :param features: name -> tensor of shape (N,), of objects (N, places)
    :return: name -> positive, finite scale
    """
    scales = {}
    for name, column in features.items():
        values = column.detach().to(th.float64).numpy()
        there = features.get(name[: name.find(":") + 1])  # places without an object say nothing
        if there is not None:
            values = values[there.numpy() > 0.5]
        values = values[np.isfinite(values)]
        if not len(values):
            continue
        low, high = np.quantile(values, [0.16, 0.84])
        spread = 0.5 * float(high - low)
        if not spread > 0.0:
            spread = float(np.std(np.clip(values, -1e150, 1e150)))
        if math.isfinite(spread) and spread > 1e-9 * max(1.0, abs(float(low)), abs(float(high))):
            scales[name] = spread
    return scales


def build_bank(
    entries: Sequence[Entry], vocabulary: Vocabulary, scales: Mapping[str, float] | None = None, tnorm: str = "product"
) -> RuleBank:
    """
    A bank of a book's entries, with their fitted values and current confidences: a loaded book scores without refitting.

    :param entries: usually ``book.active()``
    :param vocabulary: the names they use
    :param scales: for rules that were never fitted; fitted rules carry their own
    :param tnorm: see ``RuleBank``
    """
    bank = RuleBank([entry.rule for entry in entries], vocabulary, scales or {}, tnorm)
    bank.load_state([entry.fitted for entry in entries])
    for k, entry in enumerate(entries):
        bank.set_confidence(k, entry.confidence)
    return bank


def judge(
    entries: Sequence[Entry],
    vocabulary: Vocabulary,
    dataset: Dataset,
    policy: AdmissionPolicy | None = None,
    *,
    tnorm: str = "product",
    steps: int = 200,
    seed: int = 0,
    adjust: bool = True,
) -> list[Judgement]:
    """
    Fit rules on the fitting episodes and measure them on the held-out ones.

    Every rule is fitted anew from its own text, so that judgements do not depend on earlier ones. A pinned rule keeps the
    thresholds that its owner wrote; it is measured only.

    :param entries: usually ``book.candidates()``; of two that fire alike the first one stays
    :param vocabulary: the names they use
    :param dataset: logged transitions
    :param policy: thresholds
    :param steps: gradient steps of the fit
    :param seed: seed of subsampling and bootstrap
    :param adjust: measure on advantages: the trend over time and what the state explains are taken from the returns (the
        explanation is fitted on the fitting episodes), and what comes later counts less (see ``advantages``; only if the
        dataset knows its ``gamma``); False takes returns as they are
    :return: one judgement per entry, in order
    """
    policy = policy or AdmissionPolicy()
    if not entries:
        return []
    bank = RuleBank([entry.rule for entry in entries], vocabulary, scales_from(dataset.features), tnorm)
    target = detrend(dataset.returns, dataset.episode_ids) if adjust and varies(dataset.returns) else dataset.returns
    if not dataset.held_out.any():
        train = test = dataset  # a single episode: nothing can be concluded from it anyway
        train_target = test_target = target
    else:
        train, test = dataset.part(held_out=False), dataset.part(held_out=True)
        train_target, test_target = target[~dataset.held_out], target[dataset.held_out]
    as_written = bank.state()
    base = Baseline(train.features, [feature.name for feature in vocabulary.features if feature.uses_next])
    if adjust and varies(dataset.returns) and len(train_target):
        design = base.design(train.features)
        gamma = dataset.gamma
        value = base.value(design, train_target, None if gamma is None else (train.episode_ids, gamma))
        train_target = train_target - (design @ value)[:, 0].numpy()
        test_target = test_target - (base.design(test.features) @ value)[:, 0].numpy()
        if dataset.gamma is not None:
            train_target = advantages(train_target, train.episode_ids, dataset.gamma, ADVANTAGE_TRACE)
            test_target = advantages(test_target, test.episode_ids, dataset.gamma, ADVANTAGE_TRACE)
    steps = 0 if all(entry.rule.pinned for entry in entries) else steps  # nothing would be kept of the descent
    fit(
        bank, train.features, train.actions, train_target, steps=steps, seed=seed, episode_ids=train.episode_ids, baseline=base
    )
    bank.load_state(
        [old if entry.rule.pinned else new for entry, old, new in zip(entries, as_written, bank.state(), strict=True)]
    )
    with th.no_grad():
        body, match = bank.body(test.features, test.steps(bank)).numpy(), bank.match(test.actions).numpy()
        everywhere = bank.firing_strength(dataset.features, dataset.actions, dataset.steps(bank)).numpy() > 0.5
    copies = _duplicates([entry.rule for entry in entries], everywhere, policy.agreement)
    fitted = bank.state()
    out = []
    for k, entry in enumerate(entries):
        evidence = measure(
            body[:, k],
            match[:, k],
            test_target,
            test.episode_ids,
            min_support=policy.min_support,
            level=policy.level,
            resamples=policy.resamples,
            seed=seed,
            avoid=entry.rule.polarity == "avoid",
            actions=None if bank.continuous else test.actions,
            names=vocabulary.actions.names,
        )
        copy_of = copies[k]
        out.append(
            Judgement(
                key=entry.key,
                evidence=evidence,
                fitted=fitted[k],
                rule_fitted=moved_rule(entry.rule, fitted[k]),
                duplicate_of=None if copy_of is None else entries[copy_of].key,
            )
        )
    return out


def _spread_choice(episodes: int, share: int, rng: np.random.Generator) -> np.ndarray:
    """:return: ``share`` distinct positions out of ``episodes``, one from each of ``share`` equal runs."""
    edges = np.linspace(0, episodes, share + 1).astype(np.int64)
    positions: np.ndarray = edges[:-1] + (rng.random(share) * np.diff(edges)).astype(np.int64)
    return positions


def _duplicates(rules: Sequence[Rule], fires: np.ndarray, agreement: float) -> list[int | None]:
    """For each rule the first earlier one, no duplicate itself, of the same polarity that fires on almost the same rows."""
    crisp = fires.astype(np.float32)
    both = crisp.T @ crisp
    size = np.diag(both)
    either = size[:, None] + size[None, :] - both
    alike = (both > agreement * either) & (size[:, None] > 0)
    out: list[int | None] = []
    for k, rule in enumerate(rules):
        earlier: Iterable[int] = (j for j in range(k) if out[j] is None and rules[j].polarity == rule.polarity and alike[k, j])
        out.append(next(iter(earlier), None))
    return out
