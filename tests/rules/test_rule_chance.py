"""Many rules and many looks; rules that lose their use."""

from __future__ import annotations

import numpy as np
import pytest

from sb3_nser.errors import ConfigurationError
from sb3_nser.rules import AdmissionPolicy, Evidence, Judgement, RuleBook, measure, parse_rule


def book_of(count: int, policy: AdmissionPolicy | None = None) -> RuleBook:
    book = RuleBook(policy)
    book.propose([parse_rule(f"IF x{k} > 0 THEN go") for k in range(count)], 0)
    return book


def supported(p_value: float) -> Evidence:
    return Evidence("supported", 1.0, 0.1, 2.0, 0.9, 100, 100, 0.3, 0.5, 1000, 50, p_value=p_value)


def test_benjamini_and_hochberg_by_hand() -> None:
    """Four rules at 0.05 / 5 looks = 0.01: the largest k with p_(k) <= 0.01 k / 4 is 2, so two pass."""
    book = book_of(4)
    p_values = [0.003, 0.001, 0.009, 0.02]
    book.judge_all([Judgement(e.key, supported(p)) for e, p in zip(book.entries, p_values, strict=True)], 1)
    assert [entry.status for entry in book.entries] == ["admitted", "admitted", "waiting", "waiting"]
    alone = book_of(1)
    alone.judge(alone.entries[0].key, supported(0.009), None, 1)  # fewer rules, less to correct for
    assert alone.entries[0].status == "admitted"
    # what the data have supported before stays as long as its interval does
    book.judge_all([Judgement(e.key, supported(0.04)) for e in book.entries], 2)
    assert [entry.status for entry in book.entries] == ["admitted", "admitted", "waiting", "waiting"]


def test_useless_rules_hardly_ever_get_in_however_often_they_are_looked_at() -> None:
    """Sixteen useless rules, judged five times on growing data, in twenty runs."""
    rng, admitted, uncorrected = np.random.default_rng(0), 0, 0
    for run in range(20):
        book, rows = book_of(16), 2000
        ids, returns = np.arange(rows) // 20, rng.normal(size=rows)
        bodies, matches = rng.random((16, rows)) < 0.5, rng.random((16, rows)) < 0.5
        ever = set()
        for look in range(1, 6):
            seen = slice(0, look * rows // 5)
            found = {
                entry.key: measure(bodies[k, seen], matches[k, seen], returns[seen], ids[seen], seed=run, resamples=200)
                for k, entry in enumerate(book.entries)
            }
            ever |= {key for key, one in found.items() if one.verdict == "supported"}
            results = [Judgement(entry.key, found[entry.key]) for entry in book.candidates()]
            book.judge_all(results, look)
            admitted += sum(entry.status == "admitted" and entry.history[-1][1] == "supported" and entry.misses == 0
                            and not entry.on_prior for entry in book.entries)  # fmt: skip
        uncorrected += len(ever)
    assert uncorrected > 20  # of 320: what the interval alone would let in at some time
    assert admitted <= 5


def test_false_admissions_is_checked() -> None:
    with pytest.raises(ConfigurationError, match="false_admissions"):
        AdmissionPolicy(false_admissions=2.0)


def test_a_rule_that_turns_useless_as_the_policy_improves_fades_out() -> None:
    """Pushing helps a beginner; the rest of the policy then makes up for its lack, and after ``patience`` looks it is gone."""
    rng, book = np.random.default_rng(1), book_of(1)
    key, ids, counted = book.entries[0].key, np.arange(4000) // 20, []
    for look in range(6):
        effect = 1.0 if look < 2 else 0.0
        body, match = rng.random(4000) < 0.4, rng.random(4000) < 0.3 + 0.1 * look
        found = measure(body, match, effect * match + rng.normal(size=4000), ids, seed=look)
        book.judge(key, found, {"confidence": 0.9}, 1000 * look)
        counted.append(sum(entry.confidence for entry in book.active()))
    assert counted[:3] == [0.9, 0.9, 0.9] and counted[-1] == 0.0
    assert book[key].status == "pruned" and "no support in 2 judgements" in book[key].reason


@pytest.mark.parametrize("polarity", ["prefer", "avoid"])
def test_a_rule_that_the_policy_follows_by_itself_fades_until_it_is_needed_again(polarity: str) -> None:
    rule = parse_rule("IF x > 0 THEN avoid go" if polarity == "avoid" else "IF x > 0 THEN go")
    book = RuleBook()
    book.propose([rule], 0)
    sides = (12, 900) if polarity == "avoid" else (900, 12)
    followed = Evidence("no_evidence", 1.0, -1.0, 3.0, 0.9, *sides, 0.3, sides[0] / 912, 3000, 50)
    book.judge(rule.key, supported(1e-6), {"confidence": 0.8}, 0)
    weights = []
    for look in range(1, 5):
        book.judge(rule.key, followed, None, look)
        weights.append(book[rule.key].confidence)
    assert weights == pytest.approx([0.4, 0.2, 0.1, 0.0])
    assert book[rule.key].status == "waiting" and "by itself" in book[rule.key].reason
    book.judge(rule.key, followed, None, 5)
    assert book[rule.key].status == "waiting"  # not again on its author's word
    book.judge(rule.key, supported(1e-6), {"confidence": 0.8}, 6)
    assert book[rule.key].status == "admitted"
