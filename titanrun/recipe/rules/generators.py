"""Rules about the generators of RL completions."""

from collections.abc import Iterator

from titanrun.components.converters.config import Float8LinearConfig, QatConfig
from titanrun.components.converters.spec.batch_dependence import depends_on_batch
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import DataPath
from titanrun.models.shared.config import unwrap_auto
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.registry import RuleViolation, rule
from titanrun.rl.algorithms.correction_config import NoCorrectionConfig
from titanrun.rl.generators.config import GeneratorConfig, NativeConfig, StaticConfig, VllmConfig
from titanrun.training.config import MIN_TEMPERATURE

GENERATOR: DataPath = ("rl", "generator")
SAMPLING: DataPath = ("rl", "sampling")
FLEET: DataPath = ("rl", "fleet", "processes")
CARRIER: DataPath = ("rl", "fleet", "carrier")
# vllm.sampling_params raises temperatures between 0 and this to it
VLLM_MIN_TEMPERATURE = 0.01
# largest difference of log-probabilities that rounding in low precision was seen to make, doubled
ROUNDING_LIMIT = 0.05


@rule("split-generator-needs-ranks")
def split_generator_needs_ranks(run: Recipe) -> Iterator[RuleViolation]:
    """Require several tensor-parallel ranks for rl.generator.tensor_parallel.

    It splits the generator like the policy, over the tensor-parallel ranks, of which there must be
    several. If experts are distributed over ranks, each rank has a whole generator:
    expert_parallel_degree must be 1.
    """
    if run.rl is None or not getattr(run.rl.generator, "tensor_parallel", False):
        return
    path, degree = ("rl", "generator", "tensor_parallel"), ("parallelism", "tensor_parallel_degree")
    if run.parallelism.tensor_parallel_degree == 1:
        message = "tensor_parallel has no effect: tensor_parallel_degree is 1"
        hint = "set parallelism.tensor_parallel_degree, or remove it"
        yield RuleViolation(
            message, (path, degree), hint=hint, code="no-effect", severity="warning"
        )
    if run.parallelism.expert_parallel_degree > 1:
        paths = (path, ("parallelism", "expert_parallel_degree"))
        yield RuleViolation(
            "generator tensor_parallel does not support expert parallelism",
            paths,
            hint="remove it, or use expert_parallel_degree: 1",
        )


@rule("vllm-knows-the-attention")
def vllm_knows_the_attention(run: Recipe) -> Iterator[RuleViolation]:
    """Require an attention that vLLM supports with rl.generator {name: vllm, model: native}.

    vLLM's kernels support grouped heads and windows. For a decoder with latent attention, sinks or
    a soft cap use vLLM's own implementation (model: huggingface) if it has one, or native.
    """
    generator = None if run.rl is None else run.rl.generator
    if not isinstance(generator, VllmConfig) or generator.model != "native":
        return
    attention = getattr(run.model, "attention", None)
    for name in ("latent", "sinks", "soft_cap"):
        if hasattr(attention, name) and unwrap_auto(getattr(attention, name)):
            paths = ((*GENERATOR, "model"), ("model", "attention", name))
            yield RuleViolation(
                f"vLLM's attention does not support {name.replace('_', ' ')}",
                paths,
                hint="use rl.generator: native",
            )


@rule("vllm-compiles-its-own-models")
def vllm_compiles_its_own_models(run: Recipe) -> Iterator[RuleViolation]:
    """Require model: huggingface to compile with vLLM.

    rl.generator.enforce_eager: false compiles vLLM's own implementation of an architecture;
    titanrun's implementation runs uncompiled.
    """
    generator = None if run.rl is None else run.rl.generator
    if (
        isinstance(generator, VllmConfig)
        and generator.model == "native"
        and not generator.enforce_eager
    ):
        paths = ((*GENERATOR, "enforce_eager"), (*GENERATOR, "model"))
        yield RuleViolation(
            "vLLM cannot compile model: native",
            paths,
            hint="use model: huggingface, or enforce_eager: true",
        )


@rule("vllm-logprobs-are-of-all-tokens")
def vllm_logprobs_cover_all_tokens(run: Recipe) -> Iterator[RuleViolation]:
    """Require temperature 1, or no top_p and top_k, with vLLM.

    A policy learns from log-probabilities over all tokens at the sampling temperature. vLLM returns
    those before the temperature, or those after top_p and top_k: with a temperature other than 1
    and one of the two, neither fits.
    """
    if (
        run.rl is None
        or not isinstance(run.rl.generator, VllmConfig)
        or run.rl.sampling.temperature == 1
    ):
        return
    for name, plain in (("top_p", 1), ("top_k", None)):
        if getattr(run.rl.sampling, name) != plain:
            message = (
                "vLLM has no log-probabilities of all tokens at temperature "
                f"{run.rl.sampling.temperature:g} with {name}"
            )
            paths = ((*SAMPLING, name), (*SAMPLING, "temperature"), GENERATOR)
            yield RuleViolation(
                message, paths, hint="use temperature: 1.0, or rl.generator: native"
            )


@rule("vllm-raises-low-temperatures")
def vllm_raises_low_temperatures(run: Recipe) -> Iterator[RuleViolation]:
    """Require a temperature of 0, or of at least 0.01, with vLLM.

    vLLM samples at 0.01 where the temperature is between: the policy would learn from
    log-probabilities at another temperature. Below 1e-5, the most likely token is selected.
    """
    if run.rl is None or not isinstance(run.rl.generator, VllmConfig):
        return
    temperature = run.rl.sampling.temperature
    if MIN_TEMPERATURE <= temperature < VLLM_MIN_TEMPERATURE:
        yield RuleViolation(
            f"vLLM samples at temperature {VLLM_MIN_TEMPERATURE:g} instead of {temperature:g}",
            ((*SAMPLING, "temperature"), GENERATOR),
            hint=f"use 0, or at least {VLLM_MIN_TEMPERATURE:g}, or rl.generator: native",
        )


@rule("scales-of-a-batch-in-rl")
def scales_of_a_batch_in_rl(run: Recipe) -> Iterator[RuleViolation]:
    """Warn about converters in RL whose rounding depends on the batch.

    float8_linear with recipe_name tensorwise, and nvfp4_linear, scale the inputs of a module by the
    largest value of the whole batch. A completion then has other log-probabilities in the
    generator's batches than in the trainer's: use float8_linear with recipe_name rowwise.
    """
    if run.rl is None or isinstance(run.rl.generator, StaticConfig):
        return
    for index, converter in enumerate(run.converters):
        if depends_on_batch(converter):
            field = "recipe_name" if isinstance(converter, Float8LinearConfig) else "name"
            yield RuleViolation(
                f"log-probabilities depend on the batch with {converter.name}: the largest value "
                "of a batch scales all of it",
                (("converters", index, field), ("rl",)),
                hint="use float8_linear with recipe_name: rowwise",
                severity="warning",
            )


@rule("logprob-limit-fits-rounding")
def logprob_limit_fits_rounding(run: Recipe) -> Iterator[RuleViolation]:
    """Warn about rl.sync.max_logprob_diff if generator and policy round differently.

    The generator computes in the policy's converted form, but the batches of the two differ, and
    bfloat16 rounds sums whose order depends on the batch. vLLM's own models are not converted.
    Log-probabilities then differ by some 0.01: set max_logprob_diff to 0.05 or more or leave it
    out, or change what rounds.
    """
    if run.rl is None or run.rl.sync.max_logprob_diff is None:
        return
    limit = unwrap_auto(run.rl.sync.max_logprob_diff)
    path = ("rl", "sync", "max_logprob_diff")
    is_compared = run.rl.schedule.target_offpolicy == 0 and not run.rl.batch_invariant
    if limit >= ROUNDING_LIMIT or not is_compared or isinstance(run.rl.generator, StaticConfig):
        return
    for reason, place, hint in iter_rounding_differences(run, run.rl.generator):
        yield RuleViolation(
            f"rounding alone may exceed max_logprob_diff {limit:g}: {reason}",
            (path, place),
            hint=f"use max_logprob_diff: auto, or {hint}",
            severity="warning",
        )


def iter_rounding_differences(
    run: Recipe, generator: GeneratorConfig
) -> Iterator[tuple[str, DataPath, str]]:
    """Yield why generator and policy round differently, the path of the cause, and another fix."""
    for index, converter in enumerate(run.converters):
        path: DataPath = ("converters", index)
        is_low_precision = converter.number_format is not None or isinstance(converter, QatConfig)
        if (
            is_low_precision
            and isinstance(generator, VllmConfig)
            and (generator.model == "huggingface")
        ):
            yield f"vLLM does not convert to {converter.name}", path, "generator: native"
    training = run.training
    if "bfloat16" in (training.dtype, training.mixed_precision_param):
        reason = "sums in bfloat16 depend on the batch"
        path = ("training", "mixed_precision_param")
        yield reason, path, "training.mixed_precision_param: float32"


@rule("correction-has-a-difference")
def correction_has_a_difference(run: Recipe) -> Iterator[RuleViolation]:
    """Warn about rl.algorithm.correction if generator and policy are the same weights and code.

    With target_offpolicy 0 every completion is of the weights that learn from it, and the generator
    native computes as the policy does: their ratio is 1 but for rounding, and nothing is corrected.
    vLLM rounds differently. Set rl.schedule.target_offpolicy, or remove the correction.
    """
    rl = run.rl
    if rl is None or isinstance(rl.algorithm.correction, NoCorrectionConfig):
        return
    if rl.schedule.target_offpolicy == 0 and isinstance(rl.generator, NativeConfig):
        yield RuleViolation(
            f"correction {rl.algorithm.correction.name} has nothing to correct: each completion "
            "is of the weights that learn from it",
            (("rl", "algorithm", "correction"), ("rl", "schedule", "target_offpolicy")),
            hint="set rl.schedule.target_offpolicy, or remove the correction",
            severity="warning",
        )


@rule("fleet-reads-shared-weights")
def fleet_reads_shared_weights(run: Recipe) -> Iterator[RuleViolation]:
    """Require weights that other processes can open with rl.fleet.processes.

    Weights that are copied within the training process do not reach them: use rl.sync.transport
    shared_memory, or file or dcp.
    """
    rl = run.rl
    is_local = rl is not None and rl.fleet.processes and rl.fleet.carrier == "local"
    if rl is not None and is_local and rl.sync.transport == "in_process":
        yield RuleViolation(
            "the processes of the fleet cannot read weights of the transport in_process",
            (("rl", "sync", "transport"), FLEET),
            hint="use rl.sync.transport: shared_memory",
        )


@rule("ray-carries-weights-as-objects")
def ray_carries_weights_as_objects(run: Recipe) -> Iterator[RuleViolation]:
    """Require rl.sync.transport object_store with rl.fleet.carrier ray, and only there.

    Actors of Ray may be on other machines, and get weights from Ray's object store. What is not an
    actor of Ray cannot read it.
    """
    rl = run.rl
    if rl is None:
        return
    uses_ray = rl.fleet.processes > 0 and rl.fleet.carrier == "ray"
    paths: tuple[DataPath, ...] = (("rl", "sync", "transport"), CARRIER)
    if uses_ray and rl.sync.transport != "object_store":
        yield RuleViolation(
            f"actors of Ray cannot read weights of the transport {rl.sync.transport}",
            paths,
            hint="use rl.sync.transport: object_store",
        )
    elif not uses_ray and rl.sync.transport == "object_store":
        yield RuleViolation(
            "only actors of Ray read weights of the transport object_store",
            paths,
            hint="set rl.fleet: {carrier: ray} with processes, or use shared_memory",
        )


@rule("fleet-has-generators-of-its-own")
def fleet_has_generators_of_its_own(run: Recipe) -> Iterator[RuleViolation]:
    """Require a whole generator in each process with rl.fleet.processes.

    vLLM runs in processes that the trainer's ranks start, and a generator that tensor-parallel
    ranks share runs in these ranks. Use native without tensor_parallel, or processes: 0.
    """
    rl = run.rl
    if rl is None or not rl.fleet.processes:
        return
    hint = "use rl.generator: native, or rl.fleet.processes: 0"
    if isinstance(rl.generator, VllmConfig):
        yield RuleViolation("a fleet does not start vLLM", (GENERATOR, FLEET), hint=hint)
    elif getattr(rl.generator, "tensor_parallel", False):
        yield RuleViolation(
            "a generator of a fleet is not split over ranks",
            ((*GENERATOR, "tensor_parallel"), FLEET),
            hint=hint,
        )


@rule("older-completions-overlap-nothing")
def older_completions_overlap_nothing(run: Recipe) -> Iterator[RuleViolation]:
    """Warn about rl.schedule.target_offpolicy above 0 without rl.fleet.processes.

    Without a fleet the training processes generate and train in turn: completions get older, and
    nothing runs at the same time. That is of use to study the effect of their age. To save time,
    set rl.fleet.processes, with rl.sync.transport shared_memory. Generators that a fleet does not
    start, and replays, are not concerned.
    """
    rl = run.rl
    if rl is None or not rl.schedule.target_offpolicy or rl.fleet.processes or rl.schedule.replay:
        return
    if isinstance(rl.generator, VllmConfig) or getattr(rl.generator, "tensor_parallel", False):
        return
    yield RuleViolation(
        "completions get older and nothing overlaps: without a fleet, generation and training "
        "take turns",
        (("rl", "schedule", "target_offpolicy"), FLEET),
        hint="set rl.fleet.processes: 1 and rl.sync.transport: shared_memory, or target_offpolicy: "
        "0",
        severity="warning",
    )


@rule("fleet-has-enough-generators")
def fleet_has_enough_generators(run: Recipe) -> Iterator[RuleViolation]:
    """Require at least as many processes as rl.fleet.min_generators.

    With fewer, training would wait for processes that nobody starts. Raise processes, or lower
    min_generators.
    """
    fleet = None if run.rl is None else run.rl.fleet
    if fleet is not None and 0 < fleet.processes < fleet.min_generators:
        yield RuleViolation(
            f"training waits for {fleet.min_generators} generators, "
            f"but the fleet has {pluralize(fleet.processes, 'process', 'processes')}",
            (("rl", "fleet", "min_generators"), FLEET),
            hint=f"use min_generators: {fleet.processes}, or more processes",
        )


@rule("replayed-schedules-are-native")
def replayed_schedules_are_native(run: Recipe) -> Iterator[RuleViolation]:
    """Require rl.generator native for rl.schedule.replay_level schedule.

    Tokens are generated again in the batches of the recorded run. vLLM composes its batches itself,
    and static completions are not generated: use replay_level: completions.
    """
    schedule = None if run.rl is None else run.rl.schedule
    if run.rl is None or schedule is None or schedule.replay is None:
        return
    if schedule.replay_level == "schedule" and not isinstance(run.rl.generator, NativeConfig):
        yield RuleViolation(
            f"completions of {run.rl.generator.name} cannot be generated again",  # type: ignore[attr-defined]
            (("rl", "schedule", "replay_level"), GENERATOR),
            hint="use replay_level: completions, or rl.generator: native",
        )
