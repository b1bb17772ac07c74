"""The learner link against an explicitly weighted loss, written out for each algorithm."""

import copy
import pickle

import numpy as np
import pytest
import torch as th
from sb3_contrib import QRDQN, TQC, CrossQ
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from torch.nn import functional as F

from sb3_nser.errors import ConfigurationError, NSERWarning, UnsupportedError
from sb3_nser.replay import LearnerLink, NSERReplayBuffer
from sb3_nser.replay.learner import InertHook

B = 32
DISCRETE = [DQN, QRDQN]


class Recording(NSERReplayBuffer):
    """Remembers the TD errors it is given."""

    def update_priorities(self, indices, td_errors, generations=None):
        self.__dict__.setdefault("written", []).append((np.array(indices), np.array(td_errors)))
        super().update_priorities(indices, td_errors, generations)


def build(algorithm, n_envs=1, buffer_class=Recording, beta=0.7, replay=None, **kwargs):
    env = make_vec_env("CartPole-v1" if algorithm in DISCRETE else "Pendulum-v1", n_envs=n_envs, seed=0)
    if algorithm is QRDQN:
        kwargs.setdefault("policy_kwargs", {"net_arch": [16], "n_quantiles": 20})
    if algorithm is CrossQ:
        kwargs.setdefault("policy_kwargs", {"net_arch": {"pi": [16], "qf": [16]}})
    model = algorithm("MlpPolicy", env, batch_size=B, buffer_size=500, learning_starts=200, seed=0, device="cpu",
                      replay_buffer_class=buffer_class, **{"policy_kwargs": {"net_arch": [16]}} | kwargs,
                      replay_buffer_kwargs={"beta": beta, "rule_warmup": 0, **(replay or {})})  # fmt: skip
    model.learn(200)  # fills the buffer, trains nothing
    buffer, rng = model.replay_buffer, np.random.default_rng(0)
    n = buffer.n_transitions
    NSERReplayBuffer.update_priorities(buffer, np.arange(n), rng.exponential(size=n))
    buffer.set_scores(np.arange(n), rng.random(n) * (rng.random(n) < 0.3))
    return model


def train(model, steps):
    th.manual_seed(1)
    np.random.seed(1)
    model.train(gradient_steps=steps, batch_size=B)


def parameters(model):
    return th.cat(
        [p.detach().flatten() for p in model.policy.parameters()] + [b.flatten().float() for b in model.policy.buffers()]
    )


# ---------------------------------------------------------------- the weighted losses, by hand


def draw(model):
    batch = model.replay_buffer.sample(B, env=model._vec_normalize_env)
    return batch, th.as_tensor(model.replay_buffer.last_sample.weights, dtype=th.float32)


def discount(model, batch):
    return model.gamma if batch.discounts is None else batch.discounts


def record(model, error):
    info = model.replay_buffer.last_sample
    model.replay_buffer.update_priorities(info.indices, error.detach().numpy(), info.generations)


def step(optimizer, loss, clip=None):
    optimizer.zero_grad()
    loss.backward()
    if clip is not None:
        th.nn.utils.clip_grad_norm_(*clip)
    optimizer.step()


def by_hand_dqn(model, steps):
    model.policy.set_training_mode(True)
    for _ in range(steps):
        batch, w = draw(model)
        with th.no_grad():
            following = model.q_net_target(batch.next_observations).max(dim=1)[0].reshape(-1, 1)
            target = batch.rewards + (1 - batch.dones) * discount(model, batch) * following
        current = model.q_net(batch.observations).gather(1, batch.actions.long())
        record(model, (target - current).abs().flatten())
        loss = (w * F.smooth_l1_loss(current, target, reduction="none").flatten()).mean()
        step(model.policy.optimizer, loss, (model.policy.parameters(), model.max_grad_norm))


def quantile_losses(current, target):
    """Quantile Huber loss per row, summed over the current quantiles."""
    n = current.shape[1]
    levels = ((th.arange(n) + 0.5) / n).view(1, n, 1)
    delta = target[:, None, :] - current[:, :, None]  # every target quantile against every current one
    huber = th.where(delta.abs() > 1, delta.abs() - 0.5, 0.5 * delta**2)
    return ((levels - (delta.detach() < 0).float()).abs() * huber).sum(dim=1).mean(dim=1)


def by_hand_qrdqn(model, steps):
    model.policy.set_training_mode(True)
    for _ in range(steps):
        batch, w = draw(model)
        with th.no_grad():
            following = model.quantile_net_target(batch.next_observations)
            best = following.mean(dim=1).argmax(dim=1)
            following = following[th.arange(B), :, best]
            target = batch.rewards + (1 - batch.dones) * discount(model, batch) * following
        current = model.quantile_net(batch.observations)[th.arange(B), :, batch.actions.flatten().long()]
        record(model, (target.mean(dim=1) - current.mean(dim=1)).abs())
        clip = None if model.max_grad_norm is None else (model.policy.parameters(), model.max_grad_norm)
        step(model.policy.optimizer, (w * quantile_losses(current, target)).mean(), clip)


def polyak(model, online, target):
    for one, other in zip(online.parameters(), target.parameters(), strict=True):
        other.data.mul_(1 - model.tau).add_(one.data, alpha=model.tau)


def weighted_critic_step(model, currents, target, w, factor):
    record(model, th.stack([(current - target).abs().flatten() for current in currents]).mean(dim=0))
    loss = factor * sum((w * (current - target).square().flatten()).mean() for current in currents)
    step(model.critic.optimizer, loss)


def by_hand_sac(model, steps):
    model.policy.set_training_mode(True)
    for _ in range(steps):
        batch, w = draw(model)
        if model.use_sde:
            model.actor.reset_noise()
        actions, log_prob = model.actor.action_log_prob(batch.observations)
        log_prob = log_prob.reshape(-1, 1)
        ent_coef = th.exp(model.log_ent_coef.detach())
        step(model.ent_coef_optimizer, -(model.log_ent_coef * (log_prob + model.target_entropy).detach()).mean())
        with th.no_grad():
            next_actions, next_log_prob = model.actor.action_log_prob(batch.next_observations)
            following = th.cat(model.critic_target(batch.next_observations, next_actions), dim=1).min(dim=1, keepdim=True)[0]
            following = following - ent_coef * next_log_prob.reshape(-1, 1)
            target = batch.rewards + (1 - batch.dones) * discount(model, batch) * following
        weighted_critic_step(model, model.critic(batch.observations, batch.actions), target, w, 0.5)
        q = th.cat(model.critic(batch.observations, actions), dim=1).min(dim=1, keepdim=True)[0]
        step(model.actor.optimizer, (ent_coef * log_prob - q).mean())  # the actor's loss is not weighted
        polyak(model, model.critic, model.critic_target)


def by_hand_tqc(model, steps):
    model.policy.set_training_mode(True)
    for _ in range(steps):
        batch, w = draw(model)
        if model.use_sde:
            model.actor.reset_noise()
        actions, log_prob = model.actor.action_log_prob(batch.observations)
        log_prob = log_prob.reshape(-1, 1)
        ent_coef = th.exp(model.log_ent_coef.detach())
        step(model.ent_coef_optimizer, -(model.log_ent_coef * (log_prob + model.target_entropy).detach()).mean())
        with th.no_grad():
            next_actions, next_log_prob = model.actor.action_log_prob(batch.next_observations)
            quantiles = model.critic_target(batch.next_observations, next_actions).reshape(B, -1).sort(dim=1)[0]
            quantiles = quantiles[:, : quantiles.shape[1] - model.top_quantiles_to_drop_per_net * model.critic.n_critics]
            target = quantiles - ent_coef * next_log_prob.reshape(-1, 1)
            target = batch.rewards + (1 - batch.dones) * discount(model, batch) * target
        current = model.critic(batch.observations, batch.actions)
        record(model, (target.mean(dim=1) - current.mean(dim=(1, 2))).abs())
        n_critics, n = current.shape[1:]
        losses = sum(quantile_losses(current[:, critic], target) / n for critic in range(n_critics)) / n_critics
        step(model.critic.optimizer, (w * losses).mean())
        q = model.critic(batch.observations, actions).mean(dim=2).mean(dim=1, keepdim=True)
        step(model.actor.optimizer, (ent_coef * log_prob - q).mean())
        polyak(model, model.critic, model.critic_target)


def by_hand_td3(model, steps):
    model.policy.set_training_mode(True)
    for number in range(1, steps + 1):
        batch, w = draw(model)
        with th.no_grad():
            noise = batch.actions.clone().normal_(0, model.target_policy_noise)
            noise = noise.clamp(-model.target_noise_clip, model.target_noise_clip)
            next_actions = (model.actor_target(batch.next_observations) + noise).clamp(-1, 1)
            following = th.cat(model.critic_target(batch.next_observations, next_actions), dim=1).min(dim=1, keepdim=True)[0]
            target = batch.rewards + (1 - batch.dones) * discount(model, batch) * following
        weighted_critic_step(model, model.critic(batch.observations, batch.actions), target, w, 1.0)
        if number % model.policy_delay == 0:
            step(model.actor.optimizer, -model.critic.q1_forward(batch.observations, model.actor(batch.observations)).mean())
            polyak(model, model.critic, model.critic_target)
            polyak(model, model.actor, model.actor_target)


def by_hand_crossq(model, steps):
    model.policy.set_training_mode(True)
    for number in range(1, steps + 1):
        batch, w = draw(model)
        ent_coef = th.exp(model.log_ent_coef.detach())
        with th.no_grad():
            model.actor.set_bn_training_mode(False)
            next_actions, next_log_prob = model.actor.action_log_prob(batch.next_observations)
        model.critic.set_bn_training_mode(True)
        q = th.cat(
            model.critic(th.cat([batch.observations, batch.next_observations]), th.cat([batch.actions, next_actions])),
            dim=1,
        )
        model.critic.set_bn_training_mode(False)
        following = q[B:].detach().min(dim=1, keepdim=True)[0] - ent_coef * next_log_prob.reshape(-1, 1)
        target = batch.rewards + (1 - batch.dones) * discount(model, batch) * following
        weighted_critic_step(model, [column[:, None] for column in q[:B].T], target, w, 0.5)
        if number % model.policy_delay == 0:
            model.actor.set_bn_training_mode(True)
            actions, log_prob = model.actor.action_log_prob(batch.observations)
            log_prob = log_prob.reshape(-1, 1)
            model.actor.set_bn_training_mode(False)
            step(model.ent_coef_optimizer, -(model.log_ent_coef * (log_prob + model.target_entropy).detach()).mean())
            model.critic.set_bn_training_mode(False)
            least = th.cat(model.critic(batch.observations, actions), dim=1).min(dim=1, keepdim=True)[0]
            step(model.actor.optimizer, (ent_coef * log_prob - least).mean())


BY_HAND = {
    DQN: by_hand_dqn,
    QRDQN: by_hand_qrdqn,
    SAC: by_hand_sac,
    TD3: by_hand_td3,
    DDPG: by_hand_td3,
    TQC: by_hand_tqc,
    CrossQ: by_hand_crossq,
}

VARIANTS = (
    [
        pytest.param(algorithm, n_envs, kwargs, id=f"{algorithm.__name__}-{n_envs}{'-' if kwargs else ''}{'-'.join(kwargs)}")
        for algorithm in BY_HAND
        for n_envs, kwargs in [(1, {}), (2, {})]
    ]
    + [pytest.param(algorithm, 2, {"replay": {"n_steps": 3}}, id=f"{algorithm.__name__}-2-n_steps") for algorithm in BY_HAND]
    + [
        pytest.param(SAC, 1, {"use_sde": True}, id="SAC-gSDE"),
        pytest.param(TQC, 1, {"use_sde": True}, id="TQC-gSDE"),
        pytest.param(SAC, 1, {"policy_kwargs": {"net_arch": [16], "n_critics": 3}}, id="SAC-3-critics"),
        pytest.param(SAC, 1, {"policy_kwargs": {"net_arch": [16], "share_features_extractor": True}}, id="SAC-shared"),
    ]
)


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
    buffer.last_sample = type(buffer.last_sample)(**{**vars(buffer.last_sample), "weights": weights})
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
