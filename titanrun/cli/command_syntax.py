"""What each command takes, for completion: kinds of words, and options with their values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from titanrun.recipe.reference import shipped_recipes

WordKind = Literal[
    "files",
    "recipes",
    "migratable",
    "shipped",
    "overrides",
    "paths",
    "codes",
    "components",
    "commands",
    "kinds",
    "schemas",
    "plugins",
    "shells",
    "checkpoint_commands",
    "runs_commands",
    "data_commands",
]
FORMATS = ("text", "json", "github", "sarif")
OptionValues: TypeAlias = tuple[str, ...] | WordKind | None
NO_VALUE: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandSyntax:
    """Arguments of a command: kinds of positional words, and options with their values.

    The last positional kind applies to all further words. An option's value is one of a few words,
    a kind, or anything (None). A flag has no value.
    """

    positional_kinds: tuple[tuple[WordKind, ...], ...] = ()
    options: Mapping[str, OptionValues] = field(default_factory=dict)


def make_flags(*names: str) -> dict[str, OptionValues]:
    """Return options without a value."""
    return dict.fromkeys(names, NO_VALUE)


TRUST_OPTION = make_flags("--trust")
# the commands that read what a saved run names
RUN_OPTIONS: dict[str, OptionValues] = {"--moved": None}
REPORTING_OPTIONS: dict[str, OptionValues] = {"--log-format": ("text", "json"), "--notify": None}
COMMAND_SYNTAX: dict[str, CommandSyntax] = {
    "train": CommandSyntax(
        (("recipes",), ("overrides",)),
        {"--nproc": None, "--stdin-name": "files", **TRUST_OPTION, **REPORTING_OPTIONS},
    ),
    "fleet": CommandSyntax(
        (("recipes",), ("overrides",)),
        {**dict.fromkeys(("--listen", "--idle-timeout")), "--folder": "files", **TRUST_OPTION},
    ),
    "launch": CommandSyntax(
        (("recipes",), ("overrides",)),
        {
            **make_flags("--dry-run", "--no-follow", "--attached"),
            **TRUST_OPTION,
            **REPORTING_OPTIONS,
        },
    ),
    "resume": CommandSyntax(
        (("files",), ("overrides",)),
        {"--nproc": None, **RUN_OPTIONS, **TRUST_OPTION, **REPORTING_OPTIONS},
    ),
    "stop": CommandSyntax((("files",), ()), {**make_flags("--now", "--wait"), "--timeout": None}),
    "fork": CommandSyntax((("files",), ("overrides",)), {**TRUST_OPTION, **REPORTING_OPTIONS}),
    "generate": CommandSyntax(
        (("files",), ()),
        {
            **dict.fromkeys(
                ("--prompt", "--max-new-tokens", "--temperature", "--top-k", "--top-p")
            ),
            **dict.fromkeys(("--seed", "--nproc", "--stop", "--steps", "--guidance", "--size")),
            "--output": "files",
            **make_flags("--ignore-eos", "--add-bos", "--chat", "--json"),
            **RUN_OPTIONS,
        },
    ),
    "chat": CommandSyntax(
        (("files",), ("files",)),
        {
            **dict.fromkeys(("--system", "--max-new-tokens", "--temperature", "--top-p", "--seed")),
            **make_flags("--base", "--requests"),
            **RUN_OPTIONS,
        },
    ),
    "serve": CommandSyntax(
        (("files",), ()),
        {
            **dict.fromkeys(
                ("--host", "--port", "--api-key-env", "--cors", "--max-concurrent", "--queue")
            ),
            **dict.fromkeys(("--max-seq-len", "--name")),
            **RUN_OPTIONS,
            "--engine": ("titanrun", "vllm"),
            **make_flags("--base", "--no-key"),
        },
    ),
    "eval": CommandSyntax(
        (("files",), ("overrides",)), {**make_flags("--json"), **RUN_OPTIONS, **TRUST_OPTION}
    ),
    "push": CommandSyntax(
        (("files",), ()),
        {
            "--format": ("hf", "adapter", "gguf"),
            "--dtype": ("float32", "bfloat16", "float16", "q8_0"),
            "--revision": None,
            **make_flags("--private", "--public", "--create-pr", "--dry-run"),
            **RUN_OPTIONS,
        },
    ),
    "download": CommandSyntax(
        ((),),
        {"--revision": None, "--only": ("tokenizer", "config", "weights"), "--output": "files"},
    ),
    "reproduce": CommandSyntax(
        (("files",), ()), {"--steps": None, "--out": "files", "--tolerance": None, **TRUST_OPTION}
    ),
    "checkpoint": CommandSyntax((("checkpoint_commands",), ("files",), ("files",), ("overrides",))),
    "data": CommandSyntax((("data_commands",), ("files",), ("overrides",))),
    "runs": CommandSyntax((("runs_commands",), ("files",))),
    "bundle": CommandSyntax((("files",), ()), {"--output": "files"}),
    "sweep": CommandSyntax(
        (("files",), ("overrides",)),
        {
            **make_flags(
                *("--list", "--launch", "--dry-run", "--table", "--importance", "--array-task"),
                "--json",
            ),
            **TRUST_OPTION,
            "--format": ("text", "csv", "json"),
            "--out": "files",
        },
    ),
    "plot": CommandSyntax(
        (("files",),),
        {
            "--metric": ("loss", "grad_norm", "lr", "tps", "memory_gib", "validation/loss"),
            "--x": ("step", "tokens", "time"),
            "--smooth": None,
            "--log": ("x", "y"),
            "--align": ("step", "tokens", "lineage"),
            **make_flags("--seeds"),
            "--out": "files",
        },
    ),
    "report": CommandSyntax(
        (("files",), ("files",)),
        {"--output": "files", "--with-paths": NO_VALUE, "--with-log": NO_VALUE},
    ),
    "plan": CommandSyntax(
        (("recipes",), ("overrides",)),
        {
            "--world-size": None,
            "--device": ("a100", "a100-40", "b200", "h100", "h200", "mi300x"),
            **TRUST_OPTION,
            "--stdin-name": "files",
            **make_flags("--search", "--fetch", "--json"),
        },
    ),
    "validate": CommandSyntax(
        (("recipes",), ("recipes", "overrides")),
        {
            "--level": ("syntax", "schema", "rules", "environment", "build"),
            "--format": FORMATS,
            "--world-size": None,
            **TRUST_OPTION,
            "--stdin-name": "files",
            **make_flags("--strict", "--json", "--fix"),
        },
    ),
    "diff-config": CommandSyntax(
        (("recipes",), ("recipes",), ("overrides",)),
        {
            "--format": ("text", "json"),
            "--stdin-name": "files",
            **make_flags("--written", "--effective", "--json"),
        },
    ),
    "show": CommandSyntax(
        (("recipes",), ("paths",)),
        {
            **TRUST_OPTION,
            "--stdin-name": "files",
            **make_flags("--sources", "--minimal", "--model", "--resolved", "--json"),
            "--plot": ("lr_scheduler",),
            "--out": "files",
        },
    ),
    "explain": CommandSyntax(
        (("paths", "components", "codes"),),
        {**TRUST_OPTION, **make_flags("--all", "--json"), "--plugins": "plugins"},
    ),
    "ls": CommandSyntax(
        (("kinds",), ()),
        {
            **TRUST_OPTION,
            **dict.fromkeys(f"--{key}" for key in shipped_recipes.HEADER_KEYS),
            **make_flags("--json", "--long"),
            "--plugins": "plugins",
        },
    ),
    "cat": CommandSyntax((("shipped",), ())),
    "cp": CommandSyntax((("shipped",), ("files",), ())),
    "init": CommandSyntax(
        ((),),
        {
            "--model": "files",
            "--kind": ("pretrain", "sft", "lora", "dpo", "orpo", "kto", "reward"),
            "--data": "files",
            "--output": "files",
            **make_flags("--full"),
        },
    ),
    "migrate": CommandSyntax(
        (("migratable",), ()),
        {
            "--from": ("torchtitan", "torchtune", "axolotl", "llamafactory"),
            "--output": "files",
            **make_flags("--check", "--write"),
        },
    ),
    "doctor": CommandSyntax(((),), make_flags("--no-training", "--json")),
    "completion": CommandSyntax((("shells",), ())),
    "ui": CommandSyntax(
        (("files",), ()),
        {"--port": None, "--runs": "files", **make_flags("--no-browser", "--read-only")},
    ),
    "lsp": CommandSyntax(((),), make_flags("--stdio")),
    "schema": CommandSyntax(
        (("schemas",), ()),
        {**TRUST_OPTION, "--write": "files", "--base-url": None, "--plugins": "plugins"},
    ),
}
