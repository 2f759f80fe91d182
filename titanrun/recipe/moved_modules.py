"""Modules that plug-ins import and that moved after the last release. Kept for two releases."""

MOVED_MODULES = {
    "titanrun.components.converters.conversion": "titanrun.components.converters.conversion_report",
    "titanrun.components.data.batch": "titanrun.components.data.token_batch",
    "titanrun.config.added": "titanrun.config.extension_fields",
    "titanrun.models.shared.initialization": "titanrun.models.shared.weight_init",
    "titanrun.recipe.kinds": "titanrun.recipe.trainer_kinds",
    "titanrun.recipe.resolve": "titanrun.recipe.resolving.resolve",
    "titanrun.recipe.rules.book": "titanrun.recipe.rules.registry",
    "titanrun.training.signals": "titanrun.training.signal_requests",
    "titanrun.worker.job": "titanrun.worker.worker_job",
}


def find_new_module(error: BaseException) -> str | None:
    """Return the new path of the module that an import did not find, None if it never moved."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    return MOVED_MODULES.get(error.name)
