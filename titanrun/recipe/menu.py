"""What can be named in a recipe: built-in modules that are imported when named."""

from importlib import import_module

from titanrun.config import registry

MODEL_FAMILIES = {
    family: f"titanrun.models.{family}.config"
    for family in (
        "llama3",
        "llama4",
        "qwen3",
        "deepseek_v3",
        "gpt_oss",
        "flux",
        "decoder",
        "transformers",
    )
}
C4 = ("c4", "c4_test", "c4_validation")
TASKS = ("arithmetic", "guess_task", "hub_questions", "lookup_task", "questions", "string_task")
RULE_MODULES = (
    "titanrun.recipe.rules.not_built",
    "titanrun.recipe.rules.ranks",
    "titanrun.recipe.rules.rows",
    "titanrun.recipe.rules.sources",
    "titanrun.recipe.rules.tensor_parallel",
    "titanrun.recipe.rules.context_parallel",
    "titanrun.recipe.rules.pipeline",
    "titanrun.recipe.rules.pipeline_file",
    "titanrun.recipe.rules.experts",
    "titanrun.recipe.rules.compiled",
    "titanrun.recipe.rules.converters",
    "titanrun.recipe.rules.adapters",
    "titanrun.recipe.rules.recomputing",
    "titanrun.recipe.rules.attention",
    "titanrun.recipe.rules.model",
    "titanrun.recipe.rules.loss",
    "titanrun.recipe.rules.data",
    "titanrun.recipe.rules.chat",
    "titanrun.recipe.rules.images",
    "titanrun.recipe.rules.schedule",
    "titanrun.recipe.rules.checkpoint",
    "titanrun.recipe.rules.optimizer",
    "titanrun.recipe.rules.simulation",
    "titanrun.recipe.rules.guard",
    "titanrun.recipe.rules.preference",
    "titanrun.recipe.rules.samples",
    "titanrun.recipe.rules.evaluation",
    "titanrun.recipe.rules.profiling",
    "titanrun.recipe.rules.rl",
    "titanrun.recipe.rules.generators",
    "titanrun.recipe.rules.unread",
    "titanrun.recipe.rules.unread_parallel",
)


def open_menu() -> None:
    """Announce every built-in component that is imported only when named."""
    registry.offer("model", MODEL_FAMILIES)
    registry.offer("dataset", dict.fromkeys(C4, "titanrun.components.data.c4"))
    registry.offer("dataset", dict.fromkeys(TASKS, "titanrun.rl.tasks.config"))


def load_rules() -> None:
    """Import every built-in rule."""
    for module in RULE_MODULES:
        import_module(module)


def origin_of(choice: type) -> str:
    """Where a component comes from: built in, or the package that brought it."""
    package = choice.__module__.partition(".")[0]
    return "built in" if package == "titanrun" else package
