"""Sections about how one model is laid out over devices: parallelism, activation checkpointing, compile, comm, debug."""

from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import AfterValidator, model_validator
from pydantic_core import PydanticCustomError

from titanrun.config.base import ComponentConfig, Config
from titanrun.config.conflict import conflict
from titanrun.config.fields import bookkeeping, numerics, performance
from titanrun.config.types import Fraction, NonNegativeInt, OrAuto, PositiveInt, RunPath, Text

DEEPEP = "the exchange of tokens by DeepEP's kernels"
BY_OPERATION = "op"
Operation: TypeAlias = Literal[
    "attention",
    "every_second_product",
    "products",
    "biased_products",
    "grouped_products",
    "activations",
    "top_k",
    "max",
    "reduce_scatter",
    "all_to_all",
    "compiled",
]


def op_or_number(text: str) -> str:
    """`op`, or a whole number above 0 in digits."""
    if text != BY_OPERATION and (not text.isascii() or not text.isdigit() or int(text) == 0):
        context = {"help": 'use op, or a number in quotes: "2" is every second layer'}
        raise PydanticCustomError("op_or_a_count_of_layers_in_quotes", "neither", context)
    return text


Layers: TypeAlias = Annotated[str, AfterValidator(op_or_number)]


class ParallelismConfig(Config):
    """Degrees of parallelism, whose product is the number of ranks, and how each of them works."""

    data_parallel_replicate_degree: PositiveInt = performance(1, unit="ranks", resume=True)
    """Copies of the model (DDP), or groups of shards (HSDP)."""
    data_parallel_shard_degree: OrAuto[PositiveInt] = performance(
        "auto", unit="ranks", resume=True, examples=[1]
    )
    """Ranks that share one copy of the weights (FSDP2); `auto`: all that the other degrees leave."""
    fsdp_reshard_after_forward: Literal["default", "always", "never"] = performance(
        "default", resume=True
    )
    """Whether gathered weights are dropped after the forward pass and gathered again; default: always, but never in a pipeline."""
    tensor_parallel_degree: PositiveInt = performance(1, unit="ranks")
    """Ranks that split each matrix."""
    enable_sequence_parallel: bool = performance(True)
    """Whether tensor-parallel ranks also split the rows between the matrices, where norms work."""
    disable_loss_parallel: bool = performance(False)
    """Whether every tensor-parallel rank holds the whole logits, instead of its part of the vocabulary."""
    enable_async_tensor_parallel: bool = performance(False)
    """Whether the compiler overlaps tensor-parallel communication with matrix products, on accelerators."""
    pipeline_parallel_degree: PositiveInt = performance(1, unit="ranks")
    """Ranks that split the layers."""
    pipeline_parallel_schedule: Literal[
        "1F1B",
        "GPipe",
        "Interleaved1F1B",
        "LoopedBFS",
        "InterleavedZeroBubble",
        "ZBVZeroBubble",
        "DualPipeV",
    ] = performance("1F1B")
    """Order of the forward and backward passes; 1F1B and GPipe have one stage a rank, the others several."""
    pipeline_parallel_schedule_csv: Text | None = performance(None)
    """File with a schedule of one's own in PyTorch's CSV format, instead of a named one."""
    pipeline_parallel_microbatch_size: PositiveInt = performance(1, unit="rows")
    """Rows that go through the pipeline together; training.local_batch_size is a multiple of it."""
    pipeline_parallel_layers_per_stage: PositiveInt | None = performance(None, unit="layers")
    """Layers of a stage, which sets the number of stages; null: as few stages as the schedule needs."""
    pipeline_parallel_first_stage_less_layers: NonNegativeInt = performance(1, unit="layers")
    """What the embedding counts as when the layers are split into stages of equal work."""
    pipeline_parallel_last_stage_less_layers: NonNegativeInt = performance(1, unit="layers")
    """What the last norm and the output head count as."""
    module_fqns_per_model_part: tuple[tuple[Text, ...], ...] | None = performance(None)
    """The modules of each stage by name; null: split by the counts above."""
    pipeline_parallel_expert_parallel_overlap: bool = performance(True)
    """Whether DualPipeV runs one pass's communication between experts during another pass's computation."""
    context_parallel_degree: PositiveInt = performance(1, unit="ranks")
    """Ranks that split each row."""
    context_parallel_load_balancer: Literal["headtail", "ptrr"] | None = performance("headtail")
    """How tokens are dealt so that causal attention costs every rank the same; ptrr needs flex attention; null: in order."""
    context_parallel_rotate_method: Literal["allgather", "alltoall"] = performance("allgather")
    """How attention sees whole rows: each rank gathers all keys and values, or gets its part of the heads for all tokens."""
    expert_parallel_degree: PositiveInt = performance(1, unit="ranks")
    """Ranks that split the experts."""
    expert_tensor_parallel_degree: PositiveInt = performance(1, unit="ranks")
    """Ranks that split each expert's matrices; 1, or the same as tensor_parallel_degree."""
    expert_parallel_comm_backend: Literal["standard", "deepep"] = performance(
        "standard", not_built=DEEPEP
    )
    """What carries tokens to their experts: collectives of PyTorch, or DeepEP."""


class ActivationCheckpointConfig(ComponentConfig):
    """Which activations are recomputed in the backward pass instead of kept."""

    slot: ClassVar = "activation_checkpoint"
    is_slot: ClassVar = True
    # torchtitan 0.2.2 recomputes every second layer unless told otherwise; here recomputing is asked for
    default_name: ClassVar = "none"
    name: str = performance()


class NoActivationCheckpointConfig(ActivationCheckpointConfig):
    """Every activation is kept."""

    name: Literal["none"] = performance("none")
    builds: ClassVar = "titanrun.distributed.activation_checkpoint:keep_all"


class RecomputingConfig(ActivationCheckpointConfig):
    """What every choice has that computes layers again in the backward pass."""

    preserve_rng_state: bool = numerics(True)
    """Whether random draws of the first pass are repeated in the second; false is wrong for a model with dropout."""
    determinism_check: Literal["default", "none"] = performance("default")
    """default: an error where the second pass computes other shapes, types or devices than the first."""
    debug: bool = performance(False)
    """Whether such an error lists the operations of both passes; slow, and it needs determinism_check: default."""
    # torchtitan 0.2.2 recomputes each layer to its end; stopping early gives the same gradients for less work
    early_stop: bool = performance(True)
    """Whether the second pass ends as soon as it has computed the last activation that was not kept."""

    @model_validator(mode="after")
    def debugs_what_it_checks(self) -> Self:
        """Operations are listed where the check finds a difference, and only there."""
        if self.debug and self.determinism_check == "none":
            message = "debug lists what the determinism check finds, and determinism_check is none"
            raise conflict(
                message,
                "determinism_check",
                "debug",
                help="use determinism_check: default, or debug: false",
            )
        return self


class FullActivationCheckpointConfig(RecomputingConfig):
    """Every layer keeps its input only and is computed again in the backward pass."""

    name: Literal["full"] = performance("full")
    builds: ClassVar = "titanrun.distributed.activation_checkpoint:recompute_all"


class SelectiveActivationCheckpointConfig(RecomputingConfig):
    """Every n-th layer is computed again in the backward pass, or of every layer what is cheap to compute."""

    name: Literal["selective"] = performance("selective")
    builds: ClassVar = "titanrun.distributed.activation_checkpoint:recompute_some"
    selective_ac_option: Layers = performance("2", examples=["op"])
    """A number in quotes: every n-th layer as a whole; op: of every layer all but what per_op_sac_saves names."""
    per_op_sac_saves: tuple[Operation, ...] = performance(
        (
            "attention",
            "every_second_product",
            "top_k",
            "max",
            "reduce_scatter",
            "all_to_all",
            "compiled",
        )
    )
    """With op: whose results are kept; all others are computed again. The default is what is dear to compute, waits for other ranks, or
    must not come out otherwise the second time."""
    per_op_sac_force_recompute_mm_shapes_by_fqns: tuple[Text, ...] = performance(
        ("moe.router.gate",)
    )
    """With op: matrices of the shapes that linear modules with these texts in their names have are multiplied again too."""

    @property
    def every(self) -> int | None:
        """Which layers are recomputed whole; None where operations decide."""
        return None if self.selective_ac_option == BY_OPERATION else int(self.selective_ac_option)

    @model_validator(mode="after")
    def keeps_products_once(self) -> Self:
        """Every product, or every second one."""
        if {"products", "every_second_product"} <= set(self.per_op_sac_saves):
            message = "per_op_sac_saves has every product, and every second one too"
            raise conflict(
                message, "per_op_sac_saves", help="keep one of products and every_second_product"
            )
        return self

    @model_validator(mode="after")
    def debugs_whole_layers(self) -> Self:
        """PyTorch lists operations only where a layer is recomputed as a whole."""
        if self.debug and self.every is None:
            message = "debug lists the operations of layers that are recomputed whole, and selective_ac_option is op"
            raise conflict(
                message,
                "debug",
                "selective_ac_option",
                help="use debug: false, or activation_checkpoint: full",
            )
        return self


class MemoryBudgetActivationCheckpointConfig(ActivationCheckpointConfig):
    """Of each compiled layer what is cheapest to compute again, until the rest is within a budget; the compiler chooses."""

    name: Literal["memory_budget"] = performance("memory_budget")
    builds: ClassVar = "titanrun.distributed.activation_checkpoint:recompute_for_budget"
    memory_budget: Fraction = performance(0.5)
    """What may be kept, as a share: at 0 each layer keeps its inputs only, at 1 what makes it fastest."""


class CompileConfig(Config):
    """torch.compile."""

    enable: bool = performance(False)
    """Whether blocks and loss are compiled."""
    components: tuple[Literal["model", "loss"], ...] = performance(("model", "loss"))
    """What is compiled."""
    backend: Text = performance("inductor")
    """Back end of torch.compile: one of PyTorch's, or of an installed package."""


class CommConfig(Config):
    """Collective communication."""

    init_timeout_seconds: PositiveInt = bookkeeping(300, unit="seconds", resume=True)
    """How long ranks wait for each other at the start."""
    train_timeout_seconds: PositiveInt = bookkeeping(100, unit="seconds", resume=True)
    """How long a collective may take after the first step; files may take longer."""
    trace_buf_size: NonNegativeInt = bookkeeping(20000, unit="collectives", resume=True)
    """Collectives that the flight recorder remembers, to be written where one times out; 0 switches it off."""
    save_traces_folder: RunPath = bookkeeping("comm_traces", resume=True)
    """Folder of the flight recorder's files inside the run directory."""
    save_traces_file_prefix: Text = bookkeeping("rank_", resume=True)
    """How the names of these files begin; the rank follows."""
    mode: Literal["default", "fake_backend", "local_tensor"] = numerics("default")
    """default: real communication; fake_backend: one process is the first of many ranks whose messages go nowhere, for a look at memory and
    speed; local_tensor: one process computes for many, which is not built yet."""


class DebugConfig(Config):
    """Seed, determinism, and what helps to find a mistake."""

    # torchtitan 0.2.2 may run unseeded; here every run can be repeated
    seed: NonNegativeInt = numerics(0)
    """Seed of weights, data order and every generator."""
    deterministic: bool = numerics(False)
    """Whether only deterministic kernels are used; an operation without one is an error."""
    deterministic_warn_only: bool = numerics(False)
    """Whether such an operation warns instead."""
    moe_force_load_balance: bool = numerics(False)
    """Whether tokens are dealt to experts in turn instead of by the router."""
    detect_anomaly: bool = performance(False, resume=True)
    """Whether the backward pass stops at the operation that first gave NaN, and says where it was called; slow."""
    print_config: bool = bookkeeping(False, resume=True)
    """Whether the log begins with the resolved recipe, which resolved.yaml holds in any case."""
