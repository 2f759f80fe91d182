"""Rules about RL: prompts, rewards, algorithms and on-policy training."""

from collections.abc import Iterator

from titanrun.components.data.dataloader_config import DataLoaderConfig
from titanrun.config.problems import DataPath
from titanrun.models.shared.config import unwrap_auto
from titanrun.recipe.recipe import Recipe, find_lora_converter
from titanrun.recipe.rules.no_effect import build_no_effect_violation
from titanrun.recipe.rules.registry import RuleViolation, rule
from titanrun.rl.config import RlConfig
from titanrun.rl.environments.config import SingleTurnConfig
from titanrun.rl.generators.config import NativeConfig, StaticConfig
from titanrun.rl.prompts.config import PromptDatasetConfig
from titanrun.rl.rewards.config import EnvironmentRewardConfig

KIND: DataPath = ("kind",)
RL: DataPath = ("rl",)
DATASET: DataPath = ("training", "dataset")
ROLLOUT: DataPath = ("rl", "rollout")
TASKS = "use string_task, arithmetic, guess_task, lookup_task, questions or hub_questions"
# pretraining settings that an RL step does not read, with the reason
UNREAD_SETTINGS: dict[DataPath, str] = {
    ("training", "global_batch_size"): "the completions determine the batch size of a step",
    ("training", "data_cache"): "prompts are read again at each start",
    ("loss",): "rl.algorithm determines the loss",
}
UNREAD_SETTINGS |= {
    ("training", "dataloader", name): "prompts are loaded before the first step"
    for name in DataLoaderConfig.model_fields
}

OnPolicyCondition = tuple[bool, DataPath, str, str]
"""Whether the condition holds, the path of its setting, the reason if not, and the fix."""


@rule("rl-needs-its-section")
def rl_needs_its_section(run: Recipe) -> Iterator[RuleViolation]:
    """Require the section rl if and only if kind is rl.

    kind: rl reads the section rl, which defines the rewards; no other kind reads it.
    """
    if run.kind == "rl" and run.rl is None:
        hint = "add a section rl, such as rl: {rewards: [exact_match]}"
        yield RuleViolation("kind rl needs the section rl", (KIND, RL), hint=hint)
    if run.kind != "rl" and run.rl is not None:
        yield RuleViolation(
            f"section rl has no effect: kind is {run.kind}",
            (RL, KIND),
            hint="set kind: rl",
            code="no-effect",
        )


@rule("rl-needs-questions")
def rl_needs_prompts(run: Recipe) -> Iterator[RuleViolation]:
    """Require a prompt dataset and a tokenizer if kind is rl.

    The dataset of kind rl holds prompts with expected answers, and the tokenizer encodes them.
    """
    if run.kind == "rl" and not isinstance(run.training.dataset, PromptDatasetConfig):
        message = (
            f"kind rl needs a prompt dataset, but dataset '{run.training.dataset.name}' "
            "has no prompts"
        )
        yield RuleViolation(message, (DATASET, KIND), hint=TASKS)
    if run.kind == "rl" and run.tokenizer is None:
        yield RuleViolation(
            "prompts need a tokenizer",
            (("tokenizer",), DATASET),
            hint="set tokenizer: characters, or a tokenizer folder",
        )
    held_out = None if run.rl is None else run.rl.validation.dataset
    if (
        run.kind == "rl"
        and held_out is not None
        and held_out != "auto"
        and not isinstance(held_out, PromptDatasetConfig)
    ):
        message = f"kind rl needs a prompt dataset, but dataset '{held_out.name}' has no prompts"
        yield RuleViolation(message, (("rl", "validation", "dataset"),), hint=TASKS)


@rule("rl-has-rewards")
def rl_has_rewards(run: Recipe) -> Iterator[RuleViolation]:
    """Require at least one reward with a nonzero weight.

    The policy learns from rewards. The environment's own reward counts only if the environment
    returns one.
    """
    rl = run.rl
    if run.kind != "rl" or rl is None:
        return
    path = ("rl", "rewards")
    if rl.algorithm.learns_from_rewards and not any(reward.weight for reward in rl.rewards):
        yield RuleViolation(
            "no reward has a nonzero weight",
            ((*path, 0), path, RL),
            hint="set a reward, such as rewards: [exact_match]",
        )
    for index, reward in enumerate(rl.rewards):
        if isinstance(reward, EnvironmentRewardConfig) and isinstance(
            rl.environment, SingleTurnConfig
        ):
            message = "environment single_turn returns no reward"
            yield RuleViolation(
                message,
                ((*path, index), ("rl", "environment")),
                hint="use exact_match, or an environment with rewards",
            )


@rule("advantage-needs-siblings")
def advantage_needs_siblings(run: Recipe) -> Iterator[RuleViolation]:
    """Require several completions per prompt for group advantages.

    An advantage relative to the group needs several completions of a prompt: a single one equals
    its own mean, and has no deviation.
    """
    rl = run.rl
    if rl is None or rl.rollout.samples_per_prompt > 1 or not rl.algorithm.learns_from_rewards:
        return
    advantage = getattr(rl.algorithm, "advantage", None)
    places = ((*ROLLOUT, "samples_per_prompt"), ("rl", "algorithm", "advantage"), ROLLOUT)
    if advantage != "running_mean":
        message = (
            f"advantage {advantage} needs several completions per prompt, but "
            "samples_per_prompt is 1"
        )
        yield RuleViolation(message, places, hint="raise rl.rollout.samples_per_prompt")
    elif rl.rollout.drop_zero_variance is True:
        message = "drop_zero_variance would drop every group: samples_per_prompt is 1"
        all_places = ((*ROLLOUT, "drop_zero_variance"), *places)
        yield RuleViolation(message, all_places, hint="set rl.rollout.drop_zero_variance: false")


def suggest_reference(run: Recipe) -> str:
    """Return the reference that a recipe without one probably means."""
    if run.rl is not None and run.rl.teacher is not None:
        return "teacher"
    return "frozen_copy" if find_lora_converter(run) is None else "adapter_off"


@rule("reference-is-read")
def reference_is_read(run: Recipe) -> Iterator[RuleViolation]:
    """Require rl.reference if and only if the algorithm reads it.

    A penalty for the divergence from the reference, and ref_kl, need rl.reference; nothing else
    reads it.
    """
    if run.rl is None:
        return
    algorithm, path = run.rl.algorithm, ("rl", "reference")
    reads = algorithm.needs_reference or algorithm.kl.coef > 0
    if reads and run.rl.reference is None:
        reader = getattr(algorithm, "name", "algorithm") if algorithm.needs_reference else "kl.coef"
        yield RuleViolation(
            f"{reader} needs rl.reference",
            (path, ("rl", "algorithm")),
            hint=f"set rl.reference: {suggest_reference(run)}",
        )
    if run.rl.reference == "teacher" and run.rl.teacher is None:
        hint = "set rl.teacher to a run directory or a Hugging Face folder"
        yield RuleViolation("reference teacher needs rl.teacher", (path,), hint=hint)
    if run.rl.reference == "adapter_off" and find_lora_converter(run) is None:
        message = "reference adapter_off needs a policy with adapters"
        yield RuleViolation(
            message,
            (path, ("converters",)),
            hint="use frozen_copy, or add the converter lora",
        )
    if not reads:
        yield build_no_effect_violation(
            path, ("rl", "algorithm", "kl", "coef"), "is 0", "set a coef above 0, or remove it"
        )
        yield build_no_effect_violation(
            ("rl", "algorithm", "kl", "estimator"),
            ("rl", "algorithm", "kl", "coef"),
            "is 0",
            "set a coef above 0, or remove it",
        )


@rule("answers-fit-rows")
def answers_fit_sequences(run: Recipe) -> Iterator[RuleViolation]:
    """Require conversations and completions to fit into seq_len.

    A conversation is trained on in one sequence: it must not be longer than training.seq_len, and a
    completion must be shorter than the conversation.
    """
    if run.rl is None or run.kind != "rl":
        return
    longest, seq_len = run.rl.rollout.max_tokens, run.training.seq_len
    if longest is not None and longest > seq_len:
        message = f"rl.rollout.max_tokens {longest} exceeds training.seq_len {seq_len}"
        paths = ((*ROLLOUT, "max_tokens"), ("training", "seq_len"))
        yield RuleViolation(
            message, paths, hint=f"use at most {seq_len}, or raise training.seq_len"
        )
    max_new_tokens, limit = run.rl.sampling.max_new_tokens, longest or seq_len
    if max_new_tokens >= limit:
        message = (
            f"max_new_tokens {max_new_tokens} leaves no space for a prompt in a "
            f"conversation of {limit:,} tokens"
        )
        limits = ["rl.rollout.max_tokens"] if longest else []
        limits += ["training.seq_len"] if limit >= seq_len else []
        fitting = min(limit, seq_len) // 2
        hint = f"set rl.sampling.max_new_tokens: {fitting}, or raise {' and '.join(limits)}"
        places = (("rl", "sampling", "max_new_tokens"), (*ROLLOUT, "max_tokens"))
        yield RuleViolation(message, (*places, ("training", "seq_len")), hint=hint)
    known = unwrap_auto(run.model.max_seq_len)
    if limit > known:
        length = f"{limit:,} tokens"
        message = f"conversations of {length} exceed model.max_seq_len {known:,}"
        yield RuleViolation(
            message,
            ((*ROLLOUT, "max_tokens"), ("model", "max_seq_len")),
            hint=f"use at most {known}",
        )


@rule("batch-invariant-means-on-policy")
def batch_invariant_means_on_policy(run: Recipe) -> Iterator[RuleViolation]:
    """Require on-policy settings for rl.batch_invariant.

    It requires the same bits from generator and trainer: the same weights (target_offpolicy 0),
    whole matrices and sequences on every rank, the same code (native, not compiled), and kernels
    that return the same bits twice.
    """
    rl = run.rl
    if rl is None or not rl.batch_invariant:
        return
    switch = ("rl", "batch_invariant")
    conditions = [*get_same_code_conditions(run, rl), *get_same_sum_conditions(run)]
    for holds, path, reason, hint in conditions:
        if not holds:
            yield RuleViolation(
                f"rl.batch_invariant is not possible: {reason}",
                (path, switch),
                hint=f"{hint}, or remove rl.batch_invariant",
            )


def get_same_code_conditions(run: Recipe, rl: RlConfig) -> list[OnPolicyCondition]:
    """Return the conditions for the same kernels and weights in generator and trainer."""
    return [
        (
            rl.schedule.target_offpolicy == 0,
            ("rl", "schedule", "target_offpolicy"),
            "completions are older than the weights",
            "use 0",
        ),
        (
            isinstance(rl.generator, NativeConfig),
            ("rl", "generator"),
            "the generator does not run the trained model",
            "use native",
        ),
        (
            not run.compile.enable,
            ("compile", "enable"),
            "compiled code sums in a different order",
            "use false",
        ),
        (
            run.debug.deterministic,
            ("debug", "deterministic"),
            "kernels may sum in any order",
            "use true",
        ),
        (
            not run.converters,
            ("converters",),
            "the rounding of converted matrices depends on the batch",
            "remove them",
        ),
    ]


def get_same_sum_conditions(run: Recipe) -> list[OnPolicyCondition]:
    """Return the conditions for sums that do not depend on the batch or the ranks."""
    return [
        (
            run.model.count_routed_experts() == 0,
            ("model", "name"),
            "the number of tokens per expert depends on the batch",
            "use a dense model",
        ),
        (
            run.parallelism.tensor_parallel_degree == 1,
            ("parallelism", "tensor_parallel_degree"),
            "split matrices sum in a different order",
            "use 1",
        ),
        (
            run.parallelism.context_parallel_degree == 1,
            ("parallelism", "context_parallel_degree"),
            "attention over split sequences sums in a different order",
            "use 1",
        ),
        (
            run.parallelism.pipeline_parallel_degree == 1,
            ("parallelism", "pipeline_parallel_degree"),
            "stages compute fewer sequences at once",
            "use 1",
        ),
    ]


@rule("logprobs-are-compared-on-policy")
def logprobs_are_compared_on_policy(run: Recipe) -> Iterator[RuleViolation]:
    """Require on-policy completions for rl.sync.max_logprob_diff and max_logprob_diff_mean.

    They compare the generator with the trained weights: older completions, and completions that
    were not sampled, always differ. With `auto` nothing is compared then.
    """
    rl = run.rl
    if rl is None:
        return
    for name in ("max_logprob_diff", "max_logprob_diff_mean"):
        if getattr(rl.sync, name) is None:
            continue
        path = ("rl", "sync", name)
        hint = f"set rl.sync.{name}: auto, which compares nothing then"
        if rl.schedule.target_offpolicy:
            yield RuleViolation(
                f"{name} needs completions of the current weights, but target_offpolicy is above 0",
                (path, ("rl", "schedule", "target_offpolicy")),
                hint=f"{hint}, or use target_offpolicy: 0",
            )
        if isinstance(rl.generator, StaticConfig):
            yield RuleViolation(
                "static completions have no log-probabilities",
                (path, ("rl", "generator")),
                hint=hint,
            )


@rule("rl-can-train-it")
def rl_can_train_it(run: Recipe) -> Iterator[RuleViolation]:
    """Reject pretraining settings that RL does not support.

    RL does not support lengths in tokens, a validation loss, simulated ranks, and models that
    titanrun cannot generate with.
    """
    if run.kind != "rl" or run.rl is None:
        return
    # resolving turns tokens into steps: what was written decides
    yield RuleViolation(
        "kind rl does not support training.tokens",
        (("training", "tokens"), KIND),
        hint="use training.steps or training.epochs",
        applies_only_if_written=True,
    )
    refused: list[tuple[bool, DataPath, str, str]] = [
        (
            run.validation.enable is True,
            ("validation", "enable"),
            "validation.enable",
            "use rl.validation",
        ),
        (
            "text generation" in run.model.unsupported_features,
            ("model", "name"),
            f"model '{run.model.name}': it cannot generate text",
            "use another family",
        ),
        (run.comm.mode != "default", ("comm", "mode"), f"comm.mode {run.comm.mode}", "use default"),
    ]
    for is_set, path, feature, hint in refused:
        if is_set:
            yield RuleViolation(f"kind rl does not support {feature}", (path, KIND), hint=hint)


@rule("rl-reads-no-rows")
def rl_reads_no_sequences(run: Recipe) -> Iterator[RuleViolation]:
    """Warn about pretraining data and loss settings if kind is rl.

    The sequences of an RL step are the policy's completions: the settings of pretraining sequences
    and loss are not read.
    """
    if run.kind == "rl":
        for path, reason in UNREAD_SETTINGS.items():
            message = f"{path[-1]} has no effect with kind rl: {reason}"
            yield RuleViolation(
                message,
                (path, KIND),
                hint="remove it",
                code="no-effect",
                severity="warning",
                applies_only_if_written=True,
            )
