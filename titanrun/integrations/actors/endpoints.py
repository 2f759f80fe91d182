"""Endpoints of the classes that run as actors: one table for all actor systems."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import isclass
from typing import Any, get_type_hints

from titanrun.config.problems import problem_error

# by the module and name of the class: what one actor needs, the others' processes do not import
ENDPOINTS: dict[str, tuple[str, ...]] = {
    "titanrun.integrations.torchforge.titan_trainer:TitanTrainer": (
        *("setup", "train_step", "push_weights", "cleanup"),
    ),
    "titanrun.integrations.torchforge.reference_actor:ReferenceModel": (
        *("setup", "forward", "cleanup"),
    ),
    "titanrun.integrations.torchforge.replay_buffer:ReplayBuffer": (
        *("setup", "add", "sample", "evict", "clear", "state_dict", "load_state_dict"),
    ),
    "titanrun.rl.policy_trainer:PolicyTrainer": (
        *("forward_backward", "optim_step", "push_weights", "push_model_state_dict"),
        *("save_checkpoint", "load_checkpoint", "state_dict", "load_state_dict"),
        *("get_policy_version", "sync_log_step", "close"),
    ),
}
# what the process answers for the object in it
HEALTH = "health"
# they are answered while another endpoint runs
CONCURRENT_ENDPOINTS = frozenset({"get_policy_version", "sync_log_step", HEALTH})


@dataclass(frozen=True, slots=True)
class ActorBlueprint:
    """What each rank of an actor builds.

    Args:
        factory: a class of ENDPOINTS, or a function whose annotation names it as its result.
        args: positional arguments of the factory.
        kwargs: keyword arguments of the factory.
    """

    factory: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None

    @property
    def title(self) -> str:
        """Name of the class in messages."""
        return get_actor_class(self.factory).__name__

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Names of the endpoints, `health` included."""
        return (*find_endpoints(get_actor_class(self.factory)), HEALTH)

    def build(self) -> Any:
        """Build the object."""
        return self.factory(*self.args, **self.kwargs or {})


def get_actor_class(factory: Callable[..., Any]) -> type:
    """Return the class that a factory builds.

    Raises:
        ProblemsFound: it is no class of ENDPOINTS.
    """
    built = factory if isclass(factory) else get_type_hints(factory).get("return")
    if not isclass(built) or not find_endpoints(built):
        name = getattr(factory, "__name__", repr(factory))
        known = ", ".join(each.partition(":")[2] for each in ENDPOINTS)
        raise problem_error(
            "wrong-type",
            f"{name} does not build an actor: no endpoints are known",
            hint=f"give one of {known}, or a function with one of them as annotation of its result",
        )
    return built


def find_endpoints(actor_class: type) -> tuple[str, ...]:
    """Return the endpoints of a class or of what it derives from, none if there are none."""
    names = (f"{base.__module__}:{base.__qualname__}" for base in actor_class.__mro__)
    return next((ENDPOINTS[name] for name in names if name in ENDPOINTS), ())
