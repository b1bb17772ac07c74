"""Small models over recording buffers, and for each algorithm the weighted loss written out by hand."""

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from sb3_contrib import QRDQN, TQC, CrossQ
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from torch.nn import functional as F

from sb3_nser.replay import NSERDictReplayBuffer, NSERReplayBuffer

B = 32
DISCRETE = [DQN, QRDQN]


class Remembers:
    """Remembers the TD errors it is given."""

    def update_priorities(self, indices, td_errors, generations=None):
        self.__dict__.setdefault("written", []).append((np.array(indices), np.array(td_errors)))
        super().update_priorities(indices, td_errors, generations)

    def update_last(self, td_errors):
        self.__dict__.setdefault("written", []).append((np.array(self.last_sample.indices), np.array(td_errors)))
        super().update_last(td_errors)


class Recording(Remembers, NSERReplayBuffer):
    pass


class DictRecording(Remembers, NSERDictReplayBuffer):
    pass


class Keyed(gym.ObservationWrapper):
    """Vector observations as a dictionary of a Box, a Discrete and a MultiBinary."""

    def __init__(self, env):
        super().__init__(env)
        box = env.observation_space
        self.observation_space = spaces.Dict(
            {
                "first": spaces.Box(box.low[:1], box.high[:1]),
                "sign": spaces.Discrete(2),
                "signs": spaces.MultiBinary(len(box.low)),
            }
        )

    def observation(self, observation):
        return {"first": observation[:1], "sign": int(observation[1] > 0), "signs": (observation > 0).astype(np.int8)}


class Painted(gym.ObservationWrapper):
    """Vector observations as a small image, channels last."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = spaces.Box(0, 255, (36, 36, 1), np.uint8)

    def observation(self, observation):
        image = np.zeros((36, 36, 1), np.uint8)
        for row, value in enumerate(observation):
            image[9 * row : 9 * row + 9] = int(128 + 100 * np.tanh(value))
        return image


def build(algorithm, n_envs=1, buffer_class=Recording, beta=0.7, replay=None, wrapper=None, **kwargs):
    env_id = "CartPole-v1" if algorithm in DISCRETE else "Pendulum-v1"
    env = make_vec_env(env_id, n_envs=n_envs, seed=0, wrapper_class=wrapper)
    policy = {None: "MlpPolicy", Keyed: "MultiInputPolicy", Painted: "CnnPolicy"}[wrapper]
    if wrapper is Keyed:
        buffer_class = DictRecording
    if algorithm is QRDQN:
        kwargs.setdefault("policy_kwargs", {"net_arch": [16], "n_quantiles": 20})
    if algorithm is CrossQ:
        kwargs.setdefault("policy_kwargs", {"net_arch": {"pi": [16], "qf": [16]}})
    model = algorithm(policy, env, batch_size=B, buffer_size=500, learning_starts=200, seed=0, device="cpu",
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
