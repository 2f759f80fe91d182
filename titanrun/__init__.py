"""PyTorch-native LLM training from plain text recipes.

Names are imported on first use: `import titanrun` loads neither torch nor pydantic.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from titanrun.api import load_recipe as load_recipe
    from titanrun.api import load_run as load_run
    from titanrun.api import resolve_recipe as resolve_recipe
    from titanrun.api import validate_recipe as validate_recipe
    from titanrun.components.data.token_batch import TokenBatch as TokenBatch
    from titanrun.components.data.token_batch import TokenSample as TokenSample
    from titanrun.components.metrics.spec.metrics_file import read_metrics as read_metrics
    from titanrun.config.base import ComponentConfig as ComponentConfig
    from titanrun.config.base import Config as Config
    from titanrun.config.diagnostics import render_problems as render_problems
    from titanrun.config.fields import field as field
    from titanrun.config.problems import Problem as Problem
    from titanrun.config.problems import ProblemsFound as ProblemsFound
    from titanrun.recipe.recipe import Recipe as Recipe
    from titanrun.recipe.resolving.resolve import Resolved as Resolved
    from titanrun.recipe.resolving.resolve import load_resolved as load_resolved
    from titanrun.rl.policy_trainer import PolicyTrainer as PolicyTrainer
    from titanrun.runs.run_summary import RunSummary as RunSummary
    from titanrun.training.engine import Engine as Engine
    from titanrun.training.engine_outputs import OptimOutput as OptimOutput
    from titanrun.training.engine_outputs import StepOutput as StepOutput
    from titanrun.worker.open_engine import EngineHandle as EngineHandle
    from titanrun.worker.open_engine import open_engine as open_engine
    from titanrun.worker.open_engine import open_policy_trainer as open_policy_trainer

    __version__: str

# name -> module that defines it
_EXPORTS: dict[str, str] = {
    "ComponentConfig": "titanrun.config.base",
    "Config": "titanrun.config.base",
    "Engine": "titanrun.training.engine",
    "EngineHandle": "titanrun.worker.open_engine",
    "OptimOutput": "titanrun.training.engine_outputs",
    "PolicyTrainer": "titanrun.rl.policy_trainer",
    "Problem": "titanrun.config.problems",
    "ProblemsFound": "titanrun.config.problems",
    "Recipe": "titanrun.recipe.recipe",
    "Resolved": "titanrun.recipe.resolving.resolve",
    "RunSummary": "titanrun.runs.run_summary",
    "StepOutput": "titanrun.training.engine_outputs",
    "TokenBatch": "titanrun.components.data.token_batch",
    "TokenSample": "titanrun.components.data.token_batch",
    "field": "titanrun.config.fields",
    "load_recipe": "titanrun.api",
    "load_resolved": "titanrun.recipe.resolving.resolve",
    "load_run": "titanrun.api",
    "open_engine": "titanrun.worker.open_engine",
    "open_policy_trainer": "titanrun.worker.open_engine",
    "read_metrics": "titanrun.components.metrics.spec.metrics_file",
    "render_problems": "titanrun.config.diagnostics",
    "resolve_recipe": "titanrun.api",
    "validate_recipe": "titanrun.api",
}

__all__ = [
    "ComponentConfig",
    "Config",
    "Engine",
    "EngineHandle",
    "OptimOutput",
    "PolicyTrainer",
    "Problem",
    "ProblemsFound",
    "Recipe",
    "Resolved",
    "RunSummary",
    "StepOutput",
    "TokenBatch",
    "TokenSample",
    "field",
    "load_recipe",
    "load_resolved",
    "load_run",
    "open_engine",
    "open_policy_trainer",
    "read_metrics",
    "render_problems",
    "resolve_recipe",
    "validate_recipe",
]


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    from importlib import import_module

    if name == "__version__":
        value: object = import_module("titanrun.config.version").VERSION
    elif name in _EXPORTS:
        value = getattr(import_module(_EXPORTS[name]), name)
    else:
        raise AttributeError(f"module 'titanrun' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*__all__, "__version__"])
