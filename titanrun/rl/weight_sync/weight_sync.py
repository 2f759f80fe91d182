"""Synchronization of the policy's weights to its generator by version."""

from dataclasses import dataclass

import torch

from titanrun.rl.generators.generator_protocol import Generator
from titanrun.rl.weight_sync.transport import WeightTransport, cast_for_generator
from titanrun.training.engine import Engine


def publish_weights(
    engine: Engine,
    transport: WeightTransport,
    *,
    dtype: torch.dtype,
    parameter_names: frozenset[str],
) -> int:
    """Publish the engine's weights under its policy version and return the version.

    A version that is already published is kept. Collective: all ranks must call this.

    Args:
        engine: the policy's engine.
        transport: where to publish.
        dtype: dtype of the published parameters.
        parameter_names: names of the tensors to cast to `dtype`.
    """
    version = engine.policy_version
    if version not in transport.list_versions():
        with torch.no_grad():
            transport.publish(
                version,
                cast_for_generator(
                    engine.state_dict_stream(), dtype=dtype, parameter_names=parameter_names
                ),
            )
    return version


# distance between the transport keys of a version before and after a rollback
VERSIONS_PER_ROLLBACK = 10**9


def choose_transport_key(transport: WeightTransport, version: int, num_rollbacks: int) -> int:
    """Return the transport's key of a version, which is not below any other.

    Transports keep the highest keys: versions after a rollback must be above those before it, which
    another process may have left.
    """
    newest = max(transport.list_versions(), default=0)
    while (key := num_rollbacks * VERSIONS_PER_ROLLBACK + version) < newest:
        num_rollbacks += 1
    return key


@dataclass(slots=True)
class WeightSync:
    """Transfer of the engine's weights to the generator.

    Args:
        transport: the connection between engine and generator.
        generator: this rank's generator.
        dtype: compute dtype of the generator, also used for the transfer.
        parameter_names: names of the tensors to cast to it. Buffers are not cast.
    """

    transport: WeightTransport
    generator: Generator
    dtype: torch.dtype
    parameter_names: frozenset[str]
    num_rollbacks: int = 0

    def sync_weights(self, engine: Engine) -> None:
        """Bring the generator to the engine's version. Collective: all ranks must call this."""
        if self.generator.version != engine.policy_version:
            self._send_weights(engine)

    def sync_after_rollback(self, engine: Engine) -> None:
        """Bring the generator back to an earlier version. Collective: all ranks must call this."""
        self.num_rollbacks += 1
        self._send_weights(engine)

    def _send_weights(self, engine: Engine) -> None:
        version = engine.policy_version
        key = choose_transport_key(self.transport, version, self.num_rollbacks)
        self.num_rollbacks = key // VERSIONS_PER_ROLLBACK
        with torch.no_grad():
            self.transport.publish(
                key,
                cast_for_generator(
                    engine.state_dict_stream(),
                    dtype=self.dtype,
                    parameter_names=self.parameter_names,
                ),
            )
            self.generator.load(self.transport.pull(key), version=version)
