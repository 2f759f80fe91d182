"""Registration of built-in components, whose modules are imported on first use."""

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
C4_DATASETS = ("c4", "c4_test", "c4_validation")
CHAT_DATASETS = ("chat", "tiny_chat")
REPLY_DATASETS = ("labelled", "preference", "tiny_labelled", "tiny_pairs")
PREFERENCE_LOSSES = ("cpo", "dpo", "ipo", "kto", "orpo", "reward", "simpo")
PROMPT_DATASETS = (
    "arithmetic",
    "guess_task",
    "hub_questions",
    "lookup_task",
    "questions",
    "string_task",
)
RULE_MODULES = (
    "titanrun.recipe.rules.not_built",
    "titanrun.recipe.rules.parallel_dims",
    "titanrun.recipe.rules.sequence_length",
    "titanrun.recipe.rules.data_files",
    "titanrun.recipe.rules.tensor_parallel",
    "titanrun.recipe.rules.tokenizer",
    "titanrun.recipe.rules.context_parallel",
    "titanrun.recipe.rules.pipeline",
    "titanrun.recipe.rules.pipeline_file",
    "titanrun.recipe.rules.experts",
    "titanrun.recipe.rules.compile",
    "titanrun.recipe.rules.converters",
    "titanrun.recipe.rules.adapters",
    "titanrun.recipe.rules.activation_checkpoint",
    "titanrun.recipe.rules.attention",
    "titanrun.recipe.rules.model",
    "titanrun.recipe.rules.loss",
    "titanrun.recipe.rules.data",
    "titanrun.recipe.rules.streams",
    "titanrun.recipe.rules.chat",
    "titanrun.recipe.rules.empty_replies",
    "titanrun.recipe.rules.system_texts",
    "titanrun.recipe.rules.end_of_turn",
    "titanrun.recipe.rules.reply_openings",
    "titanrun.recipe.rules.holdout",
    "titanrun.recipe.rules.first_records",
    "titanrun.recipe.rules.record_lengths",
    "titanrun.recipe.rules.unreadable_records",
    "titanrun.recipe.rules.reply_labels",
    "titanrun.recipe.rules.epoch_length",
    "titanrun.recipe.rules.record_sources",
    "titanrun.recipe.rules.images",
    "titanrun.recipe.rules.schedule",
    "titanrun.recipe.rules.checkpoint",
    "titanrun.recipe.rules.best_checkpoint",
    "titanrun.recipe.rules.initial_adapters",
    "titanrun.recipe.rules.initial_shapes",
    "titanrun.recipe.rules.weight_files",
    "titanrun.recipe.rules.random_start",
    "titanrun.recipe.rules.optimizer",
    "titanrun.recipe.rules.launch_devices",
    "titanrun.recipe.rules.simulated_ranks",
    "titanrun.recipe.rules.nonfinite",
    "titanrun.recipe.rules.fault_tolerance",
    "titanrun.recipe.rules.semi_sync",
    "titanrun.recipe.rules.preference",
    "titanrun.recipe.rules.command_files",
    "titanrun.recipe.rules.reward_model",
    "titanrun.recipe.rules.distillation",
    "titanrun.recipe.rules.generation_samples",
    "titanrun.recipe.rules.evaluation",
    "titanrun.recipe.rules.profiling",
    "titanrun.recipe.rules.rl",
    "titanrun.recipe.rules.reward_runs",
    "titanrun.recipe.rules.expected_answers",
    "titanrun.recipe.rules.prompt_files",
    "titanrun.recipe.rules.generators",
    "titanrun.recipe.rules.http_fleets",
    "titanrun.recipe.rules.no_effect",
)


def register_builtins() -> None:
    """Register every built-in component that is imported only when a recipe names it."""
    registry.register_lazy("model", MODEL_FAMILIES)
    registry.register_lazy(
        "dataset", dict.fromkeys(C4_DATASETS, "titanrun.components.data.c4_config")
    )
    registry.register_lazy(
        "dataset", dict.fromkeys(CHAT_DATASETS, "titanrun.components.data.chat_config")
    )
    registry.register_lazy(
        "dataset", dict.fromkeys(REPLY_DATASETS, "titanrun.components.data.replies_config")
    )
    registry.register_lazy(
        "loss", dict.fromkeys(PREFERENCE_LOSSES, "titanrun.components.losses.preference_config")
    )
    registry.register_lazy(
        "loss", {"distillation": "titanrun.components.losses.distillation_config"}
    )
    registry.register_lazy("dataset", dict.fromkeys(PROMPT_DATASETS, "titanrun.rl.prompts.config"))
    registry.register_lazy(
        "launch",
        {
            "kubernetes": "titanrun.launch.kubernetes.config",
            "skypilot": "titanrun.launch.skypilot.config",
        },
    )


def load_rules() -> None:
    """Import every built-in rule."""
    for module in RULE_MODULES:
        import_module(module)


def unload_rules(module: str) -> None:
    """Remove the rules of a plug-in's module."""
    import_module("titanrun.recipe.rules.registry").remove_rules(module)


def get_component_origin(choice: type) -> str:
    """Return `built in`, or the package that defines a component."""
    package = choice.__module__.partition(".")[0]
    return "built in" if package == "titanrun" else package
