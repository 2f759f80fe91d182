"""docs/migration_torchtune.md and its like: the table of a program as a page for people who come from it."""

from collections.abc import Iterator

from titanrun.recipe.migrate.document import key_table
from titanrun.recipe.migrate.tool import Tool

HEAD = """\
# From {name}

```sh
titanrun migrate {example} -o mine.yaml
```

makes a recipe of a YAML file that {name} {version} reads. Comments of what is carried over come along, and `${{key}}` is put in. The file
tells that it is {name}'s: {sign}; `--from {name}` says so otherwise.

The report on stderr and the exit code are those of [migration from torchtitan](migration.md): each key is mapped, changed, left out or
refused, with the reason; what {name} has by default and titanrun does not is written out.

{about}

## The keys

{counted}"""
ABOUT = {
    "torchtune": {
        "version": "0.6.1",
        "example": "8B_lora.yaml",
        "sign": "a section has a `_component_`",
        "about": """\
Full fine-tuning, LoRA, QLoRA and DPO. Weights, tokenizer and chat template are those of the Hugging Face folder in
`checkpointer.checkpoint_dir`; torchtune's own prompt templates are not copied. Llama 3 to 3.3 become `llama3`, the other text models
`transformers`, whose sizes are read from that folder, so that it has to be there when the recipe is validated. A model may be built from
its sizes too (`torchtune.models.llama3_1.llama3_1`). Data of the Hub have to be saved as files: `training.dataset.path` says where.
Rows have one length (`training.seq_len`); in torchtune each batch has that of its longest conversation, and the loss is the same. The
first step of a schedule with warmup has rate 0, as there.""",
    },
    "axolotl": {
        "version": "0.19",
        "example": "qlora.yaml",
        "sign": "it has `base_model`",
        "about": """\
Full fine-tuning, LoRA, QLoRA and DPO on `chat_template`, `alpaca` and `completion` data. A folder in `base_model` says by its config.json
which family it is; of a name on the Hub the words tell (Llama 3 to 3.3 is `llama3`, Qwen3 `qwen3`, all else `transformers`), and the
report says how to download it. Only Llama 3.1 and 3.3 and Qwen3 validate before that. The chat template is that of the folder. Weights are
kept in bf16, as axolotl loads them; with adapters they are in fp32 and multiplied in bf16. Data of the Hub have to be saved as files:
`training.dataset.path` says where. axolotl's defaults hold where the file has nothing: `sequence_len: 512`, one epoch, a cosine whose
first step has rate 0, seed 42.""",
    },
}


def guide(tool: Tool) -> str:
    """The whole page."""
    counted = f"{len(tool.keys)} keys; the defaults are {tool.name}'s, `unset` where it depends on the component."
    return (
        "\n".join(
            [HEAD.format(name=tool.name, counted=counted, **ABOUT[tool.name]), "", *tables(tool)]
        )
        + "\n"
    )


def tables(tool: Tool) -> Iterator[str]:
    """The keys in the order of the table."""
    yield from key_table(tool.keys.values(), tool.name, tool.spelled)
