"""Where a rule comes from: remembered by the book, and shown wherever the rule is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sb3_nser.errors import ConfigurationError
from sb3_nser.rules import Entry, RuleBook, parse_rule
from sb3_nser.rules.files import dump_yaml, entry_from_dict, entry_to_dict
from sb3_nser.rules.lineage import MAX_LINEAGE, repair_words, repaired_from, whole_lineage
from sb3_nser.rules.table import summary, table

ORIGIN = Entry(parse_rule("IF front_object is key THEN pickup"))
REPAIRED = Entry(
    parse_rule("IF front_object is key AND speed > 0.5 THEN pickup"),
    fitted={"theta": [None, 0.62], "tau": [None, 0.1], "scale": [None, 1.0], "confidence": 0.7},
    lineage=repaired_from(ORIGIN, ("added speed > 0.5",)),
)


def test_a_lineage_runs_from_the_proposal_to_the_rule_that_counts() -> None:
    assert whole_lineage(REPAIRED) == (
        "user: IF front_object is key THEN pickup",
        "repaired: added speed > 0.5",
        "fitted: IF front_object is key AND speed > 0.62 THEN pickup",
    )
    assert whole_lineage(ORIGIN) == ("user: IF front_object is key THEN pickup",)
    assert repair_words(ORIGIN) == ""


def test_a_repair_of_a_repair_still_names_the_first_proposal() -> None:
    entry = REPAIRED
    for turn in range(MAX_LINEAGE + 3):
        entry = replace(entry, lineage=repaired_from(entry, (f"moved speed > 0.5 to speed > {turn}",)))
    assert len(entry.lineage) == MAX_LINEAGE
    assert entry.lineage[0] == "user: IF front_object is key THEN pickup"
    assert entry.lineage[-1] == f"repaired: moved speed > 0.5 to speed > {MAX_LINEAGE + 2}"


def test_it_is_kept_in_json_and_in_rules_yaml_until_the_rule_is_edited() -> None:
    assert entry_from_dict(json.loads(json.dumps(entry_to_dict(REPAIRED)))) == REPAIRED
    text = dump_yaml([REPAIRED, ORIGIN])
    assert text.count("lineage:") == 1 and "repaired: added speed > 0.5" in text
    first, second = RuleBook.from_yaml(text).entries
    assert first.lineage == REPAIRED.lineage and second.lineage == ()
    edited = RuleBook.from_yaml(text.replace("speed > 0.5 THEN", "speed > 0.9 THEN")).entries[0]
    assert edited.lineage == () and edited.rule.source == "user"


@pytest.mark.parametrize("lineage", ["llm: x", [1], ["x"] * (MAX_LINEAGE + 1)])
def test_a_damaged_lineage_is_refused(lineage: object) -> None:
    with pytest.raises(ConfigurationError, match="lineage"):
        entry_from_dict({**entry_to_dict(REPAIRED), "lineage": lineage})


def test_people_and_the_model_are_told() -> None:
    shown = "\n".join(table([REPAIRED, ORIGIN]))
    assert shown.count("repaired from 'IF front_object is key THEN pickup' (added speed > 0.5)") == 1
    assert summary(REPAIRED)["lineage"] == list(whole_lineage(REPAIRED))
    (line,) = RuleBook(entries=[REPAIRED]).feedback_lines()
    assert "repaired from 'IF front_object is key THEN pickup'" in line
