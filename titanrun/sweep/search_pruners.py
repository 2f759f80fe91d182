"""Optuna's pruners of a search. With `search_study`, the only module that imports Optuna."""

import warnings

import optuna
from optuna.pruners import BasePruner

from titanrun.sweep.config import (
    AshaConfig,
    EarlyStoppingConfig,
    HyperbandConfig,
    PercentileConfig,
    StagnationConfig,
)


def build_pruner(config: EarlyStoppingConfig, num_steps: int | None) -> BasePruner:
    """Build the pruner of a rule.

    Args:
        config: The rule.
        num_steps: Number of steps of every run; only `hyperband` needs it.
    """
    pruner: BasePruner = config.load_builder()(config, num_steps)
    return pruner


def build_asha_pruner(config: AshaConfig, num_steps: int | None) -> BasePruner:
    """Build the pruner of `asha`. All arguments are written: defaults differ between releases."""
    return optuna.pruners.SuccessiveHalvingPruner(
        min_resource=config.first_step,
        reduction_factor=config.factor,
        min_early_stopping_rate=0,
        bootstrap_count=0,
    )


def build_hyperband_pruner(config: HyperbandConfig, num_steps: int | None) -> BasePruner:
    """Build the pruner of `hyperband`."""
    assert num_steps is not None
    return optuna.pruners.HyperbandPruner(
        min_resource=config.first_step,
        max_resource=num_steps,
        reduction_factor=config.factor,
        bootstrap_count=0,
    )


def build_percentile_pruner(config: PercentileConfig, num_steps: int | None) -> BasePruner:
    """Build the pruner of `percentile`."""
    return optuna.pruners.PercentilePruner(
        config.percentile,
        n_startup_trials=config.startup,
        n_warmup_steps=config.first_step,
        interval_steps=1,
        n_min_trials=1,
    )


def build_stagnation_pruner(config: StagnationConfig, num_steps: int | None) -> BasePruner:
    """Build the pruner of `patient`, around that of its own rule."""
    wrapped = None if config.rule is None else build_pruner(config.rule, num_steps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.pruners.PatientPruner(wrapped, config.patience, config.min_delta)
