"""Build docs/components.md.

The page has every slot, every name, its options, an example that validates, and the test that
tries it.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from recipe_leaves import NOT_BUILT, table
from titanrun.config.base import ComponentConfig
from titanrun.config.describe_field import (
    describe_fields,
    get_default_data,
    get_example_value,
    is_section_type,
    shorten_component,
)
from titanrun.config.field_docs import get_class_summary
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.tree import format_path
from titanrun.recipe.reference.schema_topics import SchemaTopic, get_topics

HEAD = """\
# Components

All names for each slot of a recipe, written by `python tools/write_reference.py`. Each example \
continues this recipe, and a test resolves it:

```yaml
version: 1
model: {name: llama3, flavor: debugmodel}
training: {dataset: tiny, seq_len: 64, steps: 10}
```

Options are listed with their defaults as `name: default`; options without a default are required. \
[The reference](reference.md) documents their
types and meanings. *Tested by* names a test that fails if the component does not work.
"""
BASE: dict[str, Any] = {
    "version": 1,
    "model": {"name": "llama3", "flavor": "debugmodel"},
    "training": {"dataset": "tiny", "seq_len": 64, "steps": 10},
}
LISTS = ("converters", "trackers", "rewards", "tasks")
MIXTURE = {"name": "qwen3", "flavor": "debugmodel_moe"}


QUESTIONS = {
    "kind": "rl",
    "model": {
        "name": "llama3",
        "flavor": "debugmodel",
        "attention": {"mask": "block_causal"},
        "rope": {"scaling": None},
    },
    "tokenizer": "characters",
    "rl": {"rewards": ["exact_match"], "sampling": {"max_new_tokens": 16}},
}


def asked(dataset: dict[str, Any]) -> dict[str, Any]:
    """Build a recipe about questions."""
    return {**QUESTIONS, "training": {"dataset": dataset}}


def learning(slot: str, written: Any) -> dict[str, Any]:
    """Build a recipe about rewards, with `written` at one of the slots of the section rl."""
    return {
        **asked({"name": "string_task"}),
        "rl": {**QUESTIONS["rl"], slot: [written] if slot in LISTS else written},
    }


def streamed(dataset: dict[str, Any]) -> dict[str, Any]:
    """Build a recipe about text of the Hub."""
    return {
        "training": {"dataset": dataset},
        "tokenizer": {"name": "huggingface", "path": "folder"},
    }


PICTURES = {
    "model": {"name": "flux", "flavor": "tiny"},
    "loss": "flow_matching",
    "training": {"dataset": {"name": "tiny_images", "image_size": 128}, "seq_len": 128},
    "activation_checkpoint": "full",
}
PAIRS = {
    "model": {"name": "llama3", "flavor": "debugmodel", "attention": {"mask": "block_causal"}},
    "tokenizer": {"name": "huggingface", "path": "folder"},
    "loss": "dpo",
    "training": {"dataset": {"name": "preference", "path": "pairs.jsonl"}},
}
LABELS = {
    "tokenizer": {"name": "huggingface", "path": "folder"},
    "loss": "kto",
    "training": {"dataset": {"name": "labelled", "path": "replies.jsonl"}},
}
YARN = {"name": "yarn", "original_max_position_embeddings": 32, "factor": 4.0}
# what the first option of a component does not show, or what it needs around it
EXAMPLES: dict[str, dict[str, Any]] = {
    "model:transformers": {"model": {"name": "transformers", "flavor": "debugmodel"}},
    **dict.fromkeys(("model:flux", "loss:flow_matching", "dataset:tiny_images"), PICTURES),
    "task:lm_eval": {"evaluation": {"tasks": [{"name": "lm_eval", "task": "hellaswag"}]}},
    "task:multiple_choice": {
        "evaluation": {"tasks": [{"name": "multiple_choice", "path": "data/questions.jsonl"}]}
    },
    "task:exact_match": {
        "evaluation": {"tasks": ["exact_match"]},
        "training": {"dataset": "tiny_chat"},
    },
    "loss:multi_token_cross_entropy": {
        "model": {"name": "deepseek_v3", "flavor": "debugmodel", "num_mtp_layers": 1},
        "loss": {"name": "multi_token_cross_entropy", "mtp_scale": 0.3},
    },
    **{f"loss:{name}": {**PAIRS, "loss": name} for name in ("dpo", "ipo", "cpo", "simpo", "orpo")},
    "loss:distillation": {"loss": {"name": "distillation", "teacher": "runs/teacher"}},
    "loss:reward": {**PAIRS, "loss": "reward", "model": {**PAIRS["model"], "head": "scalar"}},
    "dataset:mixture": {
        "tokenizer": "tiny",
        "training": {
            "dataset": {
                "name": "mixture",
                "sources": [
                    {"dataset": {"name": "text", "path": "web/*.jsonl"}, "weight": 0.8},
                    {"dataset": {"name": "text", "path": "code/*.jsonl"}, "weight": 0.2},
                ],
            }
        },
    },
    "dataset:preference": PAIRS,
    "dataset:tiny_pairs": {
        "model": PAIRS["model"],
        "loss": "orpo",
        "training": {"dataset": "tiny_pairs"},
    },
    **dict.fromkeys(("loss:kto", "dataset:labelled"), LABELS),
    "dataset:tiny_labelled": {"loss": "kto", "training": {"dataset": "tiny_labelled"}},
    "dataset:images": {
        **PICTURES,
        "training": {
            "dataset": {"name": "images", "path": "pictures", "image_size": 128},
            "seq_len": 128,
        },
    },
    "dataset:webdataset": {
        **PICTURES,
        "training": {
            "dataset": {"name": "webdataset", "path": "pictures/*.tar", "image_size": 128},
            "seq_len": 128,
        },
    },
    "rope_scaling:llama3": {"model": {"name": "llama3", "flavor": "1B"}},
    "rope_scaling:yarn": {
        "model": {"name": "deepseek_v3", "flavor": "debugmodel", "rope": {"scaling": YARN}}
    },
    "converters:float8_grouped_mm": {"model": MIXTURE, "converters": ["float8_grouped_mm"]},
    "converters:mxfp8_grouped_mm": {
        "model": MIXTURE,
        "converters": [{"name": "mxfp8_grouped_mm", "emulate": True}],
    },
    "tokenizer:huggingface": {
        "tokenizer": {"name": "huggingface", "path": "folder", "chat_template": "chatml"}
    },
    "tokenizer:tiny": {"tokenizer": {"name": "tiny", "chat_template": "alpaca"}},
    "tokenizer:characters": {"tokenizer": {"name": "characters", "chat_template": "alpaca"}},
    "dataset:chat": {
        "training": {"dataset": {"name": "chat", "path": "chats.jsonl"}},
        "tokenizer": {"name": "huggingface", "path": "folder"},
    },
    **{
        f"dataset:{name}": streamed({"name": name, "max_documents": 1000})
        for name in ("c4", "c4_validation")
    },
    **{
        f"dataset:{name}": asked({"name": name})
        for name in ("arithmetic", "guess_task", "lookup_task", "string_task")
    },
    "reward:environment": {
        **asked({"name": "guess_task"}),
        "rl": {**QUESTIONS["rl"], "environment": "guess_number", "rewards": ["environment"]},
    },
    "algorithm:ref_kl": {
        **asked({"name": "string_task"}),
        "rl": {**QUESTIONS["rl"], "algorithm": "ref_kl", "reference": "frozen_copy"},
    },
    **{
        f"correction:{name}": {
            **asked({"name": "string_task"}),
            "rl": {
                **QUESTIONS["rl"],
                "algorithm": {"name": "grpo", "correction": name},
                "schedule": {"target_offpolicy": 2},
            },
        }
        for name in ("none", "truncated", "mask", "sequence_mask")
    },
    "dataset:questions": asked({"name": "questions", "path": "questions.jsonl"}),
    "dataset:hub_questions": asked(
        {"name": "hub_questions", "repo": "owner/name", "revision": "0" * 40}
    ),
    "dataset:hub": streamed({"name": "hub", "repo": "owner/name", "revision": "0" * 40}),
    "dataset:c4_test": {"training": {"dataset": "c4_test"}, "tokenizer": "tiny"},
    "dataset:text": {
        "training": {"dataset": {"name": "text", "path": "data/*.jsonl"}},
        "tokenizer": "tiny",
    },
    "activation_checkpoint:memory_budget": {
        "activation_checkpoint": {"name": "memory_budget", "memory_budget": 0.5},
        "compile": {"enable": True},
    },
}
# components without an option that a test of its own tries
TRIED: dict[str, str] = {
    "converters:fp32_lm_head": "worker/build/test_apply_converters.py",
    "loss:flow_matching": "models/flux/test_collator.py",
    "tokenizer:characters": "rl/test_runs.py",
    "generator:vllm": "rl/test_vllm.py::test_a_policy_learns_from_what_vllm_says",
    "environment:single_turn": "rl/test_rollout_runner.py",
    "tokenizer:tiny": "components/tokenizers/test_huggingface.py",
    "activation_checkpoint:none": "cli/test_plugin.py",
    "correction:none": "rl/test_corrections.py",
    "trackers:trackio": (
        "components/metrics/test_trackers.py::test_trackio_gets_the_recipe_and_every_step"
    ),
}


def components_page() -> str:
    """Build the whole page."""
    return (
        "\n".join(
            [HEAD, *(line for topic in get_topics() if topic.is_slot for line in slot_lines(topic))]
        )
        + "\n"
    )


def slot_lines(slot: SchemaTopic) -> Iterator[str]:
    """Yield the lines of a slot and its components."""
    config = slot.config
    assert issubclass(config, ComponentConfig)
    default = f"; `{config.default_name}` where nothing is written" if config.default_name else ""
    yield f"## {slot.title}"
    yield ""
    yield f"{get_class_summary(config)} Written at `{format_path(slot.keys)}`{default}."
    yield ""
    for topic in components(slot):
        yield from component_lines(topic)


def components(slot: SchemaTopic) -> list[SchemaTopic]:
    """Return the components of a slot."""
    return [
        topic
        for topic in get_topics()
        if is_component(topic) and issubclass(topic.config, slot.config)
    ]


def is_component(topic: SchemaTopic) -> bool:
    """Whether a topic is a component, and no section of one."""
    return bool(topic.component) and topic.component == topic.title


def component_lines(topic: SchemaTopic) -> Iterator[str]:
    """One component."""
    config = topic.config
    assert issubclass(config, ComponentConfig)
    yield f"### {topic.title}"
    yield ""
    yield get_class_summary(config)
    yield ""
    if config.extra:
        yield f'- needs: `pip install "titanrun[{config.extra}]"`'
    yield f"- options: {', '.join(f'`{option}`' for option in options(config)) or 'none'}"
    yield f"- tested by: `tests/{tried_by(topic.title)}`"
    yield ""
    yield "```yaml"
    yield flow_lines(example(topic))
    yield "```"
    yield ""


def options(config: type[ComponentConfig]) -> Iterator[str]:
    """`lr: 0.0008`, or the bare name of an option that has to be written, or that is a section."""
    for field in describe_fields(config):
        bare = field.is_required or is_section_type(config.model_fields[field.name].annotation)
        yield field.name if bare else f"{field.name}: {field.default}"


def example(topic: SchemaTopic) -> dict[str, Any]:
    """Build the part of a recipe that names the component.

    It has what the component requires and its first option that says something.
    """
    if topic.title in EXAMPLES:
        return EXAMPLES[topic.title]
    config, name = topic.config, topic.title.partition(":")[2]
    written: dict[str, Any] = {"name": name}
    if topic.keys == ("model",):
        return {"model": {"name": name, "flavor": "debugmodel"}}
    for key, field in config.model_fields.items():
        if (
            key != "name"
            and (field.is_required() or not is_section_type(field.annotation))
            and len(written) < 2 + field.is_required()
        ):
            written[key] = (
                get_example_value(field)
                if field.is_required()
                else shorten_component(get_default_data(field))
            )
    return around(topic, written if len(written) > 1 else name)


def around(topic: SchemaTopic, written: Any) -> dict[str, Any]:
    """Put what is written at a topic's place into the sections and lists on the way."""
    if topic.keys == ("replace", "with"):
        return {"replace": [{"match": "layers.*.feed_forward", "with": written}]}
    if topic.keys[:1] == ("rl",):
        return learning(topic.keys[-1], written)
    for key in reversed(topic.keys):
        written = {key: [written] if key in LISTS else written}
    found: dict[str, Any] = written
    return found


def flow_lines(data: dict[str, Any]) -> str:
    """One line a section."""
    return "\n".join(f"{key}: {to_flow_yaml(value)}" for key, value in data.items())


def tried_by(title: str) -> str:
    """Return the test of the component, or an empty text.

    It is the test in leaves.yaml of the component's first option that is tried by more than a
    message, or what `TRIED` says.
    """
    own = [
        test
        for leaf, test in leaf_tests().items()
        if leaf.startswith(f"{title}.") and test != NOT_BUILT
    ]
    telling = [test for test in own if not test.startswith("problems/")]
    return TRIED.get(title) or next(iter(telling or own), "")


@cache
def leaf_tests() -> dict[str, str]:
    """Return what leaves.yaml holds, read once."""
    return table()


def whole_recipe(part: dict[str, Any]) -> dict[str, Any]:
    """Build the recipe that an example is the rest of."""
    return {
        key: {**BASE.get(key, {}), **value}
        if isinstance(value, dict) and key == "training"
        else value
        for key, value in {**BASE, **part}.items()
    }
