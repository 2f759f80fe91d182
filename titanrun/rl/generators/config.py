"""The generator slot and its choices."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Interval, Len

from titanrun.config.base import ComponentConfig, Config
from titanrun.config.fields import numerics, performance
from titanrun.config.types import NonNegativeFloat, PositiveFloat, PositiveInt, Text


class SamplingConfig(Config):
    """Sampling of next tokens."""

    temperature: NonNegativeFloat = numerics(1.0)
    """Divisor of the logits. 0, and anything below 1e-5, selects the most likely token."""
    top_p: Annotated[float, Interval(gt=0, le=1)] = numerics(1.0)
    """Sample only from the most likely tokens that together have this probability."""
    top_k: PositiveInt | None = numerics(None, examples=[50])
    """Number of most likely tokens to sample from. Null: all."""
    max_new_tokens: PositiveInt = numerics(64, unit="tokens")
    """Longest completion of one turn."""


class GeneratorConfig(ComponentConfig):
    """Generator of completions with the policy's weights."""

    slot: ClassVar = "generator"
    is_slot: ClassVar = True
    builds_what: ClassVar = "an object with generate() and load()"
    built_attributes: ClassVar = ("generate", "load")
    default_name: ClassVar = "native"


class NativeConfig(GeneratorConfig):
    """The policy's own model with a KV cache, in the training process."""

    name: Literal["native"] = numerics("native")
    builds: ClassVar = "titanrun.rl.generators.native_generator:NativeGenerator"
    batch_size: PositiveInt = performance(256, unit="prompts")
    """Prompts processed at once."""
    tensor_parallel: bool = performance(False)
    """Whether the policy's tensor-parallel ranks split the generator too and share prompts.

    If false, each rank has a full copy of the weights and its own prompts."""


class StaticConfig(GeneratorConfig):
    """Fixed replies in turn, independent of the prompt, to test environments and rewards.

    No policy that can solve the task is needed.
    """

    name: Literal["static"] = numerics("static")
    builds: ClassVar = "titanrun.rl.generators.static_generator:StaticGenerator"
    replies: Annotated[tuple[Text, ...], Len(1)] = numerics(examples=[["yes", "no"]])
    """The replies, repeated from the first after the last."""


class VllmConfig(GeneratorConfig):
    """vLLM in a separate process per rank (https://arxiv.org/abs/2309.06180).

    Each process has a full copy of the weights. Requires the extra `vllm`.
    """

    name: Literal["vllm"] = numerics("vllm")
    builds: ClassVar = "titanrun.rl.generators.vllm_generator:VllmGenerator"
    extra: ClassVar = "vllm"
    model: Literal["native", "huggingface"] = numerics("native")
    """Model code that vLLM runs.

    native: the policy's code with vLLM's attention; huggingface: vLLM's implementation of the
    architecture, with weights converted to Hugging Face names."""
    batch_size: PositiveInt = performance(256, unit="prompts")
    """Prompts processed at once."""
    memory_share: Annotated[float, Interval(gt=0, lt=1)] = performance(0.3)
    """Fraction of the accelerator's memory for weights and KV cache.

    On a CPU VLLM_CPU_KVCACHE_SPACE sets the KV cache size in GiB."""
    enforce_eager: bool = performance(True)
    """Whether to run without compilation and CUDA graphs. Only for model huggingface.

    If false, vLLM compiles its model and records CUDA graphs, which takes minutes at the start."""
    timeout_seconds: PositiveFloat = performance(1800.0, unit="seconds")
    """Longest duration of a start, a weight update, or generation for `batch_size` prompts."""
