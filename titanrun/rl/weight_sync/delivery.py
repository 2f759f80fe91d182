"""Takes the policy's weights to its generator, version by version."""

from dataclasses import dataclass

import torch

from titanrun.rl.generators.generator import Generator
from titanrun.rl.weight_sync.bus import WeightBus, as_sent
from titanrun.training.engine import Engine


def publish(
    engine: Engine, bus: WeightBus, *, dtype: torch.dtype, parameters: frozenset[str]
) -> int:
    """Puts the engine's weights on the bus under its policy version, which is given back. A version that is there already stays.

    All ranks call it. `parameters`: names of what is cast to `dtype`.
    """
    version = engine.policy_version
    if version not in bus.versions():
        with torch.no_grad():
            bus.publish(
                version, as_sent(engine.state_dict_stream(), dtype=dtype, parameters=parameters)
            )
    return version


@dataclass(slots=True)
class Delivery:
    """Publishes the engine's weights under its policy version, and lets the generator pull them.

    Args:
        bus: the way between the two.
        generator: of this rank.
        dtype: that the generator computes in; nobody can set another one for the way.
        parameters: names of what is cast to it. Buffers are not.
    """

    bus: WeightBus
    generator: Generator
    dtype: torch.dtype
    parameters: frozenset[str]

    def deliver(self, engine: Engine) -> None:
        """Both have the same version afterwards. All ranks call it."""
        version = engine.policy_version
        if self.generator.version == version:
            return
        with torch.no_grad():
            self.bus.publish(
                version,
                as_sent(engine.state_dict_stream(), dtype=self.dtype, parameters=self.parameters),
            )
            self.generator.load(self.bus.pull(version), version=version)
