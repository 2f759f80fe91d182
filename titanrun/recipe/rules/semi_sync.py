"""Rules about replica groups that agree now and then: LocalSGD and DiLoCo."""

from collections.abc import Iterator

from titanrun.config.pluralize import pluralize
from titanrun.config.problems import DataPath
from titanrun.config.tree import format_path
from titanrun.distributed.fault_tolerance_config import FaultToleranceConfig
from titanrun.distributed.spec.pipeline_stages import (
    EndLayerCosts,
    find_layer_split_problem,
    is_layer,
)
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.module_lists import LAYERS, find_cover_violations
from titanrun.recipe.rules.registry import RuleViolation, rule

SYNC_STEPS: DataPath = ("fault_tolerance", "sync_steps")
NUM_FRAGMENTS: DataPath = ("fault_tolerance", "num_fragments")
FRAGMENTS: DataPath = ("fault_tolerance", "module_fqns_per_model_fragment")


def is_semi_synced(config: FaultToleranceConfig) -> bool:
    """Return whether the groups of a run agree now and then."""
    return config.enable and config.semi_sync_method is not None


@rule("fragments-cover-model")
def fragments_cover_model(run: Recipe) -> Iterator[RuleViolation]:
    """Require module_fqns_per_model_fragment to cover the whole model.

    Each module (tok_embeddings, layers.0 and so on, norm, output) is in exactly one fragment: in
    none, its weights would never be synced.
    """
    config = run.fault_tolerance
    fragments = config.module_fqns_per_model_fragment
    if is_semi_synced(config) and config.semi_sync_method == "diloco" and fragments is not None:
        yield from find_cover_violations(
            fragments, run.model.module_names(), FRAGMENTS, noun="fragment"
        )


@rule("layers-fill-fragments")
def layers_fill_fragments(run: Recipe) -> Iterator[RuleViolation]:
    """Require at least one layer per fragment.

    There cannot be more fragments than layers, with the embedding and the output head counted as
    one each. Use fewer fragments, or list the modules of each.
    """
    config = run.fault_tolerance
    is_listed = config.module_fqns_per_model_fragment is not None
    if not is_semi_synced(config) or is_listed or config.fragment_count == 1:
        return
    num_layers = sum(map(is_layer, run.model.module_names()))
    fault = find_layer_split_problem(
        config.fragment_count, num_layers, EndLayerCosts(), noun="fragments"
    )
    if fault is not None or not num_layers:
        yield RuleViolation(
            fault or "the model has no layers to split into fragments",
            (NUM_FRAGMENTS, *LAYERS),
            hint="use fewer fragments, or list their modules in module_fqns_per_model_fragment",
        )


@rule("groups-save-at-syncs")
def groups_save_at_syncs(run: Recipe) -> Iterator[RuleViolation]:
    """Require the run to end, save and validate at syncs.

    Between two syncs each group has weights of its own, and nothing is the state of the run.
    training.steps, checkpoint.interval and validation.freq are multiples of the steps between two
    syncs: sync_steps, or sync_steps / fragments.
    """
    if not is_semi_synced(run.fault_tolerance):
        return
    config = run.fault_tolerance
    interval = config.sync_interval
    listed = config.module_fqns_per_model_fragment is not None
    causes = [SYNC_STEPS]
    each = ""
    if config.fragment_count > 1:
        causes.append(FRAGMENTS if listed else NUM_FRAGMENTS)
        each = f", one of {config.fragment_count} fragments"
    counts: list[tuple[DataPath, object]] = [
        (("training", "steps"), run.training.steps),
        (("checkpoint", "interval"), run.checkpoint.interval),
    ]
    if run.validation.enable:
        counts.append((("validation", "freq"), run.validation.freq))
    for path, count in counts:
        # the number of steps may follow from the data, and is checked again when that is known
        is_known = path[0] == "checkpoint" or isinstance(count, int)
        if is_known and not (isinstance(count, int) and count % interval == 0):
            yield RuleViolation(
                f"{format_path(path)} is {count}, but the replica groups sync every "
                f"{pluralize(interval, 'step')}{each}",
                (path, *causes),
                hint=f"set it to a multiple of {interval}",
            )
    if run.checkpoint.enable_first_step_checkpoint and interval > 1:
        yield RuleViolation(
            "the replica groups do not sync after the first step, but every "
            f"{interval} steps{each}",
            (("checkpoint", "enable_first_step_checkpoint"), *causes),
            hint="set checkpoint.enable_first_step_checkpoint: false",
        )
