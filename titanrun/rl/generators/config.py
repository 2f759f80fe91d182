"""The generator slot and its choices: what answers prompts."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Interval, Len

from titanrun.config.base import ComponentConfig, Config
from titanrun.config.fields import numerics, performance
from titanrun.config.types import NonNegativeFloat, PositiveFloat, PositiveInt, Text


class SamplingConfig(Config):
    """How next tokens are chosen."""

    temperature: NonNegativeFloat = numerics(1.0)
    """What logits are divided by; 0 takes the likeliest token."""
    top_p: Annotated[float, Interval(gt=0, le=1)] = numerics(1.0)
    """Only the likeliest tokens that together have this probability."""
    top_k: PositiveInt | None = numerics(None, examples=[50])
    """Only so many of the likeliest tokens; null: all."""
    max_new_tokens: PositiveInt = numerics(64, unit="tokens")
    """Longest answer of one turn."""


class GeneratorConfig(ComponentConfig):
    """What answers prompts with the policy's weights."""

    slot: ClassVar = "generator"
    is_slot: ClassVar = True
    default_name: ClassVar = "native"


class NativeConfig(GeneratorConfig):
    """titanrun's own: the model itself, with remembered keys and values, in the process that trains."""

    name: Literal["native"] = numerics("native")
    builds: ClassVar = "titanrun.rl.generators.native:NativeGenerator"
    batch_size: PositiveInt = performance(256, unit="prompts")
    """Prompts that are answered at once."""
    tensor_parallel: bool = performance(False)
    """Whether the ranks that split the policy's matrices split the generator's too, and answer the same prompts; false: each rank has a
    whole copy of the weights, and prompts of its own."""


class StaticConfig(GeneratorConfig):
    """Answers that are given, in turn, whatever the prompt: to try environments and rewards without a policy that can do anything."""

    name: Literal["static"] = numerics("static")
    builds: ClassVar = "titanrun.rl.generators.static:StaticGenerator"
    replies: Annotated[tuple[Text, ...], Len(1)] = numerics(examples=[["yes", "no"]])
    """The answers; the first one again after the last."""


class VllmConfig(GeneratorConfig):
    """vLLM (https://arxiv.org/abs/2309.06180) in a process of its own beside each rank, with a whole copy of the weights. Needs the
    extra `vllm`."""

    name: Literal["vllm"] = numerics("vllm")
    builds: ClassVar = "titanrun.rl.generators.vllm:VllmGenerator"
    extra: ClassVar = "vllm"
    model: Literal["native", "huggingface"] = numerics("native")
    """native: the policy's own code with vLLM's attention; huggingface: vLLM's model of that architecture, to which weights go under
    Hugging Face's names."""
    batch_size: PositiveInt = performance(256, unit="prompts")
    """Prompts that are answered at once."""
    memory_share: Annotated[float, Interval(gt=0, lt=1)] = performance(0.3)
    """Share of the accelerator's memory for its weights and remembered keys; on a CPU VLLM_CPU_KVCACHE_SPACE says how many GiB."""
    enforce_eager: bool = performance(True)
    """false: vLLM compiles its model and records CUDA graphs, which takes minutes at the start; for huggingface."""
    timeout_seconds: PositiveFloat = performance(1800.0, unit="s")
    """How long it may take to start, to take weights, or to answer `batch_size` prompts."""
