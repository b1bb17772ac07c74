"""Fuzzy operators on truths in [0, 1]: three t-norms with their duals, implications, and quantifiers as generalised means.

Definitions as usual in fuzzy logic (Hájek 1998; for their behaviour under gradients van Krieken et al. 2022, "Analyzing
Differentiable Fuzzy Logic Operators"; the quantifiers are those of Badreddine et al. 2022, "Logic Tensor Networks").
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch as th

from sb3_nser.errors import ConfigurationError

EPSILON = 1e-4
"""Distance that truths keep from 0 or 1 where a logarithm or a gradient needs it."""


class TNorm(ABC):
    """A t-norm: the fuzzy AND. Truths lie in [0, 1]; 1 is neutral, 0 absorbs."""

    name: str

    @abstractmethod
    def conjunction(self, truths: th.Tensor, dim: int = -1) -> th.Tensor:
        """
        :param truths: any shape
        :param dim: the dimension to reduce; an empty one gives 1
        :return: truths with ``dim`` removed
        """

    def disjunction(self, truths: th.Tensor, dim: int = -1) -> th.Tensor:
        """:return: the dual t-conorm, 1 − T(1 − a, 1 − b, ...), with ``dim`` removed."""
        return 1.0 - self.conjunction(1.0 - truths, dim)

    def implication(self, antecedent: th.Tensor, consequent: th.Tensor) -> th.Tensor:
        """
        The S-implication ¬(a ∧ ¬b): Reichenbach's for the product, Kleene and Dienes' for Gödel, Łukasiewicz's for his own.
        It is the one that rules use, since it makes ``a -> b`` the same as ``NOT a OR b``.

        :return: truths, broadcast
        """
        return 1.0 - self(antecedent, 1.0 - consequent)

    def __call__(self, first: th.Tensor, second: th.Tensor) -> th.Tensor:
        """:return: the conjunction of two tensors of truths, broadcast against each other."""
        return self.conjunction(th.stack((first + 0.0 * second, second + 0.0 * first), dim=-1))


class Product(TNorm):
    """T(a, b) = ab. Its logarithm is a sum, so that long conjunctions keep a gradient where the product underflows."""

    name = "product"

    def conjunction(self, truths: th.Tensor, dim: int = -1) -> th.Tensor:
        return truths.prod(dim)

    def log_conjunction(self, log_truths: th.Tensor, dim: int = -1) -> th.Tensor:
        """
        :param log_truths: logarithms of truths, from ``logsigmoid`` or ``log_stable``; finite
        :return: logarithm of the conjunction, with ``dim`` removed; finite, with gradient 1 to every literal
        """
        return log_truths.sum(dim)


class Goedel(TNorm):
    """T(a, b) = min(a, b). The gradient reaches the weakest truth only (ties share it)."""

    name = "goedel"

    def conjunction(self, truths: th.Tensor, dim: int = -1) -> th.Tensor:
        return truths.amin(dim) if truths.shape[dim] else truths.sum(dim) + 1.0


class Lukasiewicz(TNorm):
    """T(a, b) = max(a + b − 1, 0). No gradient where the truths fall short by more than 1 in all."""

    name = "lukasiewicz"

    def conjunction(self, truths: th.Tensor, dim: int = -1) -> th.Tensor:
        return (1.0 - (1.0 - truths).sum(dim)).clamp(min=0.0)


TNORMS: dict[str, type[TNorm]] = {cls.name: cls for cls in (Product, Goedel, Lukasiewicz)}


def tnorm_by_name(name: str) -> TNorm:
    """
    :param name: ``product``, ``goedel`` or ``lukasiewicz``
    :raises ConfigurationError: if there is no such t-norm
    """
    if name not in TNORMS:
        raise ConfigurationError(f"tnorm={name!r} must be one of {', '.join(TNORMS)}.")
    return TNORMS[name]()


def negation(truths: th.Tensor) -> th.Tensor:
    """:return: 1 − a."""
    return 1.0 - truths


def reichenbach(antecedent: th.Tensor, consequent: th.Tensor) -> th.Tensor:
    """
    The implication 1 − a + ab. A rule's own score is its firing strength, not this: the implication is nearly 1 wherever the
    antecedent is false, that is, almost everywhere.

    :return: truths, broadcast
    """
    return 1.0 - antecedent + antecedent * consequent


def kleene_dienes(antecedent: th.Tensor, consequent: th.Tensor) -> th.Tensor:
    """:return: max(1 − a, b), broadcast."""
    return th.maximum(1.0 - antecedent, consequent)


def lukasiewicz_implication(antecedent: th.Tensor, consequent: th.Tensor) -> th.Tensor:
    """:return: min(1 − a + b, 1), broadcast; the S- and the residual implication of Łukasiewicz's t-norm."""
    return (1.0 - antecedent + consequent).clamp(max=1.0)


def goedel_implication(antecedent: th.Tensor, consequent: th.Tensor) -> th.Tensor:
    """:return: the residual of Gödel's t-norm: 1 where a ≤ b, else b; broadcast. No gradient where it is 1."""
    return th.where(antecedent <= consequent, th.ones_like(antecedent * consequent), consequent)


def goguen(antecedent: th.Tensor, consequent: th.Tensor) -> th.Tensor:
    """:return: the residual of the product: 1 where a ≤ b, else b / a; broadcast. No gradient where it is 1."""
    below = antecedent <= consequent
    return th.where(below, th.ones_like(antecedent * consequent), consequent / th.where(below, 1.0, antecedent))


def p_mean(
    truths: th.Tensor, p: float = 2.0, dim: int = -1, mask: th.Tensor | None = None, epsilon: float = EPSILON
) -> th.Tensor:
    """
    The fuzzy ∃: (mean of aᵖ)^(1/p). p = 1 is the mean; a larger p comes closer to the maximum, from below, and gives the
    gradient to fewer elements. Computed in log space, so that no power underflows.

    :param truths: in [0, 1], any shape
    :param p: at least 1
    :param dim: the dimension to reduce
    :param mask: which elements there are, booleans that broadcast to ``truths``; None: all. Of none at all the truth is 0
    :param epsilon: squeeze of the truths to [ε, 1] first (π₀), which keeps the gradient finite; 0 for none
    :return: truths with ``dim`` removed
    """
    if mask is None:
        count = truths.shape[dim]
        if not count:
            return truths.sum(dim)
        return th.exp((th.logsumexp(p * log_stable(truths, epsilon), dim) - math.log(count)) / p)
    logs = th.where(mask, p * log_stable(truths, epsilon), -1e9)
    number = mask.expand(logs.shape).sum(dim)
    mean = th.exp((th.logsumexp(logs, dim) - number.clamp(min=1).to(logs.dtype).log()) / p)
    return th.where(number > 0, mean, 0.0)


def p_mean_error(
    truths: th.Tensor, p: float = 2.0, dim: int = -1, mask: th.Tensor | None = None, epsilon: float = EPSILON
) -> th.Tensor:
    """
    The fuzzy ∀: 1 − (mean of (1 − a)ᵖ)^(1/p), the dual of ``p_mean``. A larger p comes closer to the minimum, from above.

    :return: truths with ``dim`` removed; of no elements the truth is 1
    """
    return 1.0 - p_mean(1.0 - truths, p, dim, mask, epsilon)


def log_stable(truths: th.Tensor, epsilon: float = EPSILON) -> th.Tensor:
    """
    Logarithm that stays finite at 0: log((1 − ε) a + ε), the squeeze that Badreddine et al. (2022, "Logic Tensor Networks")
    call π₀.

    :param truths: in [0, 1]
    :return: in [log ε, 0]
    """
    return th.log((1.0 - epsilon) * truths + epsilon)
