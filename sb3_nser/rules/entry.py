"""One rule in the book, the policy that decides about it, and the decision itself."""

from __future__ import annotations

import math
import typing
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace

from sb3_nser.errors import ConfigurationError
from sb3_nser.rules.evidence import Evidence
from sb3_nser.rules.formula import Condition
from sb3_nser.rules.model import Rule
from sb3_nser.rules.normal import with_thresholds

Status = typing.Literal["admitted", "waiting", "rejected", "pruned", "invalid"]
STATUSES: tuple[str, ...] = typing.get_args(Status)

Fitted = dict[str, typing.Any]
"""Fitted values of one rule as plain JSON: ``theta``, ``tau``, ``scale`` (lists, one item per condition: None if it has no
threshold, a number, or a list of numbers for ``between`` and formulas), ``head_theta``, ``head_tau``, ``head_scale`` (numbers
or None) and ``confidence``."""

PINNED_REASON = "pinned by the user"
MAX_HISTORY = 50
FOLLOWED = 0.9
"""A policy that acts as the rule says in a larger share of the body's rows follows it without its help."""
FADED = 0.1
"""A fading rule below this confidence counts no longer."""
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
    :param waiting_patience: inconclusive judgements in a row after which a rule that the data never supported is refused
    :param false_admissions: share of the admitted rules that may be there by chance. A rule that the data have not supported
        before has to pass Benjamini and Hochberg's procedure (1995) over all rules of the judgement, at this share divided by
        ``waiting_patience``, since it is looked at so often at most; lower admits fewer rules, and later
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
    false_admissions: float = 0.05

    def __post_init__(self) -> None:
        shares = (("prior_weight", 0.0, 1.0), ("level", 0.5, 0.999), ("agreement", 0.5, 1.0), ("false_admissions", 0.0, 1.0))
        for name, low, high in shares:
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
    thetas = fitted.get("theta") or [None] * len(rule.literals)
    literals = [_moved(condition, theta) for condition, theta in zip(rule.literals, thetas, strict=True)]
    head = rule.head
    if fitted.get("head_theta") is not None:
        head = head.model_copy(update={"value": float(f"{fitted['head_theta']:.3g}")})
    return rule.model_copy(update={"literals": tuple(literals), "head": head})


def _moved(condition: Condition, theta: typing.Any) -> Condition:
    values = theta if isinstance(theta, list) else [theta]
    if None in values:
        return condition
    return with_thresholds(condition, iter([float(f"{value:.3g}") for value in values]))


def chance_findings(results: Sequence[tuple[Entry, Evidence]], policy: AdmissionPolicy) -> set[str]:
    """
    Correct for many rules and many looks: Benjamini and Hochberg (1995, "Controlling the False Discovery Rate") over the rules
    of one judgement.

    A rule that counts on evidence already is never among those returned: it stays as long as its own interval supports it, and
    fades by ``patience``.

    :param results: entries before the judgement, with the new evidence
    :param policy: thresholds
    :return: keys of the rules whose support may well be chance
    """
    family = sorted((found.p_value, entry.key) for entry, found in results if math.isfinite(found.p_value))
    allowed = policy.false_admissions / policy.waiting_patience / max(1, len(family))
    passed = max((rank for rank, (p_value, _) in enumerate(family, start=1) if p_value <= allowed * rank), default=0)
    counted = {entry.key for entry, _ in results if entry.status == "admitted" and not entry.on_prior}
    return {key for _, key in family[passed:]} - counted


def decide(
    entry: Entry,
    judgement: Judgement,
    policy: AdmissionPolicy,
    step: int,
    duplicate_id: str | None = None,
    by_chance: bool = False,
) -> Entry:
    """
    Apply the admission policy to one rule.

    :param entry: the entry as it is
    :param judgement: what was found out
    :param policy: the thresholds
    :param step: environment step of the judgement
    :param duplicate_id: short id of the rule it repeats, None if it repeats none
    :param by_chance: whether support may well be chance, so many rules having been looked at (see ``chance_findings``)
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
    if evidence.verdict == "supported" and not by_chance:
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
    if entry.status in ("rejected", "pruned"):
        return entry
    evidence = entry.evidence
    followed = evidence is not None and _followed(entry.rule, evidence, policy)
    if entry.status == "admitted" and not entry.on_prior:
        confidence = 0.5 * entry.confidence
        if not followed:
            return entry  # earlier evidence stands
        if confidence >= FADED:
            reason = "supported before; fades, for the policy acts so by itself now"
            return replace(entry, confidence=confidence, reason=reason)
    if followed:
        reason = "the policy acts so by itself: waits until it does not"
        return replace(entry, status="waiting", confidence=0.0, on_prior=False, misses=0, reason=reason)
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


def _followed(rule: Rule, evidence: Evidence, policy: AdmissionPolicy) -> bool:
    """Too few rows to judge by, because the policy hardly does otherwise any more: nothing is left to learn from the rule."""
    obeyed, other = evidence.support, evidence.contrast
    if rule.polarity == "avoid":
        obeyed, other = other, obeyed
    return obeyed >= policy.min_support > other and obeyed > FOLLOWED * (obeyed + other)


def _inconclusive(entry: Entry, policy: AdmissionPolicy) -> Entry:
    misses = entry.misses + 1
    if entry.status in ("rejected", "pruned"):
        return entry
    rival = entry.evidence.rival if entry.evidence is not None else ""
    if entry.status == "admitted" and entry.on_prior:
        if rival:
            return _refuse(replace(entry, misses=misses), f"another action does better there: {rival}")
        if misses >= policy.waiting_patience:
            return _refuse(replace(entry, misses=misses), f"inconclusive in {misses} judgements in a row")
        if entry.evidence is not None and entry.evidence.lift > 0.0:
            return replace(entry, misses=misses, reason="on the proposer's word; the data lean its way")
        return _refuse(replace(entry, misses=misses), "the data lean against it")
    if entry.status == "admitted":
        if misses >= policy.patience:
            return _refuse(replace(entry, misses=misses), f"no support in {misses} judgements in a row")
        return replace(entry, misses=misses, reason="supported before; inconclusive now")
    if misses >= policy.waiting_patience:
        return _refuse(replace(entry, misses=misses), f"inconclusive in {misses} judgements in a row")
    reason = f"another action does better there: {rival}" if rival else "inconclusive: waits for more data"
    return replace(entry, status="waiting", confidence=0.0, misses=misses, reason=reason)


def _refuse(entry: Entry, reason: str) -> Entry:
    was_in = entry.status in ("admitted", "pruned")
    return replace(entry, status="pruned" if was_in else "rejected", confidence=0.0, on_prior=False, reason=reason)
