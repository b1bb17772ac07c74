"""Entries of the rule book as plain JSON values, and as a ``rules.yaml`` that a person can edit."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping

import yaml
from pydantic import ValidationError

from sb3_nser.arguments import closest
from sb3_nser.errors import ConfigurationError, printable
from sb3_nser.rules.entry import STATUSES, Entry, Fitted, moved_rule
from sb3_nser.rules.evidence import VERDICTS, Evidence, describe_evidence
from sb3_nser.rules.formula import Condition, Literal
from sb3_nser.rules.lineage import MAX_LINEAGE, MAX_STEP_CHARACTERS
from sb3_nser.rules.model import Rule
from sb3_nser.rules.normal import thresholds
from sb3_nser.rules.text import parse_rule

YAML_FORMAT = 1
MAX_YAML = 2_000_000
MAX_YAML_NODES = 100_000
"""Far more than a full rule book has; a file of the longest allowed size with nothing but short values takes minutes."""

_LARGEST = 3.4e38  # of float32, in which rules are fitted and scored
_NARROWEST = 1e-15  # of a width and of a scale: what is divided by both stays in float32

_HEADER = """\
# Rules, those that count first. Edit and load again:
#   pinned: true    the rule always counts and is never pruned
#   enabled: false  the rule never counts
#   rule: IF ...    a new text makes a new rule; its old evidence no longer counts
# A new rule needs no more than its 'rule:' line. 'evidence' and 'fitted_rule' are for reading;
# 'measured' and 'fitted' hold the numbers.
"""
_FITTED_LISTS = ("theta", "tau", "scale")
_FITTED_NUMBERS = ("head_theta", "head_tau", "head_scale", "confidence")


class PlainLoader(yaml.SafeLoader):
    """Plain data only; no aliases: nested, they make a small file fill the memory; no numbers that only Python can hold."""

    nodes = 0

    def compose_node(self, parent: typing.Any, index: typing.Any) -> typing.Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not read; write the value out")
        self.nodes += 1
        if self.nodes > MAX_YAML_NODES:
            raise yaml.YAMLError(f"a rules file may hold at most {MAX_YAML_NODES} values")
        return super().compose_node(parent, index)

    def construct_yaml_int(self, node: typing.Any) -> int:
        value = int(super().construct_yaml_int(node))
        if abs(value) >= 2**63:
            raise yaml.YAMLError("whole numbers of more than 64 bits are not read")
        return value


PlainLoader.add_constructor("tag:yaml.org,2002:int", PlainLoader.construct_yaml_int)


def entry_to_dict(entry: Entry) -> dict[str, typing.Any]:
    """:return: the entry as plain JSON values."""
    return {
        "rule": entry.rule.model_dump(mode="json"),
        "status": entry.status,
        "confidence": float(entry.confidence),
        "on_prior": entry.on_prior,
        "evidence": None if entry.evidence is None else entry.evidence.to_dict(),
        "fitted": entry.fitted,
        "reason": entry.reason,
        "first_step": entry.first_step,
        "times_proposed": entry.times_proposed,
        "misses": entry.misses,
        "history": [[step, verdict] for step, verdict in entry.history],
        "lineage": list(entry.lineage),
    }


def entry_from_dict(data: Mapping[str, typing.Any]) -> Entry:
    """
    :param data: what ``entry_to_dict`` returned
    :raises ConfigurationError: if a key or value does not fit
    """
    if not isinstance(data, Mapping) or "rule" not in data:
        raise ConfigurationError(f"a rule book entry must be a mapping with the key 'rule', got {data!r}.")
    try:
        rule = Rule.model_validate(data["rule"])
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"rule book entry {data['rule']!r}: {place or 'rule'}: {first['msg']}.") from error
    return _entry(rule, {key: value for key, value in data.items() if key != "rule"})


def dump_yaml(entries: Iterable[Entry]) -> str:
    """:return: ``rules.yaml``."""
    shown = [_to_yaml(entry) for entry in entries]
    body = yaml.safe_dump({"format": YAML_FORMAT, "rules": shown}, sort_keys=False, allow_unicode=True, width=10_000)
    return _HEADER + str(body)


def load_yaml(text: str) -> list[Entry]:
    """
    :param text: the contents of a ``rules.yaml``
    :return: its entries in file order; of two that say the same the first stays
    :raises ConfigurationError: a sentence that names the rule
    """
    unique: dict[str, Entry] = {}
    for item in read_items(text):
        if isinstance(item, ConfigurationError):
            raise item
        unique.setdefault(item.key, item)
    return list(unique.values())


def read_items(text: str) -> list[Entry | ConfigurationError]:
    """
    A rules file item by item, so that one bad rule does not hide what is wrong with the next.

    :param text: the contents of a ``rules.yaml``
    :return: per item of its list, in file order, the entry or what is wrong with it; repeats stay
    :raises ConfigurationError: if the file as a whole is no rules file
    """
    found: list[Entry | ConfigurationError] = []
    for number, item in enumerate(_items(text), start=1):
        try:
            found.append(_from_yaml(item, number))
        except ConfigurationError as error:
            found.append(error)
    return found


def _items(text: str) -> list[typing.Any]:
    if len(text) > MAX_YAML:
        raise ConfigurationError(f"a rules file may have at most {MAX_YAML} characters, got {len(text)}.")
    try:
        data = yaml.load(text, PlainLoader)
    except (yaml.YAMLError, ValueError, RecursionError, TypeError, AttributeError, OverflowError) as error:
        raise ConfigurationError(f"the rules file is not valid YAML: {' '.join(str(error).split())}") from error
    if data is None:
        return []
    if not isinstance(data, Mapping):
        raise ConfigurationError("a rules file begins with a line 'rules:'; the rules stand below it, each behind '- '.")
    if unknown := sorted(str(key) for key in set(data) - {"format", "rules"}):
        raise ConfigurationError(
            f"a rules file has the keys 'format' and 'rules', nothing else at the top, but this one has {unknown[0][:100]!r}."
            f"{closest(unknown[0], ('format', 'rules'))}"
        )
    if data.get("format", YAML_FORMAT) != YAML_FORMAT:
        raise ConfigurationError(f"rules file format {data['format']!r} cannot be read; this release reads {YAML_FORMAT}.")
    items = data.get("rules") or []
    if not isinstance(items, list):
        raise ConfigurationError(f"'rules' must be a list, got {type(items).__name__}.")
    return items


def _to_yaml(entry: Entry) -> dict[str, typing.Any]:
    rule = entry.rule
    shown: dict[str, typing.Any] = {
        "rule": str(rule),
        "status": entry.status,
        "reason": entry.reason,
        "evidence": describe_evidence(entry.evidence),
        "fitted_rule": None if entry.fitted is None else str(moved_rule(rule, entry.fitted)),
        "confidence": float(entry.confidence),
        "pinned": rule.pinned,
        "enabled": rule.enabled,
        "why": rule.why,
        "source": rule.source,
        "lineage": list(entry.lineage),
        "prior": float(rule.confidence),
        "id": rule.id,
        "on_prior": entry.on_prior,
        "first_step": entry.first_step,
        "times_proposed": entry.times_proposed,
        "misses": entry.misses,
        "history": [f"{step} {verdict}" for step, verdict in entry.history],
        "measured": None if entry.evidence is None else entry.evidence.to_dict(),
        "fitted": entry.fitted,
    }
    return {key: value for key, value in shown.items() if value not in (None, "", [])}


_YAML_KEYS = (
    "rule status reason evidence confidence pinned enabled why source lineage prior id on_prior first_step times_proposed "
    "misses history measured fitted fitted_rule"
).split()


def _from_yaml(item: typing.Any, number: int) -> Entry:
    if isinstance(item, str):
        item = {"rule": item}
    if not isinstance(item, Mapping) or not isinstance(item.get("rule"), str):
        raise ConfigurationError(f"rule {number} of the rules file needs a line 'rule: IF ... THEN ...'.")
    where = f"rule {number} of the rules file ('{item['rule'][:100]}')"
    unknown = sorted(str(key) for key in set(item) - set(_YAML_KEYS))
    if unknown:
        hint = closest(unknown[0], ("rule", "pinned", "enabled", "prior", "confidence", "why"))
        raise ConfigurationError(
            f"{where} has the unknown key {unknown[0]!r}.{hint} Keys to write: rule, pinned, enabled, prior."
        )
    try:
        rule = parse_rule(item["rule"])
    except ConfigurationError as error:
        raise ConfigurationError(f"rule {number} of the rules file: {error}") from error
    kept = item.get("id") == rule.id  # neither edited nor written by hand
    options = {key: item[key] for key in ("pinned", "enabled", "why", "source") if key in item}
    if item.get("prior", None if kept else item.get("confidence")) is not None:
        options["confidence"] = item.get("prior", item.get("confidence"))
    if not kept:
        options["source"] = "user"
    try:
        rule = Rule.model_validate({**rule.model_dump(), **options})
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigurationError(f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg']}.") from error
    if not kept:
        return Entry(rule)
    rest = {key: item[key] for key in ("status", "confidence", "reason", "on_prior", "first_step", "times_proposed", "misses")
            if key in item}  # fmt: skip
    rest["evidence"], rest["fitted"] = item.get("measured"), item.get("fitted")
    lines = item.get("history") or []
    if not isinstance(lines, list):
        raise ConfigurationError(f"{where}: history must be a list of a step and a verdict each.")
    rest["history"] = [str(line).split() for line in lines]
    rest["lineage"] = item.get("lineage")
    try:
        return _entry(rule, rest)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error


def _entry(rule: Rule, data: Mapping[str, typing.Any]) -> Entry:
    """Build an entry from untrusted values."""
    values = dict(data)
    evidence = values.pop("evidence", None)
    history = values.pop("history", None) or []
    fitted = values.pop("fitted", None)
    lineage = values.pop("lineage", None) or []
    checks: dict[str, tuple[type, ...]] = {
        "status": (str,), "reason": (str,), "confidence": (int, float), "on_prior": (bool,),
        "first_step": (int,), "times_proposed": (int,), "misses": (int,),
    }  # fmt: skip
    for key, value in values.items():
        if key not in checks:
            raise ConfigurationError(f"a rule book entry has no key {key!r}; known: rule, {', '.join(checks)}.")
        if not isinstance(value, checks[key]) or (isinstance(value, bool) and key != "on_prior"):
            raise ConfigurationError(f"{key}={value!r} must be of type {checks[key][-1].__name__}.")
    if values.get("status", "waiting") not in STATUSES:
        raise ConfigurationError(f"status {values['status']!r} must be one of {', '.join(STATUSES)}.")
    if not 0.0 <= values.get("confidence", 0.0) <= 1.0:
        raise ConfigurationError(f"confidence={values['confidence']!r} must lie between 0 and 1.")
    try:
        past = tuple((int(step), str(verdict)) for step, verdict in history)
    except (TypeError, ValueError, OverflowError):
        past = ((0, ""),)
    if any(verdict not in VERDICTS for _, verdict in past):
        raise ConfigurationError("history must be a list of a step and a verdict each.")
    if not isinstance(lineage, list) or len(lineage) > MAX_LINEAGE or not all(isinstance(step, str) for step in lineage):
        raise ConfigurationError(f"lineage must be a list of at most {MAX_LINEAGE} texts.")
    try:
        measured = None if evidence is None else Evidence.from_dict(evidence)
    except OverflowError:  # a whole number that is no float
        raise ConfigurationError("evidence holds a number that is too large.") from None
    return Entry(
        rule,
        lineage=tuple(printable(step, MAX_STEP_CHARACTERS) for step in lineage),
        evidence=measured,
        fitted=None if fitted is None else _fitted(fitted, rule),
        history=past,
        **values,
    )


def _fitted(data: typing.Any, rule: Rule) -> Fitted:
    known = (*_FITTED_LISTS, *_FITTED_NUMBERS)
    if not isinstance(data, Mapping) or set(data) - set(known):
        raise ConfigurationError(f"fitted must be a mapping with the keys {', '.join(known)}, got {data!r}.")
    for key, value in data.items():
        if key in _FITTED_LISTS and not _one_per_condition(value, rule):
            raise ConfigurationError(
                f"fitted {key} must be a list with one item per condition of the rule: null, a number, or a list with one "
                "number per number in the condition."
            )
        items = _flat(value) if key in _FITTED_LISTS else [value]
        for number in items:
            if number is not None and (isinstance(number, bool) or not isinstance(number, int | float)):
                raise ConfigurationError(f"fitted {key} holds {number!r}, which is no number.")
            if number is not None and not abs(number) <= _LARGEST:
                raise ConfigurationError(f"fitted {key} must hold finite numbers (in float32).")
            if number is not None and key in ("tau", "scale", "head_tau", "head_scale") and number < _NARROWEST:
                raise ConfigurationError(f"fitted {key} must hold positive numbers from {_NARROWEST:g} on, got {number!r}.")
    return dict(data)


def _one_per_condition(value: typing.Any, rule: Rule) -> bool:
    if not isinstance(value, list) or len(value) != len(rule.literals):
        return False
    return all(item is None or _fits(item, condition) for item, condition in zip(value, rule.literals, strict=True))


def _fits(item: typing.Any, condition: Condition) -> bool:
    count = len(thresholds(condition))
    if isinstance(condition, Literal) and count < 2:
        return not isinstance(item, list)
    return isinstance(item, list) and len(item) == count


def _flat(items: list[typing.Any]) -> list[typing.Any]:
    return [number for item in items for number in (item if isinstance(item, list) else [item])]
