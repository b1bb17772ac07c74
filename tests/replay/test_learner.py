"""The learner link against an explicitly weighted loss, written out for each algorithm."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch as th
from sb3_contrib import QRDQN, TQC, CrossQ
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from torch.nn import functional as F

from sb3_nser.errors import ConfigurationError, NSERWarning, UnsupportedError
from sb3_nser.replay import LearnerLink, NSERReplayBuffer
from sb3_nser.replay.learner import InertHook

from .by_hand import BY_HAND, B, Keyed, Painted, build, parameters, train


def variant(algorithm, n_envs=1, note="", **kwargs):
    return pytest.param(algorithm, n_envs, kwargs, id=f"{algorithm.__name__}-{n_envs}{note and '-' + note}")


SHARED = {"net_arch": [16], "share_features_extractor": True}
VARIANTS = [
    *(variant(algorithm, n_envs) for algorithm in BY_HAND for n_envs in (1, 2)),
    *(variant(algorithm, 2, "n_steps", replay={"n_steps": 3}) for algorithm in BY_HAND),
    # CrossQ has no policy for dictionaries
    *(variant(algorithm, 1, "Dict", wrapper=Keyed) for algorithm in (DQN, SAC, TD3, DDPG, TQC)),
    variant(QRDQN, 2, "Dict-n_steps", wrapper=Keyed, replay={"n_steps": 3}),
    variant(SAC, 2, "Dict-n_steps-shared", wrapper=Keyed, replay={"n_steps": 3}, policy_kwargs=SHARED),
    variant(DQN, 2, "images", wrapper=Painted),
    variant(SAC, 1, "gSDE", use_sde=True),
    variant(TQC, 1, "gSDE", use_sde=True),
    variant(SAC, 1, "3-critics", policy_kwargs={"net_arch": [16], "n_critics": 3}),
    variant(SAC, 1, "shared", policy_kwargs=SHARED),
]


@pytest.mark.parametrize("algorithm, n_envs, kwargs", VARIANTS)
def test_c05_the_link_is_the_weighted_loss(algorithm, n_envs, kwargs):
    linked, by_hand, unweighted = (build(algorithm, n_envs, **kwargs) for _ in range(3))
    link = LearnerLink(linked)
    link.install()
    for _ in range(2):  # several gradient steps per call, several calls
        train(linked, 3)
        th.manual_seed(1)
        np.random.seed(1)
        BY_HAND[algorithm](by_hand, 3)
        if algorithm in (TD3, DDPG, CrossQ):  # a delayed actor counts on from call to call
            break
    assert link.updates == len(linked.replay_buffer.written) == len(by_hand.replay_buffer.written) in (3, 6)
    for (slots, got), (expected_slots, expected) in zip(
        linked.replay_buffer.written, by_hand.replay_buffer.written, strict=True
    ):
        np.testing.assert_array_equal(slots, expected_slots)
        np.testing.assert_allclose(got, expected, atol=1e-5, rtol=1e-5)
    assert not np.all(linked.replay_buffer.last_sample.weights == 1)
    th.testing.assert_close(parameters(linked), parameters(by_hand), atol=1e-6, rtol=0)
    train(unweighted, 3)
    assert (parameters(linked) - parameters(unweighted)).abs().max() > 1e-5  # the weights do matter


@pytest.mark.parametrize("algorithm", list(BY_HAND))
def test_without_weights_the_link_changes_nothing_but_priorities(algorithm):
    linked, plain = (build(algorithm, beta=0.0, replay={"alpha": 0.0, "rule_fraction": 0.0}) for _ in range(2))
    LearnerLink(linked).install()
    train(linked, 3)
    train(plain, 3)
    assert th.equal(parameters(linked), parameters(plain))
    assert len(linked.replay_buffer.written) == 3


def test_a_row_of_weight_zero_has_no_part_in_the_loss():
    model = build(DQN, buffer_class=NSERReplayBuffer)
    link = LearnerLink(model)
    link.install()
    buffer = model.replay_buffer
    batch = buffer.sample(B)
    weights = np.zeros(B)
    weights[5] = 1.0
    buffer.last_sample = replace(buffer.last_sample, learner_weights=th.as_tensor(weights, dtype=th.float32))
    model.q_net(batch.observations).square().mean().backward()
    got = [p.grad.clone() for p in model.q_net.parameters()]
    model.policy.optimizer.zero_grad()
    (model.q_net(batch.observations.clone())[5].square().sum() / (B * 2)).backward()
    for one, p in zip(got, model.q_net.parameters(), strict=True):
        th.testing.assert_close(one, p.grad)


def test_subclasses_are_handled_as_their_parents():
    class Mine(DQN):
        pass

    model = Mine("MlpPolicy", "CartPole-v1", replay_buffer_class=NSERReplayBuffer, buffer_size=100)
    LearnerLink(model).install()


@pytest.mark.parametrize("algorithm", [PPO, A2C])
def test_an_unknown_algorithm_is_named_with_those_that_work(algorithm):
    with pytest.raises(UnsupportedError, match=rf"{algorithm.__name__}.*DQN.*SAC"):
        LearnerLink(algorithm("MlpPolicy", "CartPole-v1")).install()


def test_another_buffer_is_named_with_the_cure():
    model = DQN("MlpPolicy", "CartPole-v1", buffer_size=100)
    with pytest.raises(ConfigurationError, match=r"is a ReplayBuffer.*replay_buffer_class=NSERReplayBuffer"):
        LearnerLink(model).install()


def n_hooks(model):
    return sum(len(module._forward_hooks) for module in model.policy.modules())


@pytest.mark.parametrize("algorithm", [DQN, SAC])
def test_install_and_remove_are_idempotent(algorithm):
    model = build(algorithm)
    link = LearnerLink(model)
    before = n_hooks(model)
    link.remove()
    for _ in range(2):
        link.install()
        link.install()
        assert link.installed and n_hooks(model) == before + (2 if algorithm is DQN else 1)
        link.remove()
        link.remove()
        assert not link.installed and n_hooks(model) == before
    link.install()
    other = LearnerLink(model)  # another callback, after one that never came to its end
    other.install()
    assert other.installed and not link.installed
    train(model, 2)
    assert len(model.replay_buffer.written) == 2 and other.updates == 2


def test_the_buffer_is_asked_for_anew_when_another_was_loaded(tmp_path):
    model = build(DQN)
    link = LearnerLink(model)
    link.install()
    model.save_replay_buffer(tmp_path / "buffer")
    old = model.replay_buffer
    model.load_replay_buffer(tmp_path / "buffer")
    train(model, 2)
    assert len(model.replay_buffer.written) == 2 and "written" not in old.__dict__


@pytest.mark.parametrize("algorithm", [DQN, SAC])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))])
def test_a_policy_copied_while_training_is_free_of_the_link(algorithm, copied):
    model = build(algorithm)
    LearnerLink(model).install()
    train(model, 1)
    twin = copied(model.policy)
    hooks = [hook for module in twin.modules() for hook in module._forward_hooks.values()]
    assert hooks and all(type(hook) is InertHook and vars(hook) == {} for hook in hooks)
    observation = np.zeros(model.observation_space.shape, np.float32)
    twin.predict(observation, deterministic=True)
    before = len(model.replay_buffer.written)
    train(model, 1)
    assert len(model.replay_buffer.written) == before + 1


@pytest.mark.parametrize("algorithm", [DQN, SAC])
def test_a_diverging_critic_never_poisons_the_priorities(algorithm):
    model = build(algorithm)
    link = LearnerLink(model)
    link.install()
    model.replay_buffer.rewards[::2] = np.nan
    with pytest.warns(NSERWarning, match="TD errors are NaN or infinite") as caught:
        # SAC's actor is NaN itself after one step, and torch then refuses to go on
        train(model, 4 if algorithm is DQN else 1)
    assert len(caught) == 1 and link.nonfinite_td > 0
    assert np.all(np.isfinite(model.replay_buffer.td_errors))
    assert np.isfinite(model.replay_buffer.probabilities()).all()


def test_a_sample_from_outside_does_not_confuse_the_link():
    model = build(DQN)
    LearnerLink(model).install()
    model.replay_buffer.sample(7)  # a user who looks at some transitions
    model.q_net(th.zeros(3, 4))
    with th.no_grad():
        model.q_net(model.replay_buffer.last_batch.observations)
    train(model, 1)
    assert [len(slots) for slots, _ in model.replay_buffer.written] == [B]


def test_dqn_without_its_target_output_falls_back_on_the_gradient():
    model = build(DQN)
    LearnerLink(model).install()
    batch = model.replay_buffer.sample(B)
    current = model.q_net(batch.observations).gather(1, batch.actions.long())
    F.smooth_l1_loss(current, current.detach() + 0.25).backward()
    np.testing.assert_allclose(model.replay_buffer.written[0][1], 0.25, rtol=1e-5)


def test_priorities_of_real_training_are_the_errors_of_the_last_visit():
    model = build(DQN, n_envs=2, learning_rate=0.0)
    LearnerLink(model).install()
    model.learn(600, reset_num_timesteps=False)
    buffer = model.replay_buffer
    slots = buffer.written[-1][0]
    rows = buffer.transitions(slots)
    with th.no_grad():
        following = model.q_net_target(th.as_tensor(rows.next_observations)).max(dim=1)[0].numpy()
        current = model.q_net(th.as_tensor(rows.observations)).numpy()[np.arange(len(slots)), rows.actions[:, 0]]
    wanted = rows.rewards + (1 - rows.dones * (1 - rows.timeouts)) * model.gamma * following
    np.testing.assert_allclose(buffer.td_errors[slots], np.abs(wanted - current), atol=1e-4)
    assert buffer.full and buffer.stale_writes == 0
