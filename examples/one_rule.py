"""One rule from the model's JSON to its share of replay: the figures of the docs page "How a rule earns its weight".

    pip install 'sb3-nser[study]'
    python examples/one_rule.py --out figures

replays a recorded answer of qwen2.5-coder:0.5b (`one_rule.jsonl` beside this file), so it needs no model. With ``--ask`` the
embedded model is asked afresh (extra ``local``) and the record is written into the folder.
"""

import argparse
import json
from pathlib import Path

import matplotlib
import numpy as np
import torch as th
from stable_baselines3 import DQN

from sb3_nser import NSERReplayBuffer, RuleInductionCallback
from sb3_nser.induction.data import collect
from sb3_nser.logic import Dataset, RuleBank, build_bank, judge, scales_from, scorer
from sb3_nser.rules import Entry, describe_evidence, moved_rule, problems

matplotlib.use("Agg")
import matplotlib.pyplot as plt

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"  # told apart by colour-blind readers too
STEPS, GAMMA = 10_000, 0.99
RECORD = Path(__file__).with_name("one_rule.jsonl")

parser = argparse.ArgumentParser(description="One rule from the model's JSON to its share of replay.")
parser.add_argument("--out", type=Path, default=Path("one-rule"), help="folder for the figures (default: %(default)s)")
parser.add_argument("--ask", action="store_true", help="ask the embedded model instead of replaying its recorded answer")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)
th.set_num_threads(1)


def train(**source: object) -> tuple[DQN, RuleInductionCallback]:
    """A short run, random at first; the model is asked twice, and its rules are judged every 3,000 steps."""
    model = DQN(
        "MlpPolicy",
        "CartPole-v1",
        learning_rate=2.3e-3,
        batch_size=64,
        learning_starts=1_000,
        gamma=GAMMA,
        target_update_interval=10,
        train_freq=256,
        gradient_steps=128,
        exploration_fraction=0.8,
        exploration_final_eps=0.1,
        policy_kwargs={"net_arch": [64, 64]},
        replay_buffer_class=NSERReplayBuffer,
        replay_buffer_kwargs={"trace_decay": 0.0},  # what a rule scores is then all it scores
        seed=0,
        device="cpu",
    )
    callback = RuleInductionCallback("qwen2.5-coder:0.5b", first=2_000, every=3_000, max_calls=2, blocking=True, **source)
    model.learn(STEPS, callback=callback)
    return model, callback


if args.ask:
    from sb3_nser.local import EmbeddedServer

    record = args.out / RECORD.name
    record.unlink(missing_ok=True)
    with EmbeddedServer("qwen2.5-coder:0.5b") as server:
        model, callback = train(host=server.host, record=record)
else:
    record = RECORD
    model, callback = train(replay_record=record)

book, vocabulary, buffer = callback.book, callback.vocabulary, callback.buffer
print("Everything the model proposed:", *(f"  {e.rule}: {e.status}, {e.reason}" for e in book.entries), sep="\n")
entry = next((e for e in book.active() if not e.on_prior and any(isinstance(x.value, float) for x in e.rule.literals)), None)
if entry is None or entry.fitted is None or entry.evidence is None:
    raise SystemExit("no rule with a threshold was admitted on evidence in this run")
rule, fitted, evidence = entry.rule, entry.fitted, entry.evidence

print("\n1. The model's answer")
for line in record.read_text(encoding="utf-8").splitlines():
    if text := json.loads(line).get("reply"):
        print("  ", " ".join(text.split()))
print("\n2. Read:", rule, "| source", rule.source, "| confidence", rule.confidence, "| why:", rule.why)
print("   Checked:", problems(rule, vocabulary) or "nothing is wrong with it")

# the same rows, split and fit as in the last judgement's manner
rows = collect(buffer, vocabulary, GAMMA, 20_000)
data = Dataset.build(rows.tensors(), rows.actions, rows.returns, rows.episode_ids, gamma=GAMMA)
before = RuleBank([rule], vocabulary, scales_from(data.features))
after = build_bank([entry], vocabulary)
at = next(i for i, literal in enumerate(rule.literals) if isinstance(literal.value, float))
name, start = rule.literals[at].feature, before.state()[0]
print(
    f"\n3. Grounded: {name} θ {start['theta'][at]:.3g} -> {fitted['theta'][at]:.3g}, "
    f"τ {start['tau'][at]:.3g} -> {fitted['tau'][at]:.3g} of a scale of {fitted['scale'][at]:.3g}"
)
print("   Fitted:", moved_rule(rule, fitted), f"| confidence {fitted['confidence']:.3f}")
print("\n4. Evidence:", describe_evidence(evidence), f"| p {evidence.p_value:.2g}")
print(f"\n5. {entry.status}: {entry.reason}, confidence {entry.confidence:.3f}; judged", *entry.history)

column = data.features[name]
grid = th.linspace(float(column.quantile(0.01)), float(column.quantile(0.99)), 300)
figure, axis = plt.subplots(figsize=(6.4, 3.4))
axis.hist(column.numpy(), bins=60, range=(float(grid[0]), float(grid[-1])), density=True, color="#DDDDDD")
axis.set(xlabel=f"{name} ({vocabulary[name].unit})", ylabel="density of rows", title=str(rule))
truth = axis.twinx()
sign = 1.0 if (rule.literals[at].op == ">") != rule.literals[at].negated else -1.0
for state, color, style, label in ((start, GREY, "--", "as proposed"), (fitted, BLUE, "-", "fitted")):
    z = sign * (grid - state["theta"][at]) / (state["tau"][at] * state["scale"][at])
    truth.plot(grid, th.sigmoid(z), color=color, linestyle=style, label=label)
truth.set(ylabel="truth of the condition", ylim=(0.0, 1.05))
truth.legend(loc="center left")
figure.tight_layout()
figure.savefig(args.out / "one_rule_grounding.png", dpi=130)

# every judgement of the run: lift with its interval; and, for comparison, our rule with the other action
other = next(action for action in vocabulary.actions.names if action != rule.head.action)
swapped = Entry(rule.model_copy(update={"head": rule.head.model_copy(update={"action": other})}))
wrong = judge([swapped], vocabulary, data)[0].evidence
print(f"   With the action swapped: {describe_evidence(wrong)}")
figure, axis = plt.subplots(figsize=(8.0, 3.4))
shown = [(f"{e.rule}: {e.status}", e.evidence, e.status == "admitted") for e in book.entries if e.evidence is not None]
shown = [(text.replace("rejected", "duplicate"), found, fine) for text, found, fine in shown if np.isfinite(found.low)]
shown = [*shown, (f"(swapped) {swapped.rule}: {wrong.verdict}", wrong, False)][::-1]
for place, (_, found, fine) in enumerate(shown):
    color, marker = (BLUE, "o") if fine else (ORANGE, "s")
    reach = [[found.lift - found.low], [found.high - found.lift]]
    axis.errorbar(found.lift, place, xerr=reach, color=color, marker=marker, capsize=4)
axis.set_yticks(range(len(shown)), [text for text, _, _ in shown], fontsize=8)
axis.axvline(0.0, color=GREY, linewidth=1)
axis.set(xlabel="lift on held-out episodes with its 90 % interval")
figure.tight_layout()
figure.savefig(args.out / "one_rule_lift.png", dpi=130)

# the share of replay: this rule's rows in the buffer, in the draws without rules, in the draws with them
score = scorer(after, vocabulary)
stored = buffer.transitions(np.arange(buffer.n_transitions))
own = score(stored.observations, stored.next_observations, stored.actions)
fires = own > 0.5 * entry.confidence
with_rules = buffer.probabilities()
fraction, all_rules = buffer.rule_fraction_now, buffer.rule_state
buffer.set_scorer(None, all_rules)
without = buffer.probabilities()
shares = [float(fires.mean()), float(without[fires].sum()), float(with_rules[fires].sum())]
print(f"\n6. Score: {own[fires].mean():.2f} on the {fires.sum()} rows where it fires; λ {fraction:.3f}")
print(f"   Its rows: {shares[0]:.1%} of the buffer, {shares[1]:.1%} of draws by TD error alone, {shares[2]:.1%} with rules")
figure, axis = plt.subplots(figsize=(6.4, 2.8))
labels = ("rows in the buffer", "draws without rules", "draws with rules")
bars = axis.barh(labels, [100 * share for share in shares], color=("#BBBBBB", ORANGE, BLUE))
axis.bar_label(bars, fmt="%.1f %%", padding=4)
axis.set(xlabel="share of the rows where the rule fires, %", xlim=(0, 115 * max(shares)))
axis.invert_yaxis()
figure.tight_layout()
figure.savefig(args.out / "one_rule_share.png", dpi=130)
