"""Chat templates that ship with titanrun, by name, and the tokens that they write."""

from collections.abc import Collection
from pathlib import Path

# the bars are U+FF5C, the blanks U+2581
DEEPSEEK = (
    "<\uff5cUser\uff5c>",
    "<\uff5cAssistant\uff5c>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)
CHATML, LLAMA = ("<|im_start|>", "<|im_end|>"), ("<|start_header_id|>", "<|eot_id|>")
# special tokens that a tokenizer must have for a template, beside those with a role
TEMPLATE_TOKENS: dict[str, tuple[str, ...]] = {
    "alpaca": (),
    "chatml": CHATML,
    "deepseek_v3": DEEPSEEK,
    "gemma3": ("<start_of_turn>", "<end_of_turn>"),
    "gpt_oss": ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>"),
    "llama3": LLAMA,
    "llama3_1": LLAMA,
    "mistral": ("[INST]", "[/INST]"),
    "phi3": ("<|user|>", "<|assistant|>", "<|end|>"),
    "qwen2_5": CHATML,
    "qwen3": (*CHATML, "<think>"),
    "qwen3_instruct": CHATML,
}
# the template to try first for a tokenizer without one, the most specific first
SUGGESTIONS = (
    *("qwen3", "chatml", "llama3", "gemma3", "gpt_oss"),
    *("deepseek_v3", "mistral", "phi3", "alpaca"),
)


def get_template_path(name: str) -> Path:
    """Return the file of a template that ships with titanrun."""
    return Path(__file__).parents[3] / "assets" / "chat_templates" / f"{name}.jinja"


def is_template_file(written: str) -> bool:
    """Return whether a written template is a file: names have neither a folder nor a suffix."""
    return "/" in written or "." in written


def suggest_template_names(tokens: Collection[str]) -> list[str]:
    """Return the names of templates whose tokens a tokenizer has, the best guess first.

    The best guess is never used unless a recipe names it: a model that is trained with another
    format than its own is of no use.
    """
    fitting = [name for name, needed in TEMPLATE_TOKENS.items() if set(needed) <= set(tokens)]
    return sorted(
        fitting,
        key=lambda name: SUGGESTIONS.index(name) if name in SUGGESTIONS else len(SUGGESTIONS),
    )
