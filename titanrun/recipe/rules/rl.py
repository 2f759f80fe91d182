"""Rules about RL: what a policy is asked, what its answers are worth, and what can be learned from them."""

from collections.abc import Iterator

from titanrun.components.data.config import DataLoaderConfig
from titanrun.config.problems import DataPath
from titanrun.models.shared.config import decided
from titanrun.recipe.adapters import lora_of
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule
from titanrun.recipe.rules.unread import unread
from titanrun.rl.tasks.config import TaskConfig

KIND: DataPath = ("kind",)
RL: DataPath = ("rl",)
DATASET: DataPath = ("training", "dataset")
ROLLOUT: DataPath = ("rl", "rollout")
TASKS = "use string_task, arithmetic, guess_task, lookup_task, questions or hub_questions"
# of pretraining: what an RL step has nothing to do with
NOT_READ: dict[DataPath, str] = {
    ("training", "global_batch_size"): "a step has as many rows as its answers fill",
    ("training", "data_cache"): "prompts are read anew at each start",
    ("guard", "replay_interval"): "no step of it is computed twice",
    ("guard", "spike_sigmas"): "the loss of a policy is near 0 whatever it does",
    ("guard", "spike_window"): "the loss of a policy is near 0 whatever it does",
    ("guard", "straggler_ratio"): "ranks wait for each other's answers anyway",
    ("loss",): "the loss follows from rl.algorithm",
}
NOT_READ |= {
    ("training", "dataloader", name): "prompts are texts that are there already"
    for name in DataLoaderConfig.model_fields
}


@rule("rl-needs-its-section")
def rl_needs_its_section(run: Recipe) -> Iterator[Finding]:
    """kind: rl reads the section rl, which says what answers are worth; no other kind reads it."""
    if run.kind == "rl" and run.rl is None:
        help = "write a section rl, at least rl: {rewards: [exact_match]}"
        yield Finding("kind rl needs the section rl: what answers are worth", (KIND, RL), help=help)
    if run.kind != "rl" and run.rl is not None:
        yield Finding(
            f"the section rl has no effect: kind is {run.kind}",
            (RL, KIND),
            help="set kind: rl",
            code="no-effect",
        )


@rule("rl-needs-questions")
def rl_needs_questions(run: Recipe) -> Iterator[Finding]:
    """A policy is asked questions: the dataset of kind rl holds prompts with expected answers, and the tokenizer makes ids of them."""
    if run.kind == "rl" and not isinstance(run.training.dataset, TaskConfig):
        message = f"dataset '{run.training.dataset.name}' holds no prompts to answer"
        yield Finding(message, (DATASET, KIND), help=TASKS)
    if run.kind == "rl" and run.tokenizer is None:
        yield Finding(
            "prompts need a tokenizer",
            (("tokenizer",), DATASET),
            help="set tokenizer: characters, or name a folder",
        )
    held_out = None if run.rl is None else run.rl.validation.dataset
    if (
        run.kind == "rl"
        and held_out is not None
        and held_out != "auto"
        and not isinstance(held_out, TaskConfig)
    ):
        message = f"dataset '{held_out.name}' holds no prompts to answer"
        yield Finding(message, (("rl", "validation", "dataset"),), help=TASKS)


@rule("rl-has-rewards")
def rl_has_rewards(run: Recipe) -> Iterator[Finding]:
    """What is learned follows from rewards: name at least one, with a weight above 0. The environment's own reward is one only where
    the environment gives any."""
    rl = run.rl
    if run.kind != "rl" or rl is None:
        return
    path = ("rl", "rewards")
    if rl.algorithm.learns_from_rewards and not any(reward.weight for reward in rl.rewards):
        yield Finding(
            "no reward has a weight: nothing can be learned",
            ((*path, 0), path, RL),
            help="for example rewards: [exact_match]",
        )
    for index, reward in enumerate(rl.rewards):
        if reward.builds.endswith(":OfEnvironment") and rl.environment.builds.endswith(
            ":SingleTurn"
        ):
            message = "the environment single_turn gives no reward"
            yield Finding(
                message,
                ((*path, index), ("rl", "environment")),
                help="use exact_match, or an environment that gives some",
            )


@rule("advantage-needs-siblings")
def advantage_needs_siblings(run: Recipe) -> Iterator[Finding]:
    """An advantage against the group needs several answers to a prompt: one alone is its own mean, and has no deviation."""
    rl = run.rl
    if rl is None or rl.rollout.samples_per_prompt > 1 or not rl.algorithm.learns_from_rewards:
        return
    advantage = getattr(rl.algorithm, "advantage", None)
    places = ((*ROLLOUT, "samples_per_prompt"), ("rl", "algorithm", "advantage"), ROLLOUT)
    if advantage != "running_mean":
        message = f"advantage {advantage} compares the answers to a prompt, and there is one"
        yield Finding(message, places, help="raise rl.rollout.samples_per_prompt")
    elif rl.rollout.drop_zero_variance:
        message = "the one answer to a prompt has no variance, and would be dropped"
        yield Finding(message, places, help="set rl.rollout.drop_zero_variance: false")


@rule("reference-is-read")
def reference_is_read(run: Recipe) -> Iterator[Finding]:
    """A penalty for leaving the reference, and ref_kl, need rl.reference; nothing else reads it."""
    if run.rl is None:
        return
    algorithm, path = run.rl.algorithm, ("rl", "reference")
    reads = algorithm.needs_reference or algorithm.kl.coef > 0
    if reads and run.rl.reference is None:
        what = (
            algorithm.builds.rpartition(":")[2].lower() if algorithm.needs_reference else "kl.coef"
        )
        kind = "frozen_copy" if lora_of(run) is None else "adapter_off"
        yield Finding(
            f"{what} needs a reference",
            (path, ("rl", "algorithm")),
            help=f"set rl.reference: {kind}",
        )
    if run.rl.reference == "adapter_off" and lora_of(run) is None:
        message = "adapter_off is the policy without its adapters, and it has none"
        yield Finding(
            message,
            (path, ("converters",)),
            help="use frozen_copy, or give it adapters with the converter lora",
        )
    if not reads:
        yield unread(
            path, ("rl", "algorithm", "kl", "coef"), "is 0", "set a coef above 0, or remove it"
        )
        yield unread(
            ("rl", "algorithm", "kl", "estimator"),
            ("rl", "algorithm", "kl", "coef"),
            "is 0",
            "set a coef above 0, or remove it",
        )


@rule("answers-fit-rows")
def answers_fit_rows(run: Recipe) -> Iterator[Finding]:
    """A conversation is learned from in one row: it must not be longer than training.seq_len, and an answer not longer than it."""
    if run.rl is None or run.kind != "rl":
        return
    longest, row = run.rl.rollout.max_tokens, run.training.seq_len
    if longest is not None and longest > row:
        message = f"conversations of {longest} tokens do not fit into rows of {row}"
        paths = ((*ROLLOUT, "max_tokens"), ("training", "seq_len"))
        yield Finding(message, paths, help=f"use {row} at most, or raise training.seq_len")
    answer = run.rl.sampling.max_new_tokens
    if answer >= (longest or row):
        message = f"an answer of {answer} tokens leaves no room for a prompt in a conversation of {longest or row}"
        yield Finding(
            message,
            (
                ("rl", "sampling", "max_new_tokens"),
                (*ROLLOUT, "max_tokens"),
                ("training", "seq_len"),
            ),
            help="lower it",
        )
    known = decided(run.model.max_seq_len)
    if (longest or row) > known:
        message = f"conversations of {longest or row} tokens are longer than the model's {known}"
        yield Finding(
            message,
            ((*ROLLOUT, "max_tokens"), ("model", "max_seq_len")),
            help=f"use {known} at most",
        )


@rule("batch-invariant-means-on-policy")
def batch_invariant_means_on_policy(run: Recipe) -> Iterator[Finding]:
    """rl.batch_invariant wants the same bits from generator and trainer: the same weights (target_offpolicy 0), whole matrices and
    rows on every rank, the same code (native, not compiled), and kernels that give the same bits twice."""
    rl = run.rl
    if rl is None or not rl.batch_invariant:
        return
    switch = ("rl", "batch_invariant")
    wanted: list[tuple[bool, DataPath, str, str]] = [
        (
            rl.schedule.target_offpolicy == 0,
            ("rl", "schedule", "target_offpolicy"),
            "answers are older than the weights",
            "use 0",
        ),
        (
            rl.generator.builds.endswith(":NativeGenerator"),
            ("rl", "generator"),
            "the generator is not the model",
            "use native",
        ),
        (
            not run.compile.enable,
            ("compile", "enable"),
            "compiled code sums in another order",
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
            "converted matrices are rounded by what is in the batch",
            "remove them",
        ),
        (
            run.model.routed_experts() == 0,
            ("model", "name"),
            "experts sum as many tokens as the batch sends them",
            "use a dense model",
        ),
        (
            run.parallelism.tensor_parallel_degree == 1,
            ("parallelism", "tensor_parallel_degree"),
            "split matrices sum in another order",
            "use 1",
        ),
        (
            run.parallelism.context_parallel_degree == 1,
            ("parallelism", "context_parallel_degree"),
            "attention over shared rows sums in another order",
            "use 1",
        ),
        (
            run.parallelism.pipeline_parallel_degree == 1,
            ("parallelism", "pipeline_parallel_degree"),
            "stages compute fewer rows at once",
            "use 1",
        ),
    ]
    for holds, path, reason, help in wanted:
        if not holds:
            yield Finding(
                f"rl.batch_invariant cannot be: {reason}",
                (path, switch),
                help=f"{help}, or remove rl.batch_invariant",
            )


@rule("logprobs-are-compared-on-policy")
def logprobs_are_compared_on_policy(run: Recipe) -> Iterator[Finding]:
    """rl.sync.max_logprob_diff holds the generator against the weights that learn: older answers, and answers that nobody drew, differ
    by what they are."""
    rl = run.rl
    if rl is None or rl.sync.max_logprob_diff is None:
        return
    path = ("rl", "sync", "max_logprob_diff")
    if rl.schedule.target_offpolicy:
        other = ("rl", "schedule", "target_offpolicy")
        yield Finding(
            "answers of older weights have other log-probabilities",
            (path, other),
            help="remove it, or use target_offpolicy: 0",
        )
    if rl.generator.builds.endswith(":StaticGenerator"):
        yield Finding(
            "static answers have no log-probabilities",
            (path, ("rl", "generator")),
            help="remove it",
        )


@rule("window-needs-older-answers")
def window_needs_older_answers(run: Recipe) -> Iterator[Finding]:
    """With rl.schedule.target_offpolicy 0 every step waits for all its answers: there is nothing to overtake."""
    if run.rl is not None and run.rl.schedule.target_offpolicy == 0:
        other = ("rl", "schedule", "target_offpolicy")
        yield unread(
            ("rl", "schedule", "window"), other, "is 0", "set target_offpolicy, or remove it"
        )


@rule("rl-can-train-it")
def rl_can_train_it(run: Recipe) -> Iterator[Finding]:
    """Some things that pretraining can do RL cannot: lengths in epochs or tokens, going back after a bad step, a held-out loss, models
    that titanrun does not generate with."""
    if run.kind != "rl" or run.rl is None:
        return
    refused: list[tuple[bool, DataPath, str, str]] = [
        (
            run.training.epochs is not None,
            ("training", "epochs"),
            "a length in epochs",
            "use training.steps",
        ),
        (
            run.training.tokens is not None,
            ("training", "tokens"),
            "a length in tokens",
            "use training.steps",
        ),
        (
            run.guard.non_finite == "rollback",
            ("guard", "non_finite"),
            "going back after a bad step",
            "use stop or skip",
        ),
        (run.validation.enable, ("validation", "enable"), "a held-out loss", "use rl.validation"),
        (
            "text generation" in run.model.lacks,
            ("model", "name"),
            f"generating with a {run.model.name} model",
            "use another family",
        ),
        (run.comm.mode != "default", ("comm", "mode"), "simulated ranks", "use default"),
    ]
    for is_asked, path, what, help in refused:
        if is_asked:
            yield Finding(f"RL does not do that: {what}", (path, KIND), help=help)


@rule("rl-reads-no-rows")
def rl_reads_no_rows(run: Recipe) -> Iterator[Finding]:
    """The rows of an RL step are the policy's answers: what steers pretraining's rows and loss is not read."""
    if run.kind == "rl":
        for path, reason in NOT_READ.items():
            message = f"{path[-1]} has no effect with kind rl: {reason}"
            yield Finding(
                message,
                (path, KIND),
                help="remove it",
                code="no-effect",
                severity="warning",
                if_written=True,
            )
