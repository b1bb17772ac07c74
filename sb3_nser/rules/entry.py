"""One rule in the book, the policy that decides about it, and the decision itself."""

from __future__ import annotations

import math
import typing
from dataclasses import asdict, dataclass, field, fields, replace

from sb3_nser.errors import ConfigurationError
from sb3_nser.rules.evidence import Evidence
from sb3_nser.rules.model import Rule

Status = typing.Literal["admitted", "waiting", "rejected", "pruned", "invalid"]
STATUSES: tuple[str, ...] = typing.get_args(Status)

Fitted = dict[str, typing.Any]
"""Fitted values of one rule as plain JSON: ``theta``, ``tau``, ``scale`` (lists, one item per literal, None for a literal
without a threshold), ``head_theta``, ``head_tau``, ``head_scale`` (numbers or None) and ``confidence``."""

PINNED_REASON = "pinned by the user"
MAX_HISTORY = 50
LEANING_ROWS = 5
"""Rows with and without the action from which on a negative lift, though no proof, outweighs the proposer's word."""


@dataclass(frozen=True)
class AdmissionPolicy:
    """
    Thresholds of admission and pruning. All are this package's own choices.

    :param prior_weight: share of the proposer's confidence that counts while no evidence is possible (before the first reward
        of a sparse task); higher trusts the model more, 0 keeps unjudged rules out
    :param patience: judgements without support in a row after which a rule that was admitted on evidence is pruned; higher
        forgets more slowly
    :param waiting_patience: inconclusive judgements in a row after which a rule that was never admitted is rejected
    :param max_rules: rules that may be active at once, those with the highest lower bound of the lift; pinned ones come first,
        and count even if there are more of them
    :param max_entries: rules that the book remembers; beyond it the oldest refused ones are forgotten, but never one that is
        pinned or switched off
    :param min_support: rows needed with and without the action before anything is concluded
    :param level: nominal coverage of the lift's interval; higher admits fewer rules, and prunes fewer
    :param resamples: bootstrap resamples per rule
    :param agreement: two rules whose firings overlap by more than this share (intersection over union) are duplicates
    :raises ConfigurationError: if a value is out of its range
    """

    prior_weight: float = 0.5
    patience: int = 2
    waiting_patience: int = 5
    max_rules: int = 16
    max_entries: int = 256
    min_support: int = 20
    level: float = 0.9
    resamples: int = 400
    agreement: float = 0.98

    def __post_init__(self) -> None:
        for name, low, high in (("prior_weight", 0.0, 1.0), ("level", 0.5, 0.999), ("agreement", 0.5, 1.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise ConfigurationError(f"admission policy {name}={value!r} must be a number from {low} to {high}.")
        for name in ("patience", "waiting_patience", "max_rules", "max_entries", "min_support", "resamples"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"admission policy {name}={value!r} must be a whole number of at least 1.")

    def to_dict(self) -> dict[str, typing.Any]:
        """:return: plain JSON values"""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: typing.Mapping[str, typing.Any]) -> AdmissionPolicy:
        """
        :param data: some or all of the thresholds by name
        :raises ConfigurationError: if a name is unknown or a value out of range
        """
        names = [item.name for item in fields(cls)]
        unknown = sorted(set(map(str, data)) - set(names))
        if unknown:
            raise ConfigurationError(f"admission policy has unknown keys {', '.join(unknown)}; known: {', '.join(names)}.")
        return cls(**data)


@dataclass(frozen=True)
class Entry:
    """
    What the book knows of one rule. Frozen: a change makes a new entry, so a list of entries handed out stays as it was.

    :param rule: the rule as first proposed
    :param status: ``admitted`` (counts), ``waiting`` (will be judged again), ``rejected`` (judged and refused), ``pruned``
        (was admitted), ``invalid`` (cannot be grounded)
    :param confidence: weight c of the rule in the score, in [0, 1]
    :param on_prior: True while it is admitted on the proposer's word alone
    :param evidence: the last judgement's evidence, None before the first
    :param fitted: fitted thresholds and widths, None before the first fit
    :param reason: why the status is what it is, in words
    :param first_step: environment step of the first proposal
    :param times_proposed: how often it was proposed; repeats change nothing else
    :param misses: judgements without support in a row
    :param history: (step, verdict) of the last 50 judgements
    :param lineage: of a repaired rule the proposal it was made from and each change, oldest first; empty for one that stands
        as it was proposed (see ``sb3_nser.rules.lineage``)
    """

    rule: Rule
    status: Status = "waiting"
    confidence: float = 0.0
    on_prior: bool = False
    evidence: Evidence | None = None
    fitted: Fitted | None = None
    reason: str = "not judged yet"
    first_step: int = 0
    times_proposed: int = 1
    misses: int = 0
    history: tuple[tuple[int, str], ...] = ()
    lineage: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The rule's canonical text."""
        return self.rule.key

    @property
    def lower_bound(self) -> float:
        """Lower end of the lift's interval, −∞ without evidence."""
        return self.evidence.low if self.evidence is not None and math.isfinite(self.evidence.low) else -math.inf


@dataclass(frozen=True)
class Judgement:
    """
    What the logic found out about one rule, to be handed to ``RuleBook.judge_all``.

    :param key: the rule's key
    :param evidence: measured on held-out episodes
    :param fitted: fitted values, None if nothing could be fitted
    :param rule_fitted: the rule with its fitted thresholds, for printing
    :param duplicate_of: key of an earlier rule that fires on the same rows, or None
    """

    key: str
    evidence: Evidence
    fitted: Fitted | None = None
    rule_fitted: Rule | None = field(default=None, compare=False)
    duplicate_of: str | None = None


def moved_rule(rule: Rule, fitted: Fitted | None) -> Rule:
    """:return: the rule with its fitted thresholds, rounded to three digits, for printing; as it is if it was never fitted."""
    if not fitted:
        return rule
    literals = [
        literal if theta is None else literal.model_copy(update={"value": float(f"{theta:.3g}")})
        for literal, theta in zip(rule.literals, fitted.get("theta") or [None] * len(rule.literals), strict=True)
    ]
    head = rule.head
    if fitted.get("head_theta") is not None:
        head = head.model_copy(update={"value": float(f"{fitted['head_theta']:.3g}")})
    return rule.model_copy(update={"literals": tuple(literals), "head": head})


def decide(entry: Entry, judgement: Judgement, policy: AdmissionPolicy, step: int, duplicate_id: str | None = None) -> Entry:
    """
    Apply the admission policy to one rule.

    :param entry: the entry as it is
    :param judgement: what was found out
    :param policy: the thresholds
    :param step: environment step of the judgement
    :param duplicate_id: short id of the rule it repeats, None if it repeats none
    :return: the entry as it will be
    """
    evidence = judgement.evidence
    history = (*entry.history, (int(step), str(evidence.verdict)))[-MAX_HISTORY:]
    entry = replace(entry, evidence=evidence, fitted=judgement.fitted or entry.fitted, history=history)
    if entry.status == "invalid":
        return entry
    fitted_confidence = (judgement.fitted or {}).get("confidence")
    measured = entry.rule.confidence if fitted_confidence is None else float(fitted_confidence)
    if entry.rule.pinned:  # measured and reported, but the user's word stands
        confidence = measured if evidence.verdict == "supported" else entry.rule.confidence
        return replace(entry, status="admitted", confidence=max(confidence, entry.rule.confidence), reason=PINNED_REASON)
    if duplicate_id is not None:
        return _refuse(entry, f"duplicate of {duplicate_id}")
    if evidence.verdict == "supported":
        reason = "the data support it"
        # what held-out data confirm never counts for less than the proposer's word
        confidence = max(measured, entry.rule.confidence)
        return replace(entry, status="admitted", confidence=confidence, on_prior=False, misses=0, reason=reason)
    if evidence.verdict == "no_evidence":
        return _without_evidence(entry, policy)
    if evidence.verdict == "never_fires":
        if entry.status == "admitted" and not entry.on_prior and entry.misses + 1 < policy.patience:
            return replace(entry, misses=entry.misses + 1)
        return replace(entry, status="waiting", confidence=0.0, on_prior=False, misses=0, reason="never fires")
    if evidence.verdict == "always_fires":
        return _refuse(entry, "always fires: it tells no states apart")
    if evidence.verdict == "refuted":
        return _refuse(entry, "the data speak against it")
    return _inconclusive(entry, policy)


def _without_evidence(entry: Entry, policy: AdmissionPolicy) -> Entry:
    """In sparse tasks no rule can be judged before the first success, and that is when rules help most."""
    if entry.status in ("rejected", "pruned") or (entry.status == "admitted" and not entry.on_prior):
        return entry  # earlier evidence stands
    evidence = entry.evidence
    if evidence is not None and evidence.support >= LEANING_ROWS and evidence.contrast >= LEANING_ROWS and evidence.lift < 0.0:
        reason = "too few rows to judge, and they lean against it"
        return replace(entry, status="waiting", confidence=0.0, on_prior=False, reason=reason)
    confidence = policy.prior_weight * entry.rule.confidence
    if confidence <= 0.0:
        return replace(
            entry, status="waiting", confidence=0.0, on_prior=False, reason="no evidence yet, and no prior to go by"
        )
    reason = "no evidence yet: admitted on the proposer's word"
    return replace(entry, status="admitted", confidence=confidence, on_prior=True, reason=reason)


def _inconclusive(entry: Entry, policy: AdmissionPolicy) -> Entry:
    misses = entry.misses + 1
    if entry.status in ("rejected", "pruned"):
        return entry
    if entry.status == "admitted" and entry.on_prior:
        if entry.evidence is not None and entry.evidence.lift > 0.0:
            return replace(entry, misses=misses, reason="on the proposer's word; the data lean its way")
        return _refuse(replace(entry, misses=misses), "the data lean against it")
    if entry.status == "admitted":
        if misses >= policy.patience:
            return _refuse(replace(entry, misses=misses), f"no support in {misses} judgements in a row")
        return replace(entry, misses=misses, reason="supported before; inconclusive now")
    if misses >= policy.waiting_patience:
        return _refuse(replace(entry, misses=misses), f"inconclusive in {misses} judgements in a row")
    return replace(entry, status="waiting", confidence=0.0, misses=misses, reason="inconclusive: waits for more data")


def _refuse(entry: Entry, reason: str) -> Entry:
    was_in = entry.status in ("admitted", "pruned")
    return replace(entry, status="pruned" if was_in else "rejected", confidence=0.0, on_prior=False, reason=reason)
