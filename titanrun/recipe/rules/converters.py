"""Rules about converters: which go together, and what each of them needs of the rest of a recipe."""

from collections.abc import Iterator

from titanrun.components.converters.config import (
    ConverterConfig,
    Float8GroupedMmConfig,
    Float8LinearConfig,
    Fp32LmHeadConfig,
    Mxfp8LinearConfig,
    Nvfp4LinearConfig,
)
from titanrun.config.problems import DataPath
from titanrun.distributed.degrees import degrees_of
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rank_rule, rule
from titanrun.recipe.rules.compiled import COMPONENTS, ENABLE, compiles_model
from titanrun.recipe.rules.ranks import at

LOCAL, ROWS = ("training", "local_batch_size"), ("training", "seq_len")
GATHER = "enable_fsdp_float8_all_gather"


def listed(run: Recipe) -> Iterator[tuple[DataPath, ConverterConfig]]:
    """Each converter with its path."""
    return ((("converters", index), converter) for index, converter in enumerate(run.converters))


@rule("converter-stands-once")
def converter_stands_once(run: Recipe) -> Iterator[Finding]:
    """A converter rewrites everything that it can at once: a second one of the same name finds nothing left. Keep one of them, with the
    options of both."""
    seen: dict[str, DataPath] = {}
    for path, converter in listed(run):
        if converter.name in seen:
            yield Finding(
                f"converter '{converter.name}' is listed twice",
                (path, seen[converter.name]),
                help="keep one of them",
            )
        seen.setdefault(converter.name, path)


@rule("converters-share-format")
def converters_share_format(run: Recipe) -> Iterator[Finding]:
    """Converters that make products in few bits share one number format: float8, MXFP8 or NVFP4. Keep those of one format."""
    formats: dict[str, tuple[DataPath, str]] = {}
    for path, converter in listed(run):
        if converter.format is None:
            continue
        for other, (place, name) in formats.items():
            if other != converter.format:
                message = (
                    f"{converter.name} makes products in {converter.format}, and {name} in {other}"
                )
                yield Finding(message, (path, place), help="keep converters of one format")
        formats.setdefault(converter.format, (path, converter.name))


@rule("converter-needs-experts")
def converter_needs_experts(run: Recipe) -> Iterator[Finding]:
    """Converters of grouped products rewrite the experts of a mixture, and a dense model has none. Leave the converter out, or take a
    model with experts."""
    for path, converter in listed(run):
        if converter.of_experts and run.model.routed_experts() == 0:
            message = f"{converter.name} rewrites experts, and {run.model.name} has none here"
            yield Finding(
                message,
                (path, ("model", "name"), ("model", "flavor")),
                help="leave it out, or take a model with experts",
            )


@rule("float8-experts-stay-together")
def float8_experts_stay_together(run: Recipe) -> Iterator[Finding]:
    """Grouped products in float8 work neither in a pipeline nor with context parallelism, as in torchtitan. Leave the converter out, or
    set the degree to 1."""
    for path, converter in listed(run):
        for name in ("pipeline_parallel_degree", "context_parallel_degree"):
            if isinstance(converter, Float8GroupedMmConfig) and getattr(run.parallelism, name) > 1:
                what = name.removesuffix("_degree").replace("_", " ")
                yield Finding(
                    f"{converter.name} does not go together with {what}ism",
                    (at(name), path),
                    help=f"set {name}: 1, or leave it out",
                )


@rule("mxfp8-compiles-without-tp")
def mxfp8_compiles_without_tp(run: Recipe) -> Iterator[Finding]:
    """A compiled model with MXFP8 modules cannot be split over tensor-parallel ranks: torchao's products are opaque to one of the two.
    Switch compile or tensor parallelism off."""
    if compiles_model(run) and run.parallelism.tensor_parallel_degree > 1:
        for path, converter in listed(run):
            if isinstance(converter, Mxfp8LinearConfig):
                message = f"{converter.name} in a compiled model does not go together with tensor parallelism"
                places = (path, at("tensor_parallel_degree"), ENABLE, COMPONENTS)
                yield Finding(
                    message, places, help="set compile.enable: false, or tensor_parallel_degree: 1"
                )


@rule("nvfp4-stays-whole")
def nvfp4_stays_whole(run: Recipe) -> Iterator[Finding]:
    """Modules in NVFP4 are not split over tensor-parallel ranks in this version. Use float8_linear or mxfp8_linear, or set
    tensor_parallel_degree to 1."""
    if run.parallelism.tensor_parallel_degree > 1:
        for path, converter in listed(run):
            if isinstance(converter, Nvfp4LinearConfig):
                message = f"{converter.name} together with tensor parallelism is not built in this version"
                help = "use float8_linear or mxfp8_linear, or set tensor_parallel_degree: 1"
                yield Finding(
                    message, (path, at("tensor_parallel_degree")), help=help, code="not-built"
                )


@rule("expert-parts-fill-blocks")
def expert_parts_fill_blocks(run: Recipe) -> Iterator[Finding]:
    """Ranks that share an expert each hold a part of its hidden layer, which products in few bits take in blocks: of 16 in float8, 32 in
    MXFP8. Change model.moe.hidden_dim, or leave experts whole (expert_tensor_parallel_degree 1 with expert_parallel_degree above 1)."""
    section, width = run.parallelism, run.model.hidden_widths().get("moe", 0)
    parts = (
        section.tensor_parallel_degree
        if section.expert_parallel_degree == 1
        else section.expert_tensor_parallel_degree
    )
    for path, converter in listed(run):
        if converter.of_experts and width and parts > 1 and width % (parts * converter.block):
            yield Finding(
                f"{converter.name} takes widths in blocks of {converter.block}, and {parts} ranks share a hidden layer of {width}",
                (path, ("model", "moe", "hidden_dim"), at("tensor_parallel_degree")),
                help=f"make model.moe.hidden_dim a multiple of {parts * converter.block}",
            )


@rule("fp32-head-is-untied")
def fp32_head_is_untied(run: Recipe) -> Iterator[Finding]:
    """An output head in fp32 needs a matrix of its own: one that the embedding shares is gathered in the embedding's dtype. Leave
    fp32_lm_head out, or set model.tie_word_embeddings to false."""
    for path, converter in listed(run):
        if isinstance(converter, Fp32LmHeadConfig) and getattr(
            run.model, "tie_word_embeddings", False
        ):
            message = "an output head in fp32 cannot share its matrix with the embedding"
            help = "leave fp32_lm_head out, or set model.tie_word_embeddings: false"
            yield Finding(
                message, (path, ("model", "tie_word_embeddings"), ("model", "flavor")), help=help
            )


@rule("fp32-head-needs-mixed-precision")
def fp32_head_needs_mixed_precision(run: Recipe) -> Iterator[Finding]:
    """Where everything computes in float32, the output head does so already: fp32_lm_head has no effect. Leave it out, or set
    training.mixed_precision_param to bfloat16."""
    training = run.training
    if training.dtype == training.mixed_precision_param == "float32":
        for path, converter in listed(run):
            if isinstance(converter, Fp32LmHeadConfig):
                message = f"{converter.name} has no effect: everything computes in float32"
                paths = (path, ("training", "mixed_precision_param"))
                yield Finding(
                    message, paths, help="leave it out", code="no-effect", severity="warning"
                )


@rank_rule("float8-gather-needs-shards")
def float8_gather_needs_shards(run: Recipe, ranks: int | None) -> Iterator[Finding]:
    """Weights are gathered in float8 only where FSDP shards them: with data_parallel_shard_degree 1 nothing is gathered. Raise the
    degree, or leave enable_fsdp_float8_all_gather out."""
    degrees = degrees_of(run.parallelism, ranks)
    if degrees is None or degrees.fsdp > 1:
        return
    for path, converter in listed(run):
        if isinstance(converter, Float8LinearConfig) and converter.enable_fsdp_float8_all_gather:
            message = f"{GATHER} has no effect: no weights are sharded"
            paths = ((*path, GATHER), at("data_parallel_shard_degree"))
            yield Finding(message, paths, help="leave it out", code="no-effect", severity="warning")


@rank_rule("tokens-fill-blocks")
def tokens_fill_blocks(run: Recipe, ranks: int | None) -> Iterator[Finding]:
    """The gradient of a weight is a product over the tokens of a forward pass, and products in few bits take them in blocks: of 16 in
    float8, 32 in MXFP8, 128 in NVFP4. Change training.seq_len, training.local_batch_size or the ranks that share rows."""
    tokens = tokens_of_a_pass(run)
    for path, converter in listed(run):
        emulates_float8 = isinstance(converter, Float8LinearConfig) and converter.emulate
        if not converter.of_experts and not emulates_float8 and tokens % converter.block:
            yield Finding(
                f"{converter.name} takes tokens in blocks of {converter.block}, and a forward pass has {tokens}",
                (path, ROWS, LOCAL, at("context_parallel_degree")),
                help=f"make training.seq_len a multiple of {converter.block * run.parallelism.context_parallel_degree}",
            )


def tokens_of_a_pass(run: Recipe) -> int:
    """Tokens that a linear module sees at once on one rank."""
    rows = run.training.local_batch_size
    if run.parallelism.pipeline_parallel_degree > 1:
        rows = run.parallelism.pipeline_parallel_microbatch_size
    return rows * run.training.seq_len // run.parallelism.context_parallel_degree


@rule("kernels-exist", level="environment")
def kernels_exist(run: Recipe) -> Iterator[Finding]:
    """Products in few bits need a device whose kernels make them, or emulate: true, which makes them in more bits from rounded numbers.
    On another device the converter is refused before the run starts."""
    if run.device == "cpu":
        for path, converter in listed(run):
            if converter.needs is not None:
                problem = converter.missing("cpu", int(path[1]))
                yield Finding(problem.message, (path, ("device",)), help=problem.help, code="usage")
