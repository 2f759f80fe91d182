"""docs/migration_torchtune.md and similar pages: the migration table of one program."""

from collections.abc import Iterator

from titanrun.recipe.migrate.source_tool import SourceTool
from titanrun.recipe.migrate.torchtitan_guide import iter_key_table

HEAD = """\
# Migrating from {title}

Turn a configuration of {title} into a recipe, with a report on what became of each key:

```sh
titanrun migrate {example} -o mine.yaml
```

The file is YAML for {title} {version}. Comments of the keys carried over are kept,
and `${{key}}` is replaced by its value. The file is recognized as {title}'s because {sign};
otherwise use `--from {name}`.

The report on stderr and the exit code are those of
[migration from torchtitan](migration_torchtitan.md): each key is mapped, changed, left out, left to
you to set, or refused, with the reason. Defaults of {title} that differ from titanrun's are written
to the recipe.

{about}

## The keys

{counted}"""
ABOUT = {
    "torchtune": {
        "title": "torchtune",
        "version": "0.6.1",
        "example": "8B_lora.yaml",
        "sign": "a section has a `_component_`",
        "about": """\
Supported are full fine-tuning, LoRA, QLoRA and DPO. Weights, tokenizer and chat template are those
of the Hugging Face folder in `checkpointer.checkpoint_dir`; torchtune's own prompt templates are
not copied. Llama 3 to 3.3 become `llama3`, Qwen3 `qwen3`, the other text models `transformers`.
Their sizes are read from that folder, so it must exist when the recipe is validated. A model may
also be built from its sizes (`torchtune.models.llama3_1.llama3_1`). Datasets of the Hub keep their
names, as `repo`, and the run fetches them when it starts. Sequences have one length
(`training.seq_len`); in torchtune each batch has that of its longest conversation, and the loss is
the same. The first step of a schedule with warmup has rate 0, as in torchtune.""",
    },
    "axolotl": {
        "title": "axolotl",
        "version": "0.19",
        "example": "qlora.yaml",
        "sign": "it has `base_model`",
        "about": """\
Supported are full fine-tuning, LoRA, QLoRA and DPO on `chat_template`, `alpaca` and `completion`
data, and on pairs such as `chat_template.default` and `chatml.intel`. `model_type`,
`model_revision`, `model_config` and `model_kwargs` are other names of `type_of_model` and so on, as
in axolotl. The model family is read from config.json if `base_model` is a folder, and derived from
the name if it is on the Hub (Llama 3 to 3.3 is `llama3`, Qwen3 `qwen3`, all else `transformers`).
Models and datasets of the Hub keep their names, as `hub:OWNER/NAME` and `repo`, and the run fetches
them when it starts. The chat template is that of the model. Weights are kept in bf16, as axolotl
loads them; adapters are in fp32. For keys that the file omits, axolotl's defaults apply:
`sequence_len: 512`, one epoch, a cosine whose first step has rate 0, seed 42.""",
    },
    "llamafactory": {
        "title": "LLaMA-Factory",
        "version": "0.9",
        "example": "llama3_lora_sft.yaml",
        "sign": "it has `model_name_or_path` with `stage` or `finetuning_type`",
        "about": """\
Supported are the stages `sft`, `dpo` (sigmoid, hinge, ipo, orpo and simpo), `kto`, `rm` and `pt`,
with all weights, LoRA and QLoRA. The first dataset is looked up in dataset_info.json of
`dataset_dir`, seen from the current directory; where that is not found, its path and layout are a
guess that the report marks. The chat template is named where titanrun has the same one, else it is
that of the folder. Weights that are trained are kept in fp32 and multiplied in bf16, as
LLaMA-Factory does. For keys that the file omits, its defaults apply: a cutoff of 2,048 tokens, a
learning rate of 5e-5 that decays linearly, 8 sequences per device, three epochs, adapters of rank 8
with twice that as alpha on all linear modules, and recomputation of layers.""",
    },
}


def build_program_guide(tool: SourceTool) -> str:
    """Return the whole page."""
    counted = (
        f"{len(tool.keys)} keys; the defaults are {tool.name}'s, "
        "`unset` if it depends on the component."
    )
    return (
        "\n".join(
            [
                HEAD.format(name=tool.name, counted=counted, **ABOUT[tool.name]),
                "",
                *iter_key_tables(tool),
            ]
        )
        + "\n"
    )


def iter_key_tables(tool: SourceTool) -> Iterator[str]:
    """Yield the keys in the order of the table."""
    yield from iter_key_table(tool.keys.values(), tool.name, tool.format_value)
