"""The learner link: importance weights into SB3's own ``train()``, TD errors out of it.

Nothing of SB3 is subclassed, copied or replaced. A forward hook on the online critic recognises the pass of the critic
loss by the very tensor the buffer handed out. There a hook on the output multiplies row i of the incoming gradient by
w_i: the loss is a mean over rows, so this is exactly the gradient of the weighted loss. (The loss that SB3 logs stays
the unweighted one.) TD errors come from numbers that exist already: the outputs of the online and the target network,
or, for a mean squared error, the gradient itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from torch.utils.hooks import RemovableHandle

from sb3_nser.errors import ConfigurationError, NSERWarning, warn_user
from sb3_nser.replay._kernels import kernels
from sb3_nser.replay.adapters import Adapter, Caught, adapter_for
from sb3_nser.replay.mixin import PriorityMixin
from sb3_nser.replay.records import Array, SampleInfo


class InertHook:
    """What a hook of ours becomes in a copied or saved module: it does nothing and refers to nothing."""

    def __call__(self, *args: Any) -> None:
        return None


class _Hook:
    """A module hook that copies and pickles as an ``InertHook``, so that a saved policy drags nothing along."""

    def __init__(self, link: LearnerLink, call: Callable[[tuple[Any, ...], Any], None]) -> None:
        self.link = link
        self.call = call

    def __call__(self, module: th.nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
        self.call((*inputs, *keywords.values()), output)

    def __reduce__(self) -> tuple[type[InertHook], tuple[()]]:
        return InertHook, ()


class LearnerLink:
    """
    Connects one model with its ``NSERReplayBuffer`` while it trains.

    :param model: an SB3 off-policy algorithm
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.nonfinite_td = 0
        self.updates = 0
        self._kernels = kernels()  # looked up once: the environment variable it heeds is not read quickly
        self._adapter: Adapter | None = None
        self._handles: list[RemovableHandle] = []
        self._critic: th.nn.Module | None = None
        self._consumed: Any = None  # the batch whose critic pass has been seen
        self._caught: Caught | None = None
        self._noted: tuple[Any, Any] | None = None  # batch and what was read before it changed anything
        self._parts: list[Any] = []

    @property
    def installed(self) -> bool:
        """Whether the hooks are in place."""
        return bool(self._handles)

    def install(self) -> None:
        """
        Put the hooks in place; does nothing where they are. A link that another callback left on the model is taken off.

        :raises UnsupportedError: for an algorithm that is not handled
        :raises ConfigurationError: if the model's buffer is of another class
        """
        adapter = adapter_for(self.model)
        buffer = self._checked_buffer()
        if buffer.n_steps > 1 and buffer.gamma != self.model.gamma:
            warn_user(
                f"n-step returns are discounted with the buffer's gamma={buffer.gamma}, but the model's gamma is "
                f'{self.model.gamma}; pass replay_buffer_kwargs={{"n_steps": {buffer.n_steps}, "gamma": {self.model.gamma}}}'
            )
        critic: th.nn.Module = getattr(self.model, adapter.critic)
        if not (self.installed and critic is self._critic):
            self.remove()
            for hook in list(critic._forward_hooks.values()):
                if isinstance(hook, _Hook):
                    hook.link.remove()
            self._adapter, self._critic = adapter, critic
            self._handles.append(_register(critic, _Hook(self, self._on_critic)))
            if adapter.note is not None:
                self._handles.append(_register(self.model.actor.latent_pi, _Hook(self, self._on_actor)))
            if adapter.target is not None:
                self._handles.append(_register(getattr(self.model, adapter.target), _Hook(self, self._on_target)))
        buffer.mark_linked()

    def remove(self) -> None:
        """Take the hooks away; does nothing where there are none."""
        for handle in self._handles:
            handle.remove()
        buffer = getattr(self.model, "replay_buffer", None)
        if self._handles and isinstance(buffer, PriorityMixin):
            buffer.mark_unlinked()
        self._handles = []
        self._critic = self._consumed = self._caught = self._noted = None
        self._parts = []

    def _checked_buffer(self) -> PriorityMixin:
        buffer = getattr(self.model, "replay_buffer", None)
        if not isinstance(buffer, PriorityMixin):
            raise ConfigurationError(
                f"the model's replay buffer is a {type(buffer).__name__}, not an NSERReplayBuffer; create the model with "
                "replay_buffer_class=NSERReplayBuffer (a replay buffer that was loaded must have been saved from one too)"
            )
        return buffer

    def _buffer_and_batch(self) -> tuple[PriorityMixin, Any] | None:
        # asked for anew each time: load_replay_buffer() puts another object in its place
        buffer = getattr(self.model, "replay_buffer", None)
        if not isinstance(buffer, PriorityMixin) or buffer.last_batch is None or buffer.last_sample is None:
            return None
        return buffer, buffer.last_batch

    def _on_target(self, inputs: tuple[Any, ...], output: Any) -> None:
        found = self._buffer_and_batch()
        if found is None or not inputs or inputs[0] is not found[1].next_observations or self._adapter is None:
            return
        noted = self._noted[1] if self._noted is not None and self._noted[0] is found[1] else None
        if self._adapter.note is None or noted is not None:
            self._caught = Caught(found[1], output, inputs, noted, self._kernels)

    def _on_actor(self, inputs: tuple[Any, ...], output: Any) -> None:
        found = self._buffer_and_batch()
        if found is not None and (self._noted is None or self._noted[0] is not found[1]):
            assert self._adapter is not None and self._adapter.note is not None
            self._noted = (found[1], self._adapter.note(self.model))

    def _on_critic(self, inputs: tuple[Any, ...], output: Any) -> None:
        if not th.is_grad_enabled():
            return
        found = self._buffer_and_batch()
        if found is None or found[1] is self._consumed or self._adapter is None:
            return
        buffer, batch = found
        if not _is_critic_pass(self._adapter, inputs, batch):
            return
        self._consumed = batch
        info = buffer.last_sample
        assert info is not None
        outputs = tuple(output) if isinstance(output, tuple | list) else (output,)
        weights = None if info.learner_weights is None else self._weights(info.learner_weights, outputs[0])
        caught, self._caught = self._caught, None
        read_gradient = True
        if self._adapter.error is not None and caught is not None and caught.batch is batch:
            self._write(info, self._adapter.error(self.model, batch, outputs[0].detach(), caught))
            read_gradient = False
        self._parts = []
        for one in outputs:
            if one.requires_grad and (read_gradient or weights is not None):
                one.register_hook(self._gradient_hook(info, weights, len(outputs), read_gradient))

    def _weights(self, weights: th.Tensor, output: th.Tensor) -> th.Tensor:
        assert self._adapter is not None
        if self._adapter.joint:  # the second half is the successors', through which no gradient flows
            weights = th.cat([weights, th.ones_like(weights)])
        weights = weights.view(-1, *[1] * (output.ndim - 1))
        return weights.to(output) if not output.is_cpu or output.dtype is not th.float32 else weights

    def _gradient_hook(
        self, info: SampleInfo, weights: th.Tensor | None, n_outputs: int, read: bool
    ) -> Callable[[th.Tensor], th.Tensor | None]:
        assert self._adapter is not None
        n, scale = len(info.indices), self._adapter.gradient_scale

        def hook(gradient: th.Tensor) -> th.Tensor | None:
            if read:
                # of a clipped loss (the way of DQN without a target output) this is the clipped error
                self._parts.append(_row_sums(gradient.detach()[:n]))
                if len(self._parts) == n_outputs:
                    self._write(info, sum(self._parts) * (scale * n / n_outputs))
                    self._parts = []
            return None if weights is None else gradient * weights

        return hook

    def _write(self, info: SampleInfo, errors: th.Tensor | Array) -> None:
        # the one copy from the device in a gradient step
        values = (errors.cpu().numpy() if isinstance(errors, th.Tensor) else errors).astype(np.float64)
        self.updates += 1
        buffer = self.model.replay_buffer
        try:
            if info is buffer.last_sample:
                buffer.update_last(values)
            else:
                buffer.update_priorities(info.indices, values, info.generations)
            return
        except ValueError:  # NaN or infinite; asking first would cost every step
            finite = np.isfinite(values)
        if self.nonfinite_td == 0:
            warnings.warn(
                f"{np.count_nonzero(~finite)} of {len(values)} TD errors are NaN or infinite: the critic of "
                f"{type(self.model).__name__} diverges. Their priorities stay as they were; training goes on. A lower "
                "learning rate or scaled rewards may help.",
                NSERWarning,
                stacklevel=2,
            )
        self.nonfinite_td += int(np.count_nonzero(~finite))
        buffer.update_priorities(info.indices[finite], values[finite], info.generations[finite])


def _row_sums(gradient: th.Tensor) -> Any:
    """Sum of the sizes of each row's numbers, shape ``(n,)``: on the CPU in NumPy, whose calls cost less."""
    if gradient.device.type == "cpu":
        rows = np.abs(gradient.numpy().reshape(len(gradient), -1))
        return rows[:, 0] if rows.shape[1] == 1 else rows.sum(axis=1)
    return gradient.reshape(len(gradient), -1).abs().sum(dim=1)


def _register(module: th.nn.Module, hook: _Hook) -> RemovableHandle:
    return module.register_forward_hook(hook, with_kwargs=True)


def _is_critic_pass(adapter: Adapter, inputs: tuple[Any, ...], batch: Any) -> bool:
    if not inputs:
        return False
    if adapter.joint:
        return bool(isinstance(inputs[0], th.Tensor) and len(inputs[0]) == 2 * len(batch.rewards))
    return inputs[0] is batch.observations and (len(inputs) == 1 or inputs[1] is batch.actions)
