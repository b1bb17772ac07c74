"""Fuzzy operators on truths in [0, 1]: three t-norms, negation and the Reichenbach implication.

Definitions as usual in fuzzy logic (Hájek 1998; for their behaviour under gradients van Krieken et al. 2022, "Analyzing
Differentiable Fuzzy Logic Operators"). Quantifiers are not here yet.
"""

from __future__ import annotations

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
    The implication 1 − a + ab. Here for the formula layer only: a rule's score is its firing strength, because the implication
    is nearly 1 wherever the antecedent is false, that is, almost everywhere.

    :return: truths, broadcast
    """
    return 1.0 - antecedent + antecedent * consequent


def log_stable(truths: th.Tensor, epsilon: float = EPSILON) -> th.Tensor:
    """
    Logarithm that stays finite at 0: log((1 − ε) a + ε), the squeeze that Badreddine et al. (2022, "Logic Tensor Networks")
    call π₀.

    :param truths: in [0, 1]
    :return: in [log ε, 0]
    """
    return th.log((1.0 - epsilon) * truths + epsilon)
