"""Rules about converters: which can be combined, and the settings they need."""

from collections.abc import Iterator

from titanrun.components.converters.config import (
    AUTO_FILTER,
    ConverterConfig,
    Float8GroupedMmConfig,
    Float8LinearConfig,
    Fp32LmHeadConfig,
    Mxfp8LinearConfig,
    Nvfp4LinearConfig,
    QatConfig,
)
from titanrun.components.converters.quantization_config import LM_HEAD
from titanrun.config.problems import DataPath
from titanrun.distributed.spec.parallel_dims import resolve_parallel_dims
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.compile import COMPONENTS, ENABLE, compiles_model
from titanrun.recipe.rules.parallel_dims import get_parallelism_path
from titanrun.recipe.rules.registry import RuleViolation, rank_rule, rule

LOCAL_BATCH, SEQ_LEN = ("training", "local_batch_size"), ("training", "seq_len")
GATHER = "enable_fsdp_float8_all_gather"


def iter_converters(run: Recipe) -> Iterator[tuple[DataPath, ConverterConfig]]:
    """Yield each converter with its path."""
    return ((("converters", index), converter) for index, converter in enumerate(run.converters))


@rule("converter-stands-once")
def converter_stands_once(run: Recipe) -> Iterator[RuleViolation]:
    """Require each converter at most once.

    A converter rewrites every matching module at once: a second one of the same name finds none
    left. Keep one of them, with the options of both.
    """
    seen: dict[str, DataPath] = {}
    for path, converter in iter_converters(run):
        if converter.name in seen:
            yield RuleViolation(
                f"converter '{converter.name}' is listed twice",
                (path, seen[converter.name]),
                hint="keep one of them",
            )
        seen.setdefault(converter.name, path)


@rule("low-precision-needs-compile")
def low_precision_needs_compile(run: Recipe) -> Iterator[RuleViolation]:
    """Warn if the layers of float8, MXFP8 or NVFP4 products are not compiled.

    Numbers are rounded and scaled before each product. Compiled, these casts are part of the
    kernels before it. Uncompiled they are separate passes over memory, and training is usually
    slower than in bf16. Enable compile, with the model among its components.
    """
    if run.device == "cpu" or compiles_model(run):
        return
    for path, converter in iter_converters(run):
        rounds = converter.number_format is not None and not getattr(converter, "emulate", False)
        if rounds:
            yield RuleViolation(
                f"{converter.name} without a compiled model is usually slower than bfloat16",
                (path, ENABLE, COMPONENTS),
                hint='set compile.enable: true, with "model" among compile.components',
                code="slow",
                severity="warning",
            )


@rule("converters-share-format")
def converters_share_format(run: Recipe) -> Iterator[RuleViolation]:
    """Require a single number format for all low-precision converters.

    Converters of matrix products share one format: float8, MXFP8 or NVFP4. Keep those of one
    format.
    """
    formats: dict[str, tuple[DataPath, str]] = {}
    for path, converter in iter_converters(run):
        if converter.number_format is None:
            continue
        for other, (place, name) in formats.items():
            if other != converter.number_format:
                message = (
                    f"{converter.name} uses {converter.number_format}, but {name} uses {other}"
                )
                yield RuleViolation(message, (path, place), hint="use converters of one format")
        formats.setdefault(converter.number_format, (path, converter.name))


@rule("converter-finds-modules")
def converter_finds_modules(run: Recipe) -> Iterator[RuleViolation]:
    """Require that low-precision converters leave modules for qat and fp32_lm_head.

    A module has one converter, the first in the list that selects it. List fp32_lm_head first, and
    use qat or a low-precision converter, not both for the same modules.
    """
    converters = list(iter_converters(run))
    for index, (path, converter) in enumerate(converters):
        for place, earlier in converters[:index]:
            if isinstance(converter, Fp32LmHeadConfig) and selects_module(earlier, LM_HEAD):
                hint = f"list {converter.name} first"
            elif isinstance(converter, QatConfig) and selects_all_but(
                earlier, converter.filter_fqns
            ):
                hint = "remove one of them, or name the modules of the other in filter_fqns"
            else:
                continue
            message = f"{earlier.name} leaves no module for {converter.name}"
            yield RuleViolation(message, (path, place), hint=hint)


def selects_module(converter: ConverterConfig, name: str) -> bool:
    """Return whether a low-precision converter of linear modules selects one of that name."""
    if isinstance(converter, Nvfp4LinearConfig):
        return not converter.fqns or any(text in name for text in converter.fqns)
    return (
        isinstance(converter, Float8LinearConfig | Mxfp8LinearConfig)
        and not getattr(converter, AUTO_FILTER, False)
        and not any(text in name for text in converter.filter_fqns)
    )


def selects_all_but(converter: ConverterConfig, names: tuple[str, ...]) -> bool:
    """Return whether a low-precision converter leaves at most linear modules of these names."""
    return (
        isinstance(converter, Float8LinearConfig | Mxfp8LinearConfig)
        and not getattr(converter, AUTO_FILTER, False)
        and set(converter.filter_fqns) <= set(names)
    )


@rule("converter-needs-experts")
def converter_needs_experts(run: Recipe) -> Iterator[RuleViolation]:
    """Require a model with experts for converters of grouped products.

    They rewrite the experts of a mixture, and a dense model has none. Remove the converter, or use
    a model with experts.
    """
    for path, converter in iter_converters(run):
        if converter.is_for_experts and run.model.count_routed_experts() == 0:
            message = f"{converter.name} needs experts, but model '{run.model.name}' has none"
            yield RuleViolation(
                message,
                (path, ("model", "name"), ("model", "flavor")),
                hint="remove it, or use a model with experts",
            )


@rule("float8-experts-stay-together")
def float8_experts_stay_together(run: Recipe) -> Iterator[RuleViolation]:
    """Reject float8 grouped products in a pipeline or with context parallelism.

    torchtitan has the same restriction. Remove the converter, or set the degree to 1.
    """
    for path, converter in iter_converters(run):
        for name in ("pipeline_parallel_degree", "context_parallel_degree"):
            if isinstance(converter, Float8GroupedMmConfig) and getattr(run.parallelism, name) > 1:
                parallelism = name.removesuffix("_degree").replace("_", " ") + "ism"
                yield RuleViolation(
                    f"{converter.name} does not support {parallelism}",
                    (get_parallelism_path(name), path),
                    hint=f"set {name}: 1, or remove the converter",
                )


@rule("mxfp8-compiles-without-tp")
def mxfp8_compiles_without_tp(run: Recipe) -> Iterator[RuleViolation]:
    """Reject compiled MXFP8 modules with tensor parallelism.

    torchao's matrix products are opaque to either the compiler or tensor parallelism. Switch one of
    the two off.
    """
    if compiles_model(run) and run.parallelism.tensor_parallel_degree > 1:
        for path, converter in iter_converters(run):
            if isinstance(converter, Mxfp8LinearConfig):
                message = (
                    f"{converter.name} in a compiled model does not support tensor parallelism"
                )
                places = (path, get_parallelism_path("tensor_parallel_degree"), ENABLE, COMPONENTS)
                yield RuleViolation(
                    message, places, hint="set compile.enable: false, or tensor_parallel_degree: 1"
                )


@rule("mxfp8-computes-in-bf16")
def mxfp8_computes_in_bf16(run: Recipe) -> Iterator[RuleViolation]:
    """Require bfloat16 as compute dtype for MXFP8 modules.

    The kernels that round to MXFP8 read bf16. Set training.mixed_precision_param to bfloat16; with
    emulate: true any dtype can be used.
    """
    training = run.training
    if "bfloat16" in (training.dtype, training.mixed_precision_param):
        return
    for path, converter in iter_converters(run):
        if isinstance(converter, Mxfp8LinearConfig) and not converter.emulate:
            yield RuleViolation(
                f"{converter.name} needs bfloat16, but everything is computed in float32",
                (path, ("training", "mixed_precision_param")),
                hint="set training.mixed_precision_param: bfloat16",
            )


@rule("nvfp4-stays-whole")
def nvfp4_stays_whole(run: Recipe) -> Iterator[RuleViolation]:
    """Reject NVFP4 modules with tensor parallelism.

    They are not split over tensor-parallel ranks in this version. Use float8_linear or
    mxfp8_linear, or set tensor_parallel_degree to 1.
    """
    if run.parallelism.tensor_parallel_degree > 1:
        for path, converter in iter_converters(run):
            if isinstance(converter, Nvfp4LinearConfig):
                message = f"{converter.name} with tensor parallelism is not built in this version"
                hint = "use float8_linear or mxfp8_linear, or set tensor_parallel_degree: 1"
                yield RuleViolation(
                    message,
                    (path, get_parallelism_path("tensor_parallel_degree")),
                    hint=hint,
                    code="not-built",
                )


@rule("expert-parts-fill-blocks")
def expert_parts_fill_blocks(run: Recipe) -> Iterator[RuleViolation]:
    """Require the expert hidden dimension per rank to fill whole blocks.

    Ranks that share an expert each hold a part of its hidden layer, which low-precision products
    process in blocks: of 16 in float8, 32 in MXFP8. Change model.moe.hidden_dim, or keep experts
    whole (expert_tensor_parallel_degree 1 with expert_parallel_degree above 1).
    """
    section, width = run.parallelism, run.model.get_hidden_dims().get("moe", 0)
    parts = (
        section.tensor_parallel_degree
        if section.expert_parallel_degree == 1
        else section.expert_tensor_parallel_degree
    )
    for path, converter in iter_converters(run):
        if (
            converter.is_for_experts
            and width
            and parts > 1
            and width % (parts * converter.alignment)
        ):
            yield RuleViolation(
                f"model.moe.hidden_dim {width} is not divisible by {parts * converter.alignment} "
                f"({parts} ranks x {converter.name} block size {converter.alignment})",
                (
                    path,
                    ("model", "moe", "hidden_dim"),
                    get_parallelism_path("tensor_parallel_degree"),
                ),
                hint=f"make model.moe.hidden_dim a multiple of {parts * converter.alignment}",
            )


@rule("fp32-head-is-untied")
def fp32_head_is_untied(run: Recipe) -> Iterator[RuleViolation]:
    """Require untied embeddings for fp32_lm_head.

    An output head in fp32 needs a separate matrix: one that is tied to the embedding is gathered in
    the embedding's dtype. Remove fp32_lm_head, or set model.tie_word_embeddings to false.
    """
    for path, converter in iter_converters(run):
        if isinstance(converter, Fp32LmHeadConfig) and getattr(
            run.model, "tie_word_embeddings", False
        ):
            message = "fp32_lm_head does not support tied embeddings"
            hint = "remove fp32_lm_head, or set model.tie_word_embeddings: false"
            yield RuleViolation(
                message, (path, ("model", "tie_word_embeddings"), ("model", "flavor")), hint=hint
            )


@rule("fp32-head-needs-mixed-precision")
def fp32_head_needs_mixed_precision(run: Recipe) -> Iterator[RuleViolation]:
    """Require mixed precision for fp32_lm_head.

    If everything is computed in float32, so is the output head, and fp32_lm_head has no effect.
    Remove it, or set training.mixed_precision_param to bfloat16.
    """
    training = run.training
    if training.dtype == training.mixed_precision_param == "float32":
        for path, converter in iter_converters(run):
            if isinstance(converter, Fp32LmHeadConfig):
                message = f"{converter.name} has no effect: everything is computed in float32"
                paths = (path, ("training", "mixed_precision_param"))
                yield RuleViolation(
                    message, paths, hint="remove it", code="no-effect", severity="warning"
                )


@rank_rule("float8-gather-needs-shards")
def float8_gather_needs_shards(run: Recipe, ranks: int | None) -> Iterator[RuleViolation]:
    """Require FSDP shards for enable_fsdp_float8_all_gather.

    Weights are gathered in float8 only if FSDP shards them: with data_parallel_shard_degree 1
    nothing is gathered. Raise the degree, or remove enable_fsdp_float8_all_gather.
    """
    degrees = resolve_parallel_dims(run.parallelism, ranks)
    if degrees is None or degrees.fsdp_size > 1:
        return
    for path, converter in iter_converters(run):
        if isinstance(converter, Float8LinearConfig) and converter.enable_fsdp_float8_all_gather:
            message = f"{GATHER} has no effect: weights are not sharded"
            paths = ((*path, GATHER), get_parallelism_path("data_parallel_shard_degree"))
            yield RuleViolation(
                message, paths, hint="remove it", code="no-effect", severity="warning"
            )


@rank_rule("tokens-fill-blocks")
def tokens_fill_blocks(run: Recipe, ranks: int | None) -> Iterator[RuleViolation]:
    """Require the tokens of a forward pass to fill whole blocks.

    The gradient of a weight is a product over the tokens of a forward pass, which low-precision
    products process in blocks: of 16 in float8, 32 in MXFP8, 128 in NVFP4. Change training.seq_len,
    training.local_batch_size or the ranks that share sequences.
    """
    tokens = count_tokens_per_forward_pass(run)
    for path, converter in iter_converters(run):
        emulates_float8 = isinstance(converter, Float8LinearConfig) and converter.emulate
        if not converter.is_for_experts and not emulates_float8 and tokens % converter.alignment:
            multiple = converter.alignment * run.parallelism.context_parallel_degree
            yield RuleViolation(
                f"{tokens:,} tokens per forward pass are not divisible by the "
                f"{converter.name} block size {converter.alignment}",
                (path, SEQ_LEN, LOCAL_BATCH, get_parallelism_path("context_parallel_degree")),
                hint=f"make training.seq_len a multiple of {multiple}",
            )


def count_tokens_per_forward_pass(run: Recipe) -> int:
    """Return the tokens per call of a linear module on one rank."""
    num_sequences = run.training.local_batch_size
    if run.parallelism.pipeline_parallel_degree > 1:
        num_sequences = run.parallelism.pipeline_parallel_microbatch_size
    return num_sequences * run.training.seq_len // run.parallelism.context_parallel_degree


@rule("kernels-exist", level="environment")
def kernels_exist(run: Recipe) -> Iterator[RuleViolation]:
    """Require a device with kernels for the converters.

    Low-precision products need a device with kernels for them, or emulate: true, which computes in
    higher precision from rounded values. On another device the converter is rejected before the run
    starts.
    """
    if run.device == "cpu":
        for path, converter in iter_converters(run):
            if converter.device_requirement is not None:
                problem = converter.build_device_problem("cpu", int(path[1]))
                yield RuleViolation(
                    problem.message, (path, ("device",)), hint=problem.hint, code="usage"
                )
