"""Rules about settings that have no effect because what reads them is disabled.

A field declares with `read_when` what must hold for it to be read. One check serves all rule ids.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

from titanrun.components.data.stream_config import StreamFields
from titanrun.config.base import Config, iter_nested_configs
from titanrun.config.fields import ReadWhen, get_read_conditions
from titanrun.config.problems import DataPath
from titanrun.config.tree import format_path
from titanrun.distributed.spec.parallel_dims import resolve_parallel_dims
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.data import get_evaluation_datasets
from titanrun.recipe.rules.registry import Rule, RuleViolation, add_rule

TRAINING_DATASET: DataPath = ("training", "dataset")
VALIDATION_DATASET: DataPath = ("validation", "dataset")
STREAM_FACTS = ("streams_data", "reads_a_stream")
DOCUMENTATION = {
    "settings-need-validation": "While validation.enable is false, nothing else in the section is "
    "read, except by a run of kind eval that evaluates its dataset. Enable it, or remove the rest.",
    "settings-need-holdout": "While validation.holdout is null, no documents are held out, and "
    "holdout_by has no effect. Set it, or remove holdout_by.",
    "settings-need-checkpoints": "While checkpoint.enable is false, nothing is saved or loaded: "
    "where, how often and how many has no effect. Enable it, or remove these settings.",
    "teacher-is-the-reference": "rl.teacher is the model that rl.reference: teacher compares the "
    "policy with; no other reference reads it. Set rl.reference: teacher, or remove it.",
    "columns-fit-pairs": "With from_pairs records have the columns of both replies of a pair, "
    "without it those of a reply and its label. Remove the others, or change from_pairs.",
    "validation-reads-in-order": "Validation reads the same sequences in the same order each time: "
    "shuffling its data has no effect. Remove it.",
    "products-follow-bf16-weights": "training.mixed_precision_param is the dtype that float32 "
    "weights compute in. Weights stored in another dtype compute in that one. Remove it, or store "
    "the weights in float32.",
    "warning-needs-deterministic": "debug.deterministic_warn_only softens debug.deterministic, and "
    "has no effect without it.",
    "floor-needs-decay": "With lr_scheduler.decay_ratio 0 the learning rate stays at its peak: "
    "shape and floor of the decay are not read.",
    "floor-needs-a-decay": "The constant schedule stays at its peak and has no floor. Remove it, "
    "or choose a schedule that decays.",
    "start-needs-warmup": "Without warmup steps, the start of the warmup and the index of its "
    "first step are not read.",
    "settings-need-saving": "While checkpoint.load_only is true, nothing is saved: how often and "
    "how many has no effect. Remove one of the two.",
    "settings-need-initial-load": "Settings for loading weights have an effect only if "
    "checkpoint.initial_load_path names one.",
    "settings-need-profiling": "While neither profiling.enable_profiling nor "
    "profiling.enable_memory_snapshot is true, the rest of the section is not read. Each folder "
    "belongs to one of the two. Enable it, or remove the rest.",
    "settings-need-compile": "While compile.enable is false, nothing is compiled, and the back "
    "end has no effect. Enable it, or remove the rest.",
    "tuning-needs-inductor": "Only inductor has several kernels for a product to choose from. "
    "Set compile.backend: inductor, or remove max_autotune.",
    "settings-need-flight-recorder": "With comm.trace_buf_size 0 the flight recorder is off and "
    "writes no files. Raise it, or remove the names of the files.",
    "settings-need-loader-processes": "With num_workers 0 each rank prepares its sequences itself: "
    "no process can persist or prefetch. Set num_workers, or remove the setting.",
    "retries-need-a-stream": "Only a stream repeats requests, and waits for local files. Remove "
    "retry_timeout.",
    "fleet-settings-need-processes": "With rl.fleet.processes 0 the training processes generate "
    "themselves, and nothing else of rl.fleet is read. Set it, or remove the rest.",
    "ray-settings-need-ray": "Only rl.fleet.carrier ray asks Ray for anything: with local the "
    "processes are children of the first rank, with http others have started them. Set carrier: "
    "ray, or remove the rest.",
    "http-settings-need-http": "Only rl.fleet.carrier http connects to generators that others have "
    "started. Set carrier: http, or remove the rest.",
    "kv-updates-need-updates-in-flight": "With rl.schedule.update_in_flight false no weights "
    "change within a completion: no keys and values are of old ones. Set it, or remove the other.",
    "settings-need-older-completions": "With rl.schedule.target_offpolicy 0 every step waits for "
    "all its completions, of the weights that they train: none can overtake another, or be too "
    "old. Set it, or remove the setting.",
    "rl-validation-needs-prompts": "Without rl.validation.dataset no prompts are held out: "
    "how many, how often and how to sample them has no effect. Synthetic tasks have held-out "
    "prompts of their own; for others set it, or remove the rest.",
    "replay-level-needs-a-replay": "Without rl.schedule.replay the run generates its own "
    "completions, and nothing is repeated. Set it, or remove the level.",
    "limits-need-bad-files": "max_bad_files bounds how many damaged files of a stream are skipped. "
    "Set bad_files: skip, or remove the limit.",
    "shared-lighthouses-have-their-own-times": "With fault_tolerance.lighthouse the groups meet at "
    "a lighthouse that somebody started, and its options say after which time a group counts as "
    "lost. Remove the setting.",
    "settings-need-replica-groups": "While fault_tolerance.enable is false, the run has one group, "
    "and nothing else in the section is read. Enable it, or remove the rest.",
    "settings-need-semi-sync": "Without fault_tolerance.semi_sync_method the groups agree on every "
    "step, and nothing is synced now and then. Set it, or remove the setting.",
    "settings-need-diloco": "LocalSGD averages all weights at once: it has neither fragments nor "
    "an outer optimizer. Use diloco, or remove the setting.",
    "listed-fragments-are-counted": "module_fqns_per_model_fragment names the modules of each "
    "fragment, so that num_fragments is not read. Remove one of the two.",
    "settings-need-a-stream": "Lanes and windows are how a stream is read. Data that is tokenized "
    "before the first step has neither. Set streaming: true, or remove the setting.",
    "pinning-needs-a-copy": "Page-locked memory speeds up the copy of token ids to an accelerator. "
    "On the CPU nothing is copied, and inputs made from images are on the device already. Remove "
    "pin_memory.",
    "settings-need-a-managed-job": "Only a managed job of SkyPilot is started again.",
    "settings-need-documents": "A .npy array has no documents, so nothing is packed. Set "
    "layout, or remove the setting.",
    "settings-need-nodes": "One machine needs no rendezvous: its settings are read only with "
    "launch.nnodes above 1. Remove them, or set nnodes.",
    "balance-needs-experts": "debug.moe_force_load_balance distributes tokens evenly over experts, "
    "metrics.tokens_per_expert counts their tokens, and a dense model has none. Remove it.",
    "settings-need-tp": "While tensor_parallel_degree is 1, the options of tensor parallelism are "
    "not read. Raise the degree, or remove the setting.",
    "settings-need-cp": "While context_parallel_degree is 1, the options of context parallelism "
    "are not read. Raise the degree, or remove the setting.",
    "settings-need-ep": "While expert_parallel_degree is 1, the options of expert parallelism are "
    "not read. Raise the degree, or remove the setting.",
    "settings-need-pp": "While pipeline_parallel_degree is 1, there are no stages, microbatches or "
    "schedules. Raise the degree, or remove the setting.",
    "parts-decide-stages": "module_fqns_per_model_part names the modules of each stage: other "
    "settings that split the layers are not read. Remove one of the two.",
    "file-decides-schedule": "pipeline_parallel_schedule_csv defines the schedule, and "
    "pipeline_parallel_schedule has no effect. Remove one of the two.",
    "overlap-needs-dualpipe": "Only the schedule DualPipeV overlaps two forward or backward "
    "passes, and only experts give it communication to overlap: otherwise "
    "pipeline_parallel_expert_parallel_overlap is not read. Remove it.",
    "resharding-needs-shards": "Weights are gathered and freed only if several ranks shard them: "
    "without shards or context parallelism, fsdp_reshard_after_forward is not read. Remove it, or "
    "shard the weights over ranks.",
    "offload-needs-shards": "Data parallelism over several ranks keeps weights in host memory: on "
    "one rank a layout with training.enable_cpu_offload keeps them on the device. Remove it, or "
    "shard the weights over ranks.",
}

Fact = Callable[[Recipe, int | None, DataPath], bool]


def is_evaluated(run: Recipe, ranks: int | None, path: DataPath) -> bool:
    """Return whether a run of kind eval evaluates validation.dataset."""
    return any(place == VALIDATION_DATASET for place, _ in get_evaluation_datasets(run))


def shards_weights(run: Recipe, ranks: int | None, path: DataPath) -> bool:
    """Return whether several ranks share weights, True if the degrees are unknown."""
    dims = resolve_parallel_dims(run.parallelism, ranks)
    return dims is None or dims.fsdp_size != 1 or dims.ep != 1


def is_data_parallel(run: Recipe, ranks: int | None, path: DataPath) -> bool:
    """Return whether several ranks share the loss, True if the degrees are unknown."""
    dims = resolve_parallel_dims(run.parallelism, ranks)
    return dims is None or dims.loss_size != 1


def get_value(run: Recipe, path: DataPath) -> object:
    """Return the value at a path of a recipe."""
    value: Any = run
    for name in path:
        value = value[name] if isinstance(name, int) else getattr(value, name)
    return value


def reads_a_stream(run: Recipe, ranks: int | None, path: DataPath) -> bool:
    """Return whether the section at `path` reads a stream while the run trains."""
    sections: list[Any] = [run.training.dataset]
    if path[0] == "validation" and run.validation.holdout is None:
        sections = [run.validation.dataset]
    if path[0] == "validation":
        sections += [one.dataset for one in run.validation.further]
    return any(
        isinstance(config, StreamFields) and config.is_streamed
        for section in sections
        if isinstance(section, Config)
        for _, config in iter_nested_configs(section)
    )


# what a declaration names in `fact`, for conditions that follow from several settings
FACTS: dict[str, Fact] = {
    "casts_weights": lambda run, ranks, path: (
        run.training.dtype in ("float32", run.training.mixed_precision_param)
    ),
    "has_no_checkpoints": lambda run, ranks, path: not run.checkpoint.enable,
    "has_experts": lambda run, ranks, path: run.model.count_routed_experts() != 0,
    "is_data_parallel": is_data_parallel,
    "is_evaluated": is_evaluated,
    "reads_in_any_order": lambda run, ranks, path: (
        path[:-1] != VALIDATION_DATASET or not run.validation.enable
    ),
    "runs_dual_pipe": lambda run, ranks, path: (
        run.parallelism.pipeline_parallel_schedule == "DualPipeV"
        and run.parallelism.pipeline_parallel_schedule_csv is None
    ),
    "shards_weights": shards_weights,
    "is_null": lambda run, ranks, path: get_value(run, path) is None,
    "streams_data": lambda run, ranks, path: (
        run.training.dataset.is_streamed or run.training.lanes is None
    ),
    "reads_a_stream": reads_a_stream,
    "takes_tokens": lambda run, ranks, path: run.model.modality == "tokens",
}


@cache
def get_field_conditions(config: type[Config]) -> list[tuple[str, tuple[ReadWhen, ...]]]:
    """Return the fields of a config class with their conditions."""
    return [(name, get_read_conditions(field)) for name, field in config.model_fields.items()]


def iter_unread_settings(
    run: Recipe, ranks: int | None, config: Config, path: DataPath = ()
) -> Iterator[tuple[ReadWhen, DataPath]]:
    """Yield the settings below `config` that nothing reads, each with the first failed condition.

    Settings inside of one that is not read are left out.
    """
    for name, conditions in get_field_conditions(type(config)):
        here, value = (*path, name), getattr(config, name)
        failed = next(
            (
                condition
                for condition in conditions
                if not is_read(condition, run, ranks, config, here, value)
            ),
            None,
        )
        if failed is not None:
            yield failed, here
        elif isinstance(value, Config):
            yield from iter_unread_settings(run, ranks, value, here)
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                if isinstance(item, Config):
                    yield from iter_unread_settings(run, ranks, item, (*here, index))


def is_read(
    condition: ReadWhen,
    run: Recipe,
    ranks: int | None,
    config: Config,
    path: DataPath,
    value: object,
) -> bool:
    """Return whether a condition lets the setting of `config` at `path` be read."""
    if condition.only_for and value not in condition.only_for:
        return True
    if condition.fact and FACTS[condition.fact](run, ranks, path):
        return True
    if condition.values or condition.not_values:
        switch = get_switch_value(condition.switch, run, config)
        if switch in condition.values if condition.values else switch not in condition.not_values:
            return True
    return condition.or_enabled is not None and bool(getattr(config, condition.or_enabled))


def get_switch_value(switch: str, run: Recipe, config: Config) -> object:
    """Return the value of a switch: `.name` beside the setting (None if absent), or a full path."""
    if switch.startswith("."):
        return getattr(config, switch[1:], None)
    value: object = run
    for name in switch.split("."):
        value = getattr(value, name)
    return value


class UnreadSettings:
    """The unread settings of the last recipe, which the checks of all rule ids share."""

    def __init__(self) -> None:
        self._case: tuple[Recipe, int | None] | None = None
        self._found: list[tuple[ReadWhen, DataPath]] = []

    def find(self, run: Recipe, ranks: int | None) -> list[tuple[ReadWhen, DataPath]]:
        """Return the unread settings of a recipe with the first failed condition of each."""
        if self._case is None or self._case[0] is not run or self._case[1] != ranks:
            self._found, self._case = list(iter_unread_settings(run, ranks, run)), (run, ranks)
        return self._found


_unread_settings = UnreadSettings()


def find_rule_violations(rule_id: str, run: Recipe, ranks: int | None) -> Iterator[RuleViolation]:
    """Yield the violations of one rule id."""
    for condition, path in _unread_settings.find(run, ranks):
        if condition.rule != rule_id:
            continue
        state, name = condition.state.format(run=run), condition.switch
        if name:
            switch = (*path[:-1], name[1:]) if name.startswith(".") else tuple(name.split("."))
            found = build_no_effect_violation(path, switch, state, condition.hint)
        else:
            found = build_violation(f"{path[-1]} has no effect {state}", (path,), condition.hint)
        yield replace(found, section=find_deciding_section(condition, path))


def find_deciding_section(condition: ReadWhen, path: DataPath) -> DataPath | None:
    """Return the section that decides whether the setting at `path` is read, if it is one.

    An unknown key in it may be a misspelling of what would have the setting read.
    """
    if condition.fact in STREAM_FACTS:
        return path[:1] if path[0] == "validation" else TRAINING_DATASET
    if condition.switch.startswith("."):
        return path[:-1]
    return tuple(condition.switch.split("."))[:-1] or None


def build_no_effect_violation(
    path: DataPath, switch: DataPath, state: str, hint: str
) -> RuleViolation:
    """Build the warning about a setting that has no effect in the state of `switch`."""
    message = f"{path[-1]} has no effect: {format_path(switch)} {state}"
    return build_violation(message, (path, switch), hint)


def build_violation(message: str, paths: tuple[DataPath, ...], hint: str) -> RuleViolation:
    """Build a warning that applies only to a value that somebody wrote."""
    return RuleViolation(
        message,
        paths,
        hint=hint,
        code="no-effect",
        severity="warning",
        applies_only_if_written=True,
    )


for _rule_id, _documentation in DOCUMENTATION.items():
    _check = partial(find_rule_violations, _rule_id)
    add_rule(Rule(_rule_id, _check, "rules", _documentation, __name__))
