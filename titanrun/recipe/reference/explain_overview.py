"""What `titanrun explain` explains, by kind."""

from titanrun.recipe import builtins
from titanrun.recipe.reference.problem_codes import PROBLEM_CODES, RUN_END_CODES
from titanrun.recipe.reference.schema_topics import get_topics, list_explainable_paths
from titanrun.recipe.rules.registry import get_active_rules


def format_overview() -> str:
    """Return the sections, and how many words of each other kind there are, with examples."""
    builtins.register_builtins()
    builtins.load_rules()
    paths = list_explainable_paths()
    rules = [entry.id for entry in get_active_rules()]
    components = [topic.title for topic in get_topics() if topic.component]
    codes = [*PROBLEM_CODES, *RUN_END_CODES]
    rows = {
        "top level": ", ".join(path for path in paths if "." not in path),
        "fields": format_examples(paths, ["training.seq_len", "optimizer.lr", "checkpoint.enable"]),
        "components": format_examples(components, ["optimizer:adamw", "dataset:chat", "loss:dpo"]),
        "problem codes": format_examples(codes, ["unknown-key", "conflict", "hang"]),
        "rules": format_examples(rules, ["warmup-within-run", "batch-sizes-divide"]),
        "other words": "are searched for, as in titanrun explain warmup",
    }
    lines = ["titanrun explain WORD explains:"]
    lines += [f"  {kind:<15}{words}" for kind, words in rows.items()]
    return "\n".join(lines) + "\n"


def format_examples(known: list[str], examples: list[str]) -> str:
    """Return examples of the words of one kind, and the number of all."""
    return f"{', '.join(examples)} ... {len(known):,} in all"
