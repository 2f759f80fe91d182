"""Rules about models with a scalar head, which score texts."""

from collections.abc import Iterator

from titanrun.config.problems import DataPath
from titanrun.recipe.recipe import Recipe, find_lora_converter, is_reward_model
from titanrun.recipe.rules.registry import RuleViolation, rule

HEAD: DataPath = ("model", "head")
SAMPLES: DataPath = ("metrics", "samples", "prompts")
FAMILIES_HINT = "use llama3, qwen3, gpt_oss or deepseek_v3"


@rule("head-goes-with-its-loss")
def head_goes_with_its_loss(run: Recipe) -> Iterator[RuleViolation]:
    """Require a scalar head and the loss reward to be used together.

    The loss reward reads one score per conversation, which only a scalar head computes; all others
    read logits of tokens. Set model.head and loss to the same purpose.
    """
    needs = run.loss.head
    if not hasattr(run.model, "head"):
        if needs == "scalar":
            yield RuleViolation(
                f"model '{run.model.name}' has no scalar head, which loss '{run.loss.name}' reads",
                (("loss",), ("model", "name")),
                hint=FAMILIES_HINT,
            )
    elif run.model.head != needs:
        yield RuleViolation(
            f"loss '{run.loss.name}' needs model.head: {needs}, but it is {run.model.head}",
            (("loss",), HEAD),
            hint="set model.head: scalar"
            if needs == "scalar"
            else "set loss: reward, or model.head: lm",
        )


@rule("scalar-head-is-whole")
def scalar_head_is_whole(run: Recipe) -> Iterator[RuleViolation]:
    """Require scalar heads to be trained with all weights, on pairs, in a supported family.

    Adapters freeze the head, which starts with random weights. Tensor-parallel ranks cannot split
    its one row. RL, evaluation and samples need logits. transformers has no class with a scalar
    head for llama4. Train all weights with kind sft, without adapters, samples and tensor
    parallelism.
    """
    if not is_reward_model(run):
        return
    obstacles: list[tuple[bool, DataPath, str, str]] = [
        (find_lora_converter(run) is not None, ("converters",), "adapters", "remove the adapters"),
        (run.kind not in ("pretrain", "sft"), ("kind",), f"kind {run.kind}", "set kind: sft"),
        (
            run.parallelism.tensor_parallel_degree > 1,
            ("parallelism", "tensor_parallel_degree"),
            "tensor parallelism",
            "set tensor_parallel_degree: 1",
        ),
        (bool(run.metrics.samples.prompts), SAMPLES, "samples", "remove metrics.samples"),
        (
            not getattr(run.model, "supports_scalar_head", True),
            ("model", "name"),
            f"model '{run.model.name}'",
            FAMILIES_HINT,
        ),
    ]
    for is_present, path, noun, hint in obstacles:
        if is_present:
            yield RuleViolation(
                f"a scalar head with {noun} is not built in this version",
                (path, HEAD),
                hint=hint,
                code="not-built",
            )
