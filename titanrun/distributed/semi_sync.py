"""LocalSGD and DiLoCo of torchft: weights that replica groups sync every few steps."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from torchft.local_sgd import DiLoCo, LocalSGD

from titanrun.config.problems import problem_error
from titanrun.config.suggest import format_word_list
from titanrun.distributed.fault_tolerance_config import FaultToleranceConfig
from titanrun.distributed.spec.pipeline_stages import EndLayerCosts, split_modules


class Rounds(Protocol):
    """Rounds of communication between groups, one for each sync."""

    sync_index: int

    def open_round(self) -> None:
        """Wait for the groups of the sync that begins."""

    def start_average(self, tensor: Tensor) -> Any:
        """Start to average a tensor over these groups."""

    def close_round(self) -> bool:
        """Return whether the sync counts."""
        ...


class SemiSync:
    """Syncs of one model's weights, every few of the steps that are counted.

    Args:
        config: the section of the recipe.
        rounds: communication with the other groups.
        parameters: trained parameters by name.
        modules: names of the model's modules in their order.
        outer_momentum: state of DiLoCo's outer optimizer by name of the parameter, which it changes
            in place.
    """

    def __init__(
        self,
        config: FaultToleranceConfig,
        rounds: Rounds,
        *,
        parameters: Mapping[str, nn.Parameter],
        modules: Sequence[str],
        outer_momentum: Mapping[str, Tensor],
    ) -> None:
        self._config, self._parameters, self._momentum = config, parameters, outer_momentum
        self._steps, self._manager = StepCounter(), RoundManager(rounds)
        self._fragments = split_parameters(config, parameters, modules)
        self._optimizers = [
            torch.optim.SGD(
                [parameter for _, parameter in fragment.named_parameters()],
                lr=config.outer_lr,
                momentum=config.outer_momentum,
                nesterov=config.outer_nesterov,
            )
            for fragment in self._fragments
        ]
        self._share_momentum()
        ExitStack().enter_context(self._build())

    @torch.no_grad()
    def count_step(self) -> None:
        """Count a step of this group, after which weights are synced if it is time."""
        self._steps.step()

    @torch.no_grad()
    def skip_to_sync(self) -> None:
        """Take part in the sync that the other groups have begun."""
        for _ in range(self._config.sync_interval - self._config.fragment_sync_delay):
            self._steps.step()

    def read_synced_weights(self) -> dict[str, Tensor]:
        """Return copies of this rank's parts of DiLoCo's weights as of each one's last sync."""
        return {
            name: weight
            for _, save in self._manager.states
            for name, weight in save()["original_parameters"].items()
        }

    def load_synced_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take over what `read_synced_weights` returned in another group."""
        for load, save in self._manager.states:
            load({**save(), "original_parameters": weights})
        self._share_momentum()

    def _build(self) -> Any:
        """Build the algorithm of torchft, which registers itself with the counter of steps."""
        config, device = self._config, next(iter(self._parameters.values())).device
        if config.semi_sync_method == "local_sgd":
            (whole,) = self._fragments
            return LocalSGD(self._manager, whole, self._steps, config.sync_steps)
        return DiLoCo(
            self._manager,
            self._fragments,
            self._steps,
            self._optimizers,
            sync_every=config.sync_steps,
            pin_memory=device.type != "cpu",
            fragment_sync_delay=config.fragment_sync_delay,
            fragment_update_alpha=config.fragment_update_alpha,
        )

    def _share_momentum(self) -> None:
        """Make the outer optimizers keep their state where checkpoints find it."""
        for fragment, optimizer in zip(self._fragments, self._optimizers, strict=True):
            for name, parameter in fragment.named_parameters():
                if name in self._momentum:
                    optimizer.state[parameter]["momentum_buffer"] = self._momentum[name]


class ModelFragment:
    """Parameters that are synced together. For torchft it is a module."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = parameters

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Return the parameters with their names in the model."""
        return iter(self._parameters.items())

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the parameters."""
        return iter(self._parameters.values())


def split_parameters(
    config: FaultToleranceConfig,
    parameters: Mapping[str, nn.Parameter],
    modules: Sequence[str],
) -> list[ModelFragment]:
    """Split a model's parameters into the fragments of a valid recipe.

    Raises:
        ProblemsFound: a fragment has only weights that are tied to those of another.
    """
    if config.fragment_count == 1:
        return [ModelFragment(parameters)]
    parts = config.module_fqns_per_model_fragment or split_modules(
        modules, config.fragment_count, EndLayerCosts()
    )
    fragments = [
        {
            name: parameter
            for name, parameter in parameters.items()
            if any(f"{name}.".startswith(f"{module}.") for module in part)
        }
        for part in parts
    ]
    assert sum(map(len, fragments)) == len(parameters), "a rule requires a cover of the model"
    for fragment, part in zip(fragments, parts, strict=True):
        if not fragment:
            raise problem_error(
                "conflict",
                f"the fragment with {format_word_list(part, conjunction='and')} has no weights of "
                "its own",
                path=("fault_tolerance",),
                hint="use fewer fragments, or move these modules to another one",
            )
    return [ModelFragment(fragment) for fragment in fragments]


class StepCounter:
    """Steps of a group. For torchft it is the optimizer whose updates are counted.

    So a step whose update is skipped counts too, and all groups sync after the same steps.
    """

    def __init__(self) -> None:
        self._hooks: OrderedDict[int, Callable[[Any, Any, Any], None]] = OrderedDict()

    def register_step_pre_hook(self, hook: Callable[[Any, Any, Any], None]) -> RemovableHandle:
        """Call `hook` at each step."""
        handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = hook
        return handle

    register_step_post_hook = register_step_pre_hook

    def step(self) -> None:
        """Count a step."""
        for hook in list(self._hooks.values()):
            hook(self, (), {})


class RoundManager:
    """What torchft's algorithms ask of a manager, as rounds of communication.

    A group that returns gets a copy of the state, so that weights may change meanwhile.
    """

    _use_async_quorum = False

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self.states: list[tuple[Callable[[Any], None], Callable[[], Any]]] = []

    def start_quorum(self) -> None:
        """Begin a sync."""
        self._rounds.open_round()

    def allreduce(self, tensor: Tensor, should_quantize: bool = False) -> Any:
        """Start to average a tensor over the groups."""
        assert not should_quantize, "a rule refuses it"
        return self._rounds.start_average(tensor)

    def should_commit(self) -> bool:
        """Return whether the sync counts."""
        return self._rounds.close_round()

    def current_step(self) -> int:
        """Return the number of syncs before this one."""
        return self._rounds.sync_index

    def register_state_dict_fn(
        self, key: str, load: Callable[[Any], None], save: Callable[[], Any]
    ) -> None:
        """Keep a part of the state."""
        self.states.append((load, save))

    def allow_state_dict_read(self) -> None:
        """Do nothing."""

    def disallow_state_dict_read(self) -> None:
        """Do nothing."""
