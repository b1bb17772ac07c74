"""What a vocabulary is made of: named features of the observation, named actions, and the task in words.

Rules, prompts and logic speak these names only; no index into an observation leaves this room.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch as th

from sb3_nser.errors import ConfigurationError, UnsupportedError
from sb3_nser.vocabulary.batches import Batch, as_tensors, n_rows

Kind = Literal["number", "boolean", "category"]

BOOLEAN_VALUES = ("no", "yes")
"""The two values of a boolean feature, in code order: 0.0 is ``no``, 1.0 is ``yes``."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*\Z")
_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*\Z")


def _check_name(name: str, what: str) -> None:
    if not isinstance(name, str) or not _NAME.match(name) or len(name) > 64:
        raise ConfigurationError(
            f"{what} name {name!r} cannot stand in a rule: use a letter, then letters, digits, '_' and '.', at most 64 in all."
        )


@dataclass(frozen=True)
class Feature:
    """One named quantity that rules may speak of.

    :param name: identifier used in rules, prompts and files (letters, digits, ``_`` and ``.``)
    :param kind: ``number`` (any real value), ``boolean`` (0.0 or 1.0) or ``category`` (an index into ``values``)
    :param meaning: one line in plain words, shown to the language model and to people
    :param fn: vectorised: takes the decoded observation and the decoded next observation (None unless ``uses_next``),
        returns a tensor of shape (N,) that holds numbers, 0/1, or category indices
    :param unit: unit of a number, for example ``rad`` or ``m/s``; empty if it has none
    :param low: smallest value worth naming, None if unbounded; a hint for people and prompts, never enforced
    :param high: largest value worth naming, None if unbounded
    :param values: the names of a category's values, in code order (a boolean always has ``no``, ``yes``)
    :param uses_next: True if ``fn`` reads the next observation
    :raises ConfigurationError: if the name cannot stand in a rule, or a category has fewer than two distinct values
    """

    name: str
    kind: Kind
    meaning: str
    fn: Callable[[Any, Any], th.Tensor] = field(repr=False, compare=False)
    unit: str = ""
    low: float | None = None
    high: float | None = None
    values: tuple[str, ...] = ()
    uses_next: bool = False

    def __post_init__(self) -> None:
        _check_name(self.name, "feature")
        if self.kind == "boolean":
            object.__setattr__(self, "values", BOOLEAN_VALUES)
        elif self.kind == "category":
            if len(self.values) < 2 or len(set(self.values)) != len(self.values):
                raise ConfigurationError(
                    f"category feature {self.name!r} needs two or more distinct values, got {self.values!r}."
                )
            for value in self.values:
                if not isinstance(value, str) or not _VALUE.match(value):
                    raise ConfigurationError(
                        f"value {value!r} of feature {self.name!r} must be letters, digits, '_', '.', '+', '-'; no spaces."
                    )
        elif self.kind == "number":
            if self.values:
                raise ConfigurationError(f"number feature {self.name!r} cannot have values; use kind='category'.")
        else:
            raise ConfigurationError(f"feature {self.name!r}: kind={self.kind!r} must be 'number', 'boolean' or 'category'.")
        for side in ("low", "high"):
            bound = getattr(self, side)
            if bound is not None and not math.isfinite(bound):
                object.__setattr__(self, side, None)  # an infinite limit says nothing (CartPole's velocities)

    def code(self, value: str) -> int:
        """:return: the index of a named value; raises KeyError if the feature has no such value."""
        try:
            return self.values.index(value)
        except ValueError:
            raise KeyError(value) from None


@dataclass(frozen=True)
class ActionSet:
    """The named actions: one name per action (discrete), or one name per dimension in environment units (continuous).

    :param names: action names, or dimension names, in index order
    :param low: continuous only: lower limit of each dimension in environment units
    :param high: continuous only: upper limit of each dimension
    :param units: continuous only: unit of each dimension
    :raises ConfigurationError: if names repeat, are empty or unusable, or the limits do not match the names
    """

    names: tuple[str, ...]
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    units: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) != len(self.names):
            raise ConfigurationError(f"action names must be distinct and at least one, got {self.names!r}.")
        for name in self.names:
            _check_name(name, "action")
        if (self.low is None) != (self.high is None):
            raise ConfigurationError("continuous actions need both low and high limits.")
        if self.low is not None and self.high is not None and not len(self.low) == len(self.high) == len(self.names):
            raise ConfigurationError(
                f"{len(self.names)} action dimensions need as many limits, got {len(self.low)} low and {len(self.high)} high."
            )

    @property
    def continuous(self) -> bool:
        """True for Box actions: a rule's head then compares a dimension with a number."""
        return self.low is not None

    def from_buffer(self, actions: np.ndarray) -> np.ndarray:
        """
        Stored actions in environment units. SB3's off-policy algorithms store Box actions scaled to [-1, 1].

        :param actions: what the replay buffer holds, shape (N, action_dim)
        :return: discrete: shape (N,) int64; continuous: shape (N, action_dim) float32 in environment units
        """
        actions = np.asarray(actions)
        if self.low is None or self.high is None:
            return actions.reshape(len(actions), -1)[:, 0].astype(np.int64)
        low, high = np.asarray(self.low, np.float64), np.asarray(self.high, np.float64)
        unit = actions.reshape(len(actions), -1).astype(np.float64)
        scaled: np.ndarray = low + 0.5 * (unit + 1.0) * (high - low)
        return scaled.astype(np.float32)


RESERVED_OBJECTS = ("earlier", "within")
"""What a quantifier says of steps; no object set may be called so."""


@dataclass(frozen=True)
class ObjectSet:
    """Objects that rules may quantify over: ``exists object (kind is key AND distance < 3)``.

    :param name: what a rule calls one of them, for example ``object``
    :param meaning: one line in plain words
    :param features: their features; a function returns one value per row and place, a tensor of shape (N, places)
    :param present: takes what the features' functions take, returns booleans of shape (N, places): whether a place holds an
        object. None: every place does
    :raises ConfigurationError: if the name cannot stand in a rule, or two features share a name
    """

    name: str
    meaning: str
    features: tuple[Feature, ...]
    present: Callable[[Any, Any], th.Tensor] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_name(self.name, "object set")
        if self.name.lower() in RESERVED_OBJECTS:
            raise ConfigurationError(f"objects cannot be called {self.name!r}: rules say that of earlier steps.")
        _check_distinct(f"object set {self.name!r}", self.features)

    @classmethod
    def of_rows(
        cls, name: str, meaning: str, features: Sequence[Feature], rows: Callable[[Any], th.Tensor],
        present: Callable[[th.Tensor], th.Tensor] | None = None,
    ) -> ObjectSet:  # fmt: skip
        """
        Objects that are the rows of one array, such as a key of a Dict observation of shape (n_objects, k).

        :param features: one per column, in order; their own functions are not called
        :param rows: takes the decoded observation, returns that array, shape (N, n_objects, k)
        :param present: takes the array, returns booleans (N, n_objects); None: rows that hold a number other than 0
        """

        def column(at: int, now: Any, _later: Any) -> th.Tensor:
            return rows(now)[..., at]

        def there(now: Any, _later: Any) -> th.Tensor:
            table = rows(now)
            return (table != 0).any(-1) if present is None else present(table)

        columns = tuple(replace(feature, fn=partial(column, at)) for at, feature in enumerate(features))
        return cls(name, meaning, columns, there)


@dataclass(frozen=True)
class Vocabulary:
    """Names for what the agent sees and does.

    :param name: short name, for example ``cartpole``
    :param task: the task in one or two sentences, shown to the language model
    :param features: the features, the most telling ones first: a model is shown two at a time, mostly the first two
    :param actions: the named actions
    :param decode: turns a batch of raw observations (tensor of shape (N, *observation_shape), for Dict spaces a dictionary of
        such tensors) into whatever the features' functions read; called once per batch. The default passes it through.
    :param objects: sets of objects that rules may quantify over. Inside such a quantifier a rule may use the objects' features
        and those of the state, so that no two of them may share a name
    :raises ConfigurationError: if two features share a name, or there is none
    """

    name: str
    task: str
    features: tuple[Feature, ...]
    actions: ActionSet
    decode: Callable[[Batch], Any] | None = field(default=None, repr=False, compare=False)
    objects: tuple[ObjectSet, ...] = ()

    def __post_init__(self) -> None:
        if not self.features:
            raise ConfigurationError(f"vocabulary {self.name!r} has no features.")
        _check_distinct(f"vocabulary {self.name!r}", self.features)
        for group in self.objects:
            _check_distinct(f"vocabulary {self.name!r} with {group.name!r}", (*self.features, *group.features))
        groups = [group.name for group in self.objects]
        if len(set(groups)) < len(groups):
            raise ConfigurationError(f"object sets of vocabulary {self.name!r} must have different names, got {groups}.")
        object.__setattr__(self, "_by_name", {feature.name: feature for feature in self.features})

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def __getitem__(self, name: str) -> Feature:
        return self._index[name]

    @property
    def _index(self) -> dict[str, Feature]:
        index: dict[str, Feature] = self.__dict__["_by_name"]
        return index

    def evaluate(
        self,
        observations: Batch,
        next_observations: Batch | None = None,
        names: Sequence[str] | None = None,
    ) -> dict[str, th.Tensor]:
        """
        Compute features for a batch of raw (never normalised) observations.

        :param observations: arrays or tensors of shape (N, *observation_shape), any real dtype; for Dict spaces a dictionary
            of them
        :param next_observations: the same shape; needed only by features with ``uses_next``
        :param names: which features to compute; by default all those of the state. ``object:kind`` asks for the feature
            ``kind`` of the object set ``object``, ``object:`` for where there is one
        :return: name -> float32 tensor of shape (N,), of objects (N, places); booleans are 0/1, categories their index
        :raises UnsupportedError: if the vocabulary cannot read such observations, or a feature returns another shape
        """
        wanted = (
            [(feature.name, feature, False) for feature in self.features] if names is None else list(map(self._find, names))
        )
        decode = self.decode or _identity
        rows = n_rows(observations)
        now = decode(as_tensors(observations))
        later = None
        if next_observations is not None and any(feature.uses_next for _, feature, _ in wanted):
            later = decode(as_tensors(next_observations))
        out: dict[str, th.Tensor] = {}
        for name, feature, of_objects in wanted:
            try:
                column = feature.fn(now, later if feature.uses_next else None)
            except UnsupportedError:
                raise
            except Exception as error:
                raise UnsupportedError(
                    f"the function of feature {name!r} of vocabulary {self.name!r} failed "
                    f"({type(error).__name__}: {error}); it takes the decoded observations and next observations."
                ) from error
            if column.shape[:1] != (rows,) or column.dim() != 1 + of_objects:
                per = "row and place" if of_objects else "row"
                raise UnsupportedError(
                    f"feature {name!r} of vocabulary {self.name!r} returned shape {tuple(column.shape)} for {rows} "
                    f"observations; its function must return one value per {per}."
                )
            out[name] = column.to(th.float32)
        return out

    def _find(self, name: str) -> tuple[str, Feature, bool]:
        """:return: the name, the feature behind it, and whether it is one of objects"""
        group_name, colon, feature_name = name.partition(":")
        if not colon:
            return name, self._index[name], False
        group = next(group for group in self.objects if group.name == group_name)
        if feature_name:
            return name, next(feature for feature in group.features if feature.name == feature_name), True
        present = group.present or _everywhere(group.features[0])
        uses_next = any(feature.uses_next for feature in group.features)
        return name, Feature(group_name, "boolean", "whether there is one", present, uses_next=uses_next), True


def _check_distinct(where: str, features: Sequence[Feature]) -> None:
    names = [feature.name for feature in features]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ConfigurationError(f"{where} names {', '.join(repeated)} twice; feature names must differ.")


def _everywhere(feature: Feature) -> Callable[[Any, Any], th.Tensor]:
    return lambda now, later: th.ones_like(feature.fn(now, later), dtype=th.bool)


def _identity(observations: Batch) -> Batch:
    return observations
