"""Config sections for the layout of a model over devices, compilation and debugging.

The sections are parallelism, activation_checkpoint, compile, comm and debug.
"""

from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import AfterValidator, model_validator
from pydantic_core import PydanticCustomError

from titanrun.config.base import ComponentConfig, Config
from titanrun.config.conflict import conflict_error
from titanrun.config.fields import bookkeeping, numerics, performance
from titanrun.config.types import (
    FileNamePrefix,
    Fraction,
    NonNegativeInt,
    OrAuto,
    PositiveInt,
    RunPath,
    Text,
)
from titanrun.distributed.spec.read_conditions import (
    COMPILED,
    CONTEXT_PARALLEL,
    DETERMINISTIC,
    EXPERT_PARALLEL,
    FLIGHT_RECORDER,
    HAS_EXPERTS,
    INDUCTOR,
    NAMED_SCHEDULE,
    OVERLAPPED,
    PIPELINE,
    SHARDED,
    STAGES_BY_COUNT,
    TENSOR_PARALLEL,
)

DEEPEP = "token dispatch with DeepEP's kernels"
BY_OPERATION = "op"
SavedOperation: TypeAlias = Literal[
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


def validate_selective_ac_option(text: str) -> str:
    """Return the text if it is `op` or a whole number above 0 in digits.

    Raises:
        PydanticCustomError: for any other text.
    """
    if text != BY_OPERATION and (not text.isascii() or not text.isdigit() or int(text) == 0):
        context = {"help": 'use op, or a number in quotes: "2" is every second layer'}
        raise PydanticCustomError("op_or_a_count_of_layers_in_quotes", "neither", context)
    return text


SelectiveAcOption: TypeAlias = Annotated[str, AfterValidator(validate_selective_ac_option)]


class ParallelismConfig(Config):
    """Degrees of parallelism, whose product is the number of ranks, and their options."""

    data_parallel_replicate_degree: PositiveInt = performance(1, unit="ranks", resume=True)
    """Number of model replicas (DDP), or of groups of shards (HSDP)."""
    data_parallel_shard_degree: OrAuto[PositiveInt] = performance(
        "auto", unit="ranks", resume=True, examples=[1]
    )
    """Number of ranks that shard one copy of the weights (FSDP2). `auto` uses all ranks that the
    other degrees leave.
    """
    fsdp_reshard_after_forward: Literal["default", "always", "never"] = performance(
        "default", resume=True, read_when=SHARDED
    )
    """Whether to free gathered weights after the forward pass and gather them again. default:
    always, but never in a pipeline.
    """
    tensor_parallel_degree: PositiveInt = performance(1, unit="ranks")
    """Number of ranks that split each matrix."""
    enable_sequence_parallel: bool = performance(True, read_when=TENSOR_PARALLEL)
    """Whether tensor-parallel ranks also split the sequences between the matrices, where norms are
    computed.
    """
    disable_loss_parallel: bool = performance(False, read_when=TENSOR_PARALLEL)
    """Whether every tensor-parallel rank holds the full logits instead of its part of the
    vocabulary.
    """
    enable_async_tensor_parallel: bool = performance(False, read_when=TENSOR_PARALLEL)
    """Whether the compiler overlaps tensor-parallel communication with matrix products, on
    accelerators.
    """
    pipeline_parallel_degree: PositiveInt = performance(1, unit="ranks")
    """Number of ranks that split the layers."""
    pipeline_parallel_schedule: Literal[
        "1F1B",
        "GPipe",
        "Interleaved1F1B",
        "LoopedBFS",
        "InterleavedZeroBubble",
        "ZBVZeroBubble",
        "DualPipeV",
    ] = performance("1F1B", read_when=(PIPELINE, NAMED_SCHEDULE))
    """Order of the forward and backward passes. 1F1B and GPipe have one stage per rank, the others
    several.
    """
    pipeline_parallel_schedule_csv: Text | None = performance(None, read_when=PIPELINE)
    """File with a custom schedule in PyTorch's CSV format. It replaces the named one."""
    pipeline_parallel_microbatch_size: PositiveInt = performance(
        1, unit="sequences", read_when=PIPELINE
    )
    """Sequences per pipeline microbatch. training.local_batch_size must be a multiple of it."""
    pipeline_parallel_layers_per_stage: PositiveInt | None = performance(
        None, unit="layers", read_when=(PIPELINE, STAGES_BY_COUNT)
    )
    """Layers per stage, which determines the number of stages. null: as few stages as the schedule
    needs.
    """
    pipeline_parallel_first_stage_less_layers: NonNegativeInt = performance(
        1, unit="layers", read_when=(PIPELINE, STAGES_BY_COUNT)
    )
    """Cost of the embedding in layers when the layers are split into stages of equal work."""
    pipeline_parallel_last_stage_less_layers: NonNegativeInt = performance(
        1, unit="layers", read_when=(PIPELINE, STAGES_BY_COUNT)
    )
    """Cost of the final norm and the output head in layers."""
    module_fqns_per_model_part: tuple[tuple[Text, ...], ...] | None = performance(
        None, read_when=PIPELINE
    )
    """Names of the modules of each stage. null: split by the layer counts above."""
    pipeline_parallel_expert_parallel_overlap: bool = performance(True, read_when=OVERLAPPED)
    """Whether DualPipeV overlaps the expert communication of one pass with the computation of
    another.
    """
    context_parallel_degree: PositiveInt = performance(1, unit="ranks")
    """Number of ranks that split each sequence."""
    context_parallel_load_balancer: Literal["headtail", "ptrr"] | None = performance(
        "headtail", read_when=CONTEXT_PARALLEL
    )
    """How tokens are distributed so that causal attention costs the same on every rank. ptrr needs
    flex attention. null: in order.
    """
    context_parallel_rotate_method: Literal["allgather", "alltoall"] = performance(
        "allgather", read_when=CONTEXT_PARALLEL
    )
    """How attention covers whole sequences. allgather: each rank gathers all keys and values.
    alltoall: each rank gets all tokens of its part of the heads.
    """
    expert_parallel_degree: PositiveInt = performance(1, unit="ranks")
    """Number of ranks that split the experts."""
    expert_tensor_parallel_degree: PositiveInt = performance(
        1, unit="ranks", read_when=EXPERT_PARALLEL
    )
    """Number of ranks that split each expert's matrices. Must be 1 or equal to
    tensor_parallel_degree.
    """
    expert_parallel_comm_backend: Literal["standard", "deepep"] = performance(
        "standard", not_built=DEEPEP, read_when=EXPERT_PARALLEL
    )
    """What sends tokens to their experts: PyTorch's collectives, or DeepEP."""


class ActivationCheckpointConfig(ComponentConfig):
    """Selection of the activations that are recomputed in the backward pass instead of kept."""

    slot: ClassVar = "activation_checkpoint"
    is_slot: ClassVar = True
    # torchtitan 0.2.2 recomputes every second layer by default; here recomputation is opt-in
    default_name: ClassVar = "none"
    name: str = performance()


class NoActivationCheckpointConfig(ActivationCheckpointConfig):
    """Every activation is kept."""

    name: Literal["none"] = performance("none")
    builds: ClassVar = "titanrun.distributed.activation_checkpoint:apply_no_ac"


class RecomputingConfig(ActivationCheckpointConfig):
    """Options of all choices that recompute layers in the backward pass."""

    preserve_rng_state: bool = numerics(True)
    """Whether the recomputation repeats the random draws of the first pass. false is wrong for a
    model with dropout.
    """
    determinism_check: Literal["default", "none"] = performance("default")
    """default: an error if the recomputation has other shapes, dtypes or devices than the first
    pass.
    """
    debug: bool = performance(False)
    """Whether such an error lists the operations of both passes. Slow. Needs determinism_check:
    default.
    """
    # torchtitan 0.2.2 recomputes each layer to its end; stopping early gives the same gradients for
    # less work
    early_stop: bool = performance(True)
    """Whether the recomputation ends after the last activation that was not kept."""

    @model_validator(mode="after")
    def check_debug_needs_determinism_check(self) -> Self:
        """Raise a problem if debug is set without the check.

        Operations are listed only if the check finds a difference.
        """
        if self.debug and self.determinism_check == "none":
            message = (
                "debug lists the findings of the determinism check, but determinism_check is none"
            )
            raise conflict_error(
                message,
                "determinism_check",
                "debug",
                hint="use determinism_check: default, or debug: false",
            )
        return self


class FullActivationCheckpointConfig(RecomputingConfig):
    """Every layer keeps only its input and is recomputed in the backward pass."""

    name: Literal["full"] = performance("full")
    builds: ClassVar = "titanrun.distributed.activation_checkpoint:apply_full_ac"


class SelectiveActivationCheckpointConfig(RecomputingConfig):
    """Every n-th layer, or the cheap operations of every layer, are recomputed."""

    name: Literal["selective"] = performance("selective")
    builds: ClassVar = "titanrun.distributed.activation_checkpoint:apply_selective_ac"
    selective_ac_option: SelectiveAcOption = performance("2", examples=["op"])
    """A number n in quotes: recompute every n-th layer as a whole. op: recompute all operations of
    every layer except those in per_op_sac_saves.
    """
    per_op_sac_saves: tuple[SavedOperation, ...] = performance(
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
    """With op: operations whose results are kept. All others are recomputed. The default lists
    operations that are expensive, wait for other ranks, or must return the same result the second
    time.
    """
    per_op_sac_force_recompute_mm_shapes_by_fqns: tuple[Text, ...] = performance(
        ("moe.router.gate",)
    )
    """With op: name parts of linear modules. Matrix products with the shapes of these modules are
    recomputed too.
    """

    @property
    def layer_interval(self) -> int | None:
        """Interval of the layers that are recomputed as a whole. None if operations decide."""
        return None if self.selective_ac_option == BY_OPERATION else int(self.selective_ac_option)

    @model_validator(mode="after")
    def check_products_saved_once(self) -> Self:
        """Raise a problem if both every product and every second product are kept."""
        if {"products", "every_second_product"} <= set(self.per_op_sac_saves):
            message = "per_op_sac_saves contains both products and every_second_product"
            raise conflict_error(
                message, "per_op_sac_saves", hint="keep one of products and every_second_product"
            )
        return self

    @model_validator(mode="after")
    def check_debug_needs_whole_layers(self) -> Self:
        """Raise a problem if debug is set with op.

        PyTorch lists the operations of whole layers only.
        """
        if self.debug and self.layer_interval is None:
            message = (
                "debug lists the operations of layers that are recomputed as a whole, but "
                "selective_ac_option is op"
            )
            raise conflict_error(
                message,
                "debug",
                "selective_ac_option",
                hint="use debug: false, or activation_checkpoint: full",
            )
        return self


class MemoryBudgetActivationCheckpointConfig(ActivationCheckpointConfig):
    """The compiler recomputes the cheapest activations until the rest fits a budget.

    This works in each compiled layer.
    """

    name: Literal["memory_budget"] = performance("memory_budget")
    builds: ClassVar = "titanrun.distributed.activation_checkpoint:apply_memory_budget_ac"
    memory_budget: Fraction = performance(0.5)
    """Fraction of activations to keep. At 0 each layer keeps only its inputs, at 1 what makes it
    fastest.
    """


class CompileConfig(Config):
    """torch.compile."""

    enable: bool = performance(False)
    """Whether layers and loss are compiled."""
    components: tuple[Literal["model", "loss"], ...] = performance(
        ("model", "loss"), read_when=COMPILED
    )
    """Parts to compile."""
    backend: Text = performance("inductor", read_when=COMPILED)
    """Back end of torch.compile, from PyTorch or an installed package."""
    max_autotune: bool = performance(False, read_when=(COMPILED, INDUCTOR))
    """Whether inductor times several kernels for each matrix product. It takes minutes, and gains a
    few percent at most.
    """


class CommConfig(Config):
    """Collective communication."""

    init_timeout_seconds: PositiveInt = bookkeeping(300, unit="seconds", resume=True)
    """Maximum time that ranks wait for each other at the start."""
    train_timeout_seconds: PositiveInt = bookkeeping(100, unit="seconds", resume=True)
    """Maximum time of a collective after the first step. File operations may take longer."""
    trace_buf_size: NonNegativeInt = bookkeeping(20000, unit="collectives", resume=True)
    """Number of collectives that the flight recorder keeps, written to a file if one times out. Set
    to 0 to disable.
    """
    save_traces_folder: RunPath = bookkeeping("comm_traces", resume=True, read_when=FLIGHT_RECORDER)
    """Folder of the flight recorder's files inside the run directory."""
    save_traces_file_prefix: FileNamePrefix = bookkeeping(
        "rank_", resume=True, read_when=FLIGHT_RECORDER
    )
    """Prefix of the names of these files, followed by the rank."""
    mode: Literal["default", "fake_backend", "local_tensor"] = numerics("default")
    """default: real communication. fake_backend: one process simulates the first of many ranks
    without sending messages, to measure memory and speed. local_tensor: one process computes for
    many ranks, which is not built yet.
    """


class DebugConfig(Config):
    """Seed, determinism and debugging aids."""

    # torchtitan 0.2.2 may run without a seed; here every run can be repeated
    seed: NonNegativeInt = numerics(0)
    """Seed of weights, data order and every random generator."""
    deterministic: bool = numerics(False)
    """Whether to use only deterministic kernels. An operation without one is an error."""
    deterministic_warn_only: bool = numerics(False, read_when=DETERMINISTIC)
    """Whether such an operation warns instead."""
    moe_force_load_balance: bool = numerics(False, read_when=HAS_EXPERTS)
    """Whether tokens are distributed over experts in turn instead of by the router."""
    detect_anomaly: bool = performance(False, resume=True)
    """Whether the backward pass stops at the first operation that returns NaN and reports its
    origin. Slow.
    """
    print_config: bool = bookkeeping(False, resume=True)
    """Whether the log begins with the resolved recipe, which resolved.yaml always contains."""
