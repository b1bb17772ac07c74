"""The rule book: who counts, who is pruned, and what a person can do about it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from dataclasses import replace

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_nser.errors import ConfigurationError
from sb3_nser.rules import AdmissionPolicy, Entry, Evidence, Judgement, Rule, RuleBook, parse_rule
from sb3_nser.rules.evidence import VERDICTS, Verdict
from sb3_nser.rules.files import entry_from_dict, entry_to_dict

TEXT = "IF angle > 0.1 AND speed > 0 THEN right"


def found(verdict: Verdict, lift: float = 1.0, width: float = 0.5) -> Evidence:
    return Evidence(verdict, lift, lift - width, lift + width, 0.9, 100, 100, 0.12, 0.5, 1000, 50)


def book_with(*texts: str, policy: AdmissionPolicy | None = None, **options: object) -> RuleBook:
    book = RuleBook(policy)
    book.propose([parse_rule(text).model_copy(update=options) for text in texts], step=100)
    return book


def after(*verdicts: Evidence, **options: object) -> Entry:
    book = book_with(TEXT, **options)
    for number, evidence in enumerate(verdicts):
        book.judge(parse_rule(TEXT).key, evidence, None, step=1000 * (number + 1))
    return book.entries[0]


def test_admission_on_evidence_and_on_the_proposers_word() -> None:
    assert after().status == "waiting"
    entry = after(found("no_evidence"))
    assert (entry.status, entry.on_prior, entry.confidence) == ("admitted", True, 0.25)  # half of 0.5
    entry = after(found("no_evidence"), found("supported"))
    assert (entry.status, entry.on_prior) == ("admitted", False)
    assert after(found("inconclusive")).status == "waiting"
    assert after(found("refuted", -1.0)).status == "rejected"
    assert after(found("never_fires")).status == "waiting"
    assert after(found("always_fires")).status == "rejected"


def test_pruning() -> None:
    assert after(found("supported"), found("refuted", -1.0)).status == "pruned"
    assert after(found("no_evidence"), found("refuted", -1.0)).status == "pruned"
    assert after(found("no_evidence"), found("inconclusive", 0.1)).status == "admitted"
    assert after(found("no_evidence"), found("inconclusive", -0.1)).status == "pruned"
    assert after(found("supported"), found("inconclusive")).status == "admitted"
    assert after(found("supported"), found("inconclusive"), found("inconclusive")).status == "pruned"
    assert after(found("supported"), found("inconclusive"), found("supported"), found("inconclusive")).status == "admitted"
    assert after(found("supported"), found("no_evidence"), found("no_evidence"), found("no_evidence")).status == "admitted"
    assert after(*[found("inconclusive")] * 5).status == "rejected"
    assert after(found("refuted", -1.0), found("no_evidence")).status == "rejected"  # earlier evidence stands


@given(st.lists(st.sampled_from(VERDICTS), max_size=12))
def test_a_pinned_rule_always_counts_and_a_disabled_one_never(verdicts: list[Verdict]) -> None:
    for options in ({"pinned": True}, {"enabled": False}, {"pinned": True, "enabled": False}):
        book = book_with(TEXT, **options)
        for verdict in verdicts:
            book.judge(book.entries[0].key, found(verdict), {"confidence": 0.1}, step=1)
        assert len(book.active()) == (1 if options.get("enabled", True) else 0)
        assert all(entry.confidence >= 0.5 for entry in book.active())


def test_repeats_are_counted_and_change_nothing_else() -> None:
    """C37: the same rule twenty times, with conditions reordered and 0.10 for 0.1."""
    book = book_with(TEXT)
    book.judge(book.entries[0].key, found("supported"), None, 200)
    before = book.active()
    for number in range(20):
        proposal = book.propose([parse_rule("IF speed > 0.0 AND NOT angle < 0.10 THEN right")], step=300 + number)
        assert not proposal.new and len(proposal.repeated) == 1
    assert len(book) == 1 and book.entries[0].times_proposed == 21
    assert [replace(entry, times_proposed=1) for entry in book.active()] == before
    assert book.counts()["repeated"] == 20


def test_a_refused_rule_that_is_proposed_again_stays_refused() -> None:
    book = book_with(TEXT)
    book.judge(book.entries[0].key, found("refuted", -1.0), None, 200)
    book.propose([parse_rule(TEXT)], 300)
    assert not book.active() and not book.candidates() and book.entries[0].status == "rejected"


def test_near_copies_are_refused() -> None:
    book = book_with(TEXT, "IF angle > 0.100001 AND speed > 0 THEN right")
    first, second = (entry.key for entry in book.entries)
    book.judge_all([Judgement(first, found("supported")), Judgement(second, found("supported"), duplicate_of=first)], 200)
    assert [entry.key for entry in book.active()] == [first]
    assert book[second].reason == f"duplicate of {book[first].rule.id}"


def test_the_best_rules_count_if_there_are_too_many() -> None:
    policy = AdmissionPolicy(max_rules=3)
    book = book_with(*(f"IF angle > {k} THEN right" for k in range(8)), policy=policy)
    book.judge_all([Judgement(entry.key, found("supported", 1.0 + k)) for k, entry in enumerate(book.entries)], 200)
    assert [entry.evidence.lift for entry in book.active() if entry.evidence] == [8.0, 7.0, 6.0]
    book.propose([parse_rule("IF angle > 99 THEN right").model_copy(update={"pinned": True})], 300)
    assert book.active()[0].rule.pinned and len(book.active()) == 3


def test_the_book_does_not_grow_without_bound() -> None:
    book = RuleBook(AdmissionPolicy(max_entries=10))
    for k in range(50):
        book.propose([parse_rule(f"IF angle > {k} THEN right")], step=k)
        book.judge(book.entries[-1].key, found("refuted", -1.0) if k else found("supported"), None, k)
    assert len(book) <= 10 and len(book.active()) == 1


def test_contradictions_are_reported_and_do_not_depend_on_order() -> None:
    """C25."""
    texts = ["IF angle > 0.1 THEN raise", "IF angle > 0.1 THEN lower", "IF x > 1 AND x < 0 THEN raise"]
    reports = []
    for order in itertools.permutations(texts):
        book = RuleBook()
        proposal = book.propose([parse_rule(text) for text in order], 0)
        assert [str(rule) for rule, _ in proposal.invalid] == [texts[2]]
        book.judge_all([Judgement(entry.key, found("no_evidence")) for entry in book.candidates()], 1)
        reports.append((proposal.conflicts, sorted((entry.key, entry.confidence) for entry in book.active())))
    assert all(report == reports[0] for report in reports)
    assert len(reports[0][0]) == 1 and "prefer different actions" in reports[0][0][0][2]


def test_feedback_for_the_next_prompt() -> None:
    book = book_with(
        "IF a > 1 THEN go", "IF a > 2 THEN go", "IF a > 3 THEN go", "IF a > 4 AND a < 3 THEN go", "IF a > 5 THEN go"
    )
    keys = [entry.key for entry in book.entries]
    book.judge(keys[0], found("supported", 3.2, 1.8), None, 200)
    book.judge(keys[1], found("refuted", -2.0), None, 200)
    book.judge(keys[2], Evidence("never_fires"), None, 200)
    book.judge(keys[4], Evidence("no_evidence", body_rate=0.004), None, 200)
    lines = book.feedback_lines(10)
    assert lines[0] == "IF a > 1 THEN go: kept, lift +3.2 [+1.4, +5], fires in 12 %"
    assert "IF a > 5 THEN go: kept on your word, no evidence yet, fires in 0.4 %" in lines
    assert "IF a > 3 THEN go: never fires" in lines
    assert any(line.startswith("IF a > 2 THEN go: rejected, the data speak against it, lift -2") for line in lines)
    assert any("invalid, a cannot be above 4 and below 3" in line for line in lines)
    assert len(book.feedback_lines(3)) == 3 and "kept" in book.feedback_lines(3)[0] and "kept" not in book.feedback_lines(3)[2]


def test_feedback_names_the_thresholds_that_the_figures_belong_to() -> None:
    book = book_with("IF a > 1 THEN go")
    fitted = {"theta": [0.5], "tau": [0.1], "scale": [1.0], "head_theta": None, "confidence": 0.9}
    book.judge(book.entries[0].key, found("supported"), fitted, 200)
    assert "as 'IF a > 0.5 THEN go'" in book.feedback_lines()[0]
    assert book.active()[0].confidence == 0.9


verdict_lists = st.lists(st.sampled_from(VERDICTS), max_size=4)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.booleans(), verdict_lists, st.text(max_size=30)), max_size=6))
def test_json_and_yaml_keep_everything(items: list[tuple[int, bool, list[Verdict], str]]) -> None:
    book = RuleBook()
    for threshold, pinned, verdicts, why in items:
        rule = parse_rule(f"IF angle > {threshold / 10} AND front is not 3 THEN avoid torque > 1.5")
        book.propose([rule.model_copy(update={"pinned": pinned, "why": Rule._one_line(why), "source": "llm"})], threshold)
        for verdict in verdicts:
            fitted = {"theta": [threshold / 7, None], "tau": [0.1, None], "scale": [0.3, None], "confidence": 0.625}
            book.judge(rule.key, found(verdict, 1 / 3), fitted, 5)
    text = json.dumps(book.to_dict(), allow_nan=False)
    assert RuleBook.from_dict(json.loads(text)) == book
    again = RuleBook.from_yaml(book.to_yaml())
    assert {e.key: e for e in again.entries} == {e.key: e for e in book.entries}
    assert again.active() == book.active()


def test_the_yaml_shape_is_stable() -> None:
    book = book_with(TEXT)
    book.judge(book.entries[0].key, found("supported"), {"theta": [0.2, 0.0], "confidence": 0.75}, 200)
    text = book.to_yaml()
    data = yaml.safe_load(text)
    assert list(data) == ["format", "rules"]
    assert list(data["rules"][0])[:6] == ["rule", "status", "reason", "evidence", "fitted_rule", "confidence"]
    assert text.splitlines()[text.splitlines().index("rules:") + 1] == f"- rule: {TEXT}"


def test_a_person_edits_the_file() -> None:
    book = book_with(TEXT, "IF angle < 0 THEN left")
    for entry in book.entries:
        book.judge(entry.key, found("supported"), {"theta": [0.0] * len(entry.rule.literals), "confidence": 0.75}, 200)
    text = book.to_yaml()
    pinned = RuleBook.from_yaml(text.replace("pinned: false", "pinned: true"))
    assert all(entry.rule.pinned for entry in pinned.active()) and len(pinned.active()) == 2
    assert not RuleBook.from_yaml(text.replace("enabled: true", "enabled: false")).active()
    changed = RuleBook.from_yaml(text.replace("rule: IF angle < 0 THEN left", "rule: IF angle < -0.5 THEN left"))
    entry = changed[parse_rule("IF angle < -0.5 THEN left").key]
    assert (entry.status, entry.evidence, entry.fitted, entry.rule.source) == ("waiting", None, None, "user")
    added = RuleBook.from_yaml(
        "rules:\n- IF angle > 2 THEN left\n- {rule: IF angle > 3 THEN left, pinned: true, confidence: 0.9}\n"
    )
    assert [entry.status for entry in added.entries] == ["waiting", "admitted"]
    assert added.entries[1].confidence == 0.9
    assert len(RuleBook.from_yaml("")) == 0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("rules: [{rule: IF x THEN go}]", "rule 1 of the rules file: cannot read rule 'IF x THEN go'"),
        ("rules: [{rule: IF x > 1 THEN go, pined: true}]", "unknown key 'pined'. Did you mean 'pinned'"),
        ("rules: [{rule: IF x > 1 THEN go, pinned: perhaps}]", "pinned"),
        ("rules: [{rule: IF x > 1 THEN go, confidence: 85}]", "confidence"),
        ("rules: [{}]", "needs a line 'rule:"),
        ("rules: 3", "must be a list"),
        ("format: 9", "format 9"),
        ("hello: 1", "'format' and 'rules'"),
        ("rules: [", "not valid YAML"),
        ("!!python/object/apply:os.system ['true']", "not valid YAML"),
    ],
)
def test_mistakes_in_the_file_are_sentences(text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match="(?s)" + complaint.replace("(", "\\(")):
        RuleBook.from_yaml(text)


@pytest.mark.parametrize(
    ("key", "value"),
    [("status", "perhaps"), ("confidence", 2.0),
     ("misses", "3"), ("fitted", {"theta": [1.0]}), ("fitted", {"tau": [0.0, 0.1]}),
     ("history", [[1, "maybe"]]), ("evidence", {"verdict": "?"}), ("rule", {"literals": []}), ("colour", "red")],
)  # fmt: skip
def test_damaged_books_are_refused(key: str, value: object) -> None:
    data = book_with(TEXT).to_dict()
    data["entries"][0][key] = value
    with pytest.raises(ConfigurationError):
        RuleBook.from_dict(data)


def test_unknown_versions_policies_and_rules() -> None:
    with pytest.raises(ConfigurationError, match="version 9"):
        RuleBook.from_dict({"version": 9})
    with pytest.raises(ConfigurationError, match="prior_weight=2"):
        AdmissionPolicy(prior_weight=2)
    with pytest.raises(ConfigurationError, match="unknown keys patiense"):
        AdmissionPolicy.from_dict({"patiense": 3})
    with pytest.raises(ConfigurationError, match="the book has no rule"):
        RuleBook().judge("IF x > 1 THEN go", found("supported"), None, 0)


def _judged(*proposals: tuple[str, int], supported: str = "") -> RuleBook:
    """Rules proposed so many times each, judged without evidence but for one."""
    book = RuleBook()
    for text, times in proposals:
        for _ in range(times):
            book.propose([parse_rule(text).model_copy(update={"source": "llm"})], 0)
    verdicts = {parse_rule(text).key: "supported" if text == supported else "no_evidence" for text, _ in proposals}
    none = Evidence(verdict="no_evidence", lift=math.nan, low=math.nan, high=math.nan, level=0.9, support=0, contrast=2,
                    body_rate=0.1, head_rate=0.0, rows=20, episodes=4)  # fmt: skip
    good = dataclasses.replace(none, verdict="supported", lift=2.0, low=1.0, high=3.0, support=30, contrast=30)
    book.judge_all([Judgement(key, good if v == "supported" else none) for key, v in verdicts.items()], 1)
    return book


TOGGLE, DROP, FORWARD = (f"IF front is door AND carrying is key THEN {action}" for action in ("toggle", "drop", "forward"))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_contradictions_on_the_proposers_word_alone_do_not_count(order: tuple[int, ...]) -> None:
    def active(*proposals: tuple[str, int], supported: str = "") -> set[str]:
        book = _judged(*(proposals[k] for k in order if k < len(proposals)), supported=supported)
        return {str(entry.rule) for entry in book.active()}

    assert active((TOGGLE, 1)) == {TOGGLE}
    assert active((TOGGLE, 1), (DROP, 1), (FORWARD, 1)) == set()  # nothing speaks for one of them
    assert active((TOGGLE, 2), (DROP, 1), (FORWARD, 1)) == {TOGGLE}  # proposed more often
    assert active((TOGGLE, 1), (DROP, 2), (FORWARD, 1), supported=TOGGLE) == {TOGGLE}  # the data speak
    other = "IF front is wall THEN drop"
    assert active((TOGGLE, 1), (other, 1)) == {TOGGLE, other}  # no contradiction


def test_confirmed_rules_never_count_for_less_than_the_proposers_word() -> None:
    book = _judged((TOGGLE, 1), supported=TOGGLE)
    entry = book.active()[0]
    low = Judgement(entry.key, entry.evidence, {"confidence": 0.05})
    assert book.judge_all([low], 2)[0].confidence == entry.rule.confidence == 0.5


def test_a_few_rows_that_lean_against_a_rule_outweigh_the_proposers_word() -> None:
    book = _judged((TOGGLE, 1))
    key = book.entries[0].key
    leaning = dataclasses.replace(book.entries[0].evidence, lift=-0.2, support=6, contrast=200)
    assert book.judge_all([Judgement(key, leaning)], 2)[0].status == "waiting"
    fewer = dataclasses.replace(leaning, support=3)
    assert book.judge_all([Judgement(key, fewer)], 3)[0].status == "admitted"


def test_pinned_rules_count_however_many_there_are() -> None:
    policy = AdmissionPolicy(max_rules=2)
    book = book_with(*(f"IF angle > {k} THEN right" for k in range(5)), policy=policy, pinned=True)
    book.propose([parse_rule("IF angle > 9 THEN right")], 100)
    book.judge(parse_rule("IF angle > 9 THEN right").key, found("supported", 50.0), None, 200)
    assert len(book.active()) == 5 and all(entry.rule.pinned for entry in book.active())


def test_what_its_owner_switched_off_is_remembered_and_told() -> None:
    """Forgotten, it would count again with the next proposal."""
    book = RuleBook(AdmissionPolicy(max_entries=5))
    off = parse_rule(TEXT).model_copy(update={"enabled": False})
    book.propose([off], 0)
    assert book.feedback_lines() == [f"{TEXT}: the user has switched it off"]
    for k in range(20):
        book.propose([parse_rule(f"IF angle > {k} THEN left")], k)
        book.judge(book.entries[-1].key, found("refuted", -1.0), None, k)
    book.propose([parse_rule(TEXT)], 100)  # the model's own, not switched off
    assert not book[off.key].rule.enabled and not book.active() and len(book) == 5


def test_a_rule_that_is_no_longer_pinned_has_to_earn_its_place() -> None:
    book = book_with(TEXT, pinned=True)
    book.judge(book.entries[0].key, found("inconclusive"), None, 200)
    assert book.active()[0].reason == "pinned by the user"
    again = RuleBook.from_yaml(book.to_yaml().replace("pinned: true", "pinned: false"))
    assert (again.entries[0].status, again.active(), len(again.candidates())) == ("waiting", [], 1)
    again.judge(again.entries[0].key, found("supported"), None, 300)
    assert len(again.active()) == 1


def test_a_small_file_that_unfolds_without_bound_is_refused() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in itertools.pairwise("abcdefghij")
    )
    with pytest.raises(ConfigurationError, match=r"aliases .* are not read"):
        RuleBook.from_yaml(bomb)


@pytest.mark.parametrize(
    "line",
    [
        "fitted: {theta: [" + "9" * 400 + "]}",
        "measured: {verdict: supported, lift: " + "9" * 400 + "}",
        "first_step: 0x" + "f" * 10_000,
        "confidence: 0x" + "f" * 10_000,
    ],
)
def test_numbers_that_nothing_else_can_hold_are_refused_in_files(line: str) -> None:
    """What came in once would break the next writing of the file, in the middle of training."""
    text = f"rules:\n- rule: {TEXT}\n  id: {parse_rule(TEXT).id}\n  {line}\n"
    with pytest.raises(ConfigurationError, match="more than 64 bits"):
        RuleBook.from_yaml(text)


@pytest.mark.parametrize("key", ["fitted", "evidence"])
def test_numbers_too_large_for_a_float_are_refused_in_json(key: str) -> None:
    entry = Entry(parse_rule(TEXT), evidence=found("supported"), fitted={"confidence": 0.5})
    data = entry_to_dict(entry)
    data[key]["confidence" if key == "fitted" else "lift"] = 10**400
    with pytest.raises(ConfigurationError, match=r"finite|too large"):
        entry_from_dict(data)


def test_a_file_of_far_too_many_values_is_refused_before_it_is_built() -> None:
    with pytest.raises(ConfigurationError, match="at most 100000 values"):
        RuleBook.from_yaml("rules: [" + "a," * 110_000 + "]")


@pytest.mark.parametrize("number", [3.5e38, -1e308, math.inf, math.nan, 10**400])
def test_fitted_numbers_that_a_bank_cannot_hold_are_refused(number: float) -> None:
    data = entry_to_dict(Entry(parse_rule(TEXT), fitted={"theta": [number, 0.0]}))
    with pytest.raises(ConfigurationError, match="fitted theta must hold finite numbers"):
        entry_from_dict(data)


@pytest.mark.parametrize("key", ["tau", "scale"])
@pytest.mark.parametrize("number", [0.0, 1e-46, -1.0])
def test_widths_that_are_none_in_float32_are_refused(key: str, number: float) -> None:
    data = entry_to_dict(Entry(parse_rule(TEXT), fitted={"theta": [0.1, 0.0], key: [number, 1.0]}))
    with pytest.raises(ConfigurationError, match=f"fitted {key} must hold positive numbers"):
        entry_from_dict(data)
