"""Rules about the runs whose models reward completions."""

from collections.abc import Iterator
from pathlib import Path

from titanrun.components.checkpoints.spec.storage_path import is_storage_path
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.components.tokenizers.spec.tokenizer_files import load_chat_template_text
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.dump_folder import path_exists
from titanrun.recipe.plugins import activate_plugins, get_plugin_places
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.registry import RuleViolation, rule
from titanrun.recipe.rundir.checkpoint_lookup import select_checkpoint
from titanrun.recipe.rundir.run_files import RESOLVED
from titanrun.recipe.rundir.saved_recipe import read_plain_recipe
from titanrun.rl.rewards.config import ModelRewardConfig

USE_REWARD_MODEL = "use the run directory of a recipe with loss: reward"


@rule("reward-model-scores", level="environment")
def reward_model_scores(run: Recipe) -> Iterator[RuleViolation]:
    """Require the run of a reward model to have a checkpoint and a scalar head.

    The rewards of kind rl named model load it from there. Train it with the loss reward.
    """
    for number, reward in enumerate(() if run.rl is None else run.rl.rewards):
        if not isinstance(reward, ModelRewardConfig) or is_storage_path(reward.path):
            continue
        place = ("rl", "rewards", number, "path")
        plugins = get_plugin_places()
        try:
            checkpoint = select_checkpoint(Path(reward.path))
        except ProblemsFound as error:
            is_there = path_exists(Path(reward.path))
            for problem in error.problems:
                hint = USE_REWARD_MODEL if is_there else problem.hint or USE_REWARD_MODEL
                yield RuleViolation(
                    problem.message, (place,), hint=hint, code="conflict" if is_there else "file"
                )
            continue
        finally:
            # reading another recipe has activated its plug-ins
            activate_plugins(run.plugins, plugins)
        model = read_plain_recipe(Path(str(checkpoint)) / RESOLVED).get("model")
        if not isinstance(model, dict) or model.get("head", "lm") != "scalar":
            message = f"the model in '{reward.path}' has no scalar head"
            yield RuleViolation(message, (place,), hint=USE_REWARD_MODEL)


@rule("reward-model-reads-chats", level="environment")
def reward_model_reads_chats(run: Recipe) -> Iterator[RuleViolation]:
    """Warn about prompts without the chat template that a reward model reads as messages.

    A reward named model reads each prompt as a message of a user. Set rl.rollout.renderer: chat, so
    that the trained model reads it so, too.
    """
    tokenizer = run.tokenizer
    if run.rl is None or run.rl.rollout.renderer == "chat":
        return
    if not isinstance(tokenizer, TokenizerConfig) or not has_chat_template(tokenizer):
        return
    for number, reward in enumerate(run.rl.rewards):
        if isinstance(reward, ModelRewardConfig):
            yield RuleViolation(
                "the reward model reads prompts as messages of a chat, but the trained model reads "
                "them without the chat template",
                (("rl", "rollout", "renderer"), ("rl", "rewards", number)),
                hint="set rl.rollout.renderer: chat",
                severity="warning",
            )


def has_chat_template(tokenizer: TokenizerConfig) -> bool:
    """Return whether a recipe or the folder of its tokenizer names a chat template."""
    if tokenizer.chat_template is not None:
        return True
    try:
        load_chat_template_text(tokenizer.folder)
    except ProblemsFound:
        return False
    return True
