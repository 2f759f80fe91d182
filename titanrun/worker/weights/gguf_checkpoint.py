"""Export of a checkpoint as a GGUF file, with a Modelfile for Ollama on request."""

import sys
from pathlib import Path

from torch import Tensor

from titanrun.components.tokenizers.chat_template import read_chat_template
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.components.tokenizers.spec.stop_tokens import load_stop_tokens
from titanrun.components.tokenizers.spec.tokenizer_files import load_chat_template_text, load_vocab
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.models.shared.spec.family import load_family_module
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.checkpoint import find_export_replacement_problems
from titanrun.worker.training_template import find_training_end_ids
from titanrun.worker.weights.gguf_export import get_family, load_gguf, write_gguf
from titanrun.worker.weights.huggingface_export import build_config_json
from titanrun.worker.weights.ollama_modelfile import build_modelfile

# a longer context takes more memory than a first chat is worth
MAX_CONTEXT = 8192


def export_gguf(
    out: Path,
    weights: dict[str, Tensor],
    recipe: Recipe,
    *,
    dtype: str | None,
    with_modelfile: bool,
) -> None:
    """Write the file, and beside it `Modelfile` for `ollama create`.

    Args:
        out: The file. Its folder is made if it is missing.
        weights: The weights by titanrun's names, without adapters.
        recipe: The recipe of the checkpoint, with its tokenizer.
        dtype: Dtype of the matrices; None for that of the weights.
        with_modelfile: Whether to write the Modelfile.

    Raises:
        ProblemsFound: If the format lacks the family or the tokenizer, or the package is missing.
    """
    tokenizer = check_exportable(recipe)
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in weights.values()}
    saved = dtypes.pop() if len(dtypes) == 1 else "float32"
    config = build_config_json(recipe.model, saved, tokenizer)
    get_family(config)
    template = find_template_text(tokenizer)
    end_ids = find_training_end_ids(recipe)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_gguf(
        out,
        load_family_module(type(recipe.model), "huggingface").to_huggingface(recipe.model, weights),
        config,
        dtype=dtype or saved,
        tokenizer=tokenizer.folder,
        template=template,
        end_ids=end_ids,
        name=recipe.name or out.stem,
    )
    print(out)
    if with_modelfile:
        context = min(config["max_position_embeddings"], MAX_CONTEXT)
        stops = list_stop_texts(tokenizer, end_ids)
        write_modelfile(out, build_modelfile(out.name, template, stops, context))


def check_exportable(recipe: Recipe) -> TokenizerConfig:
    """Return the tokenizer of a model that the format can hold.

    Raises:
        ProblemsFound: If the package is missing, or the model or its tokenizer has no place there.
    """
    load_gguf()
    if problems := find_export_replacement_problems(recipe):
        raise ProblemsFound(problems)
    if recipe.model.modality != "tokens" or getattr(recipe.model, "head", "lm") != "lm":
        raise problem_error(
            "usage",
            "GGUF files hold language models, which predict tokens",
            hint="use --format hf",
        )
    if not isinstance(recipe.tokenizer, TokenizerConfig):
        raise problem_error(
            "data",
            "a GGUF file holds the tokenizer, and this run has none",
            path=("tokenizer",),
            hint="use --format hf",
        )
    return recipe.tokenizer


def find_template_text(tokenizer: TokenizerConfig) -> str | None:
    """Return the chat template of a tokenizer, None without one."""
    if tokenizer.chat_template is not None:
        return read_chat_template(tokenizer.chat_template)
    try:
        return load_chat_template_text(tokenizer.folder)
    except ProblemsFound:
        return None


def list_stop_texts(tokenizer: TokenizerConfig, end_ids: frozenset[int]) -> list[str]:
    """Return the tokens at which generation stops."""
    texts = {number: text for text, number in load_vocab(tokenizer.folder).items()}
    known = load_stop_tokens(tokenizer.folder)
    return sorted({*known, *(texts[number] for number in end_ids if number in texts)})


def write_modelfile(gguf: Path, text: str) -> None:
    """Write the Modelfile beside the file, and print the command that reads it."""
    path = gguf.parent / "Modelfile"
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    print(path)
    if "TEMPLATE" not in text:
        sys.stderr.write(
            "the Modelfile has no TEMPLATE: Ollama reads that of the GGUF file if it knows it; if "
            "it does not, write TEMPLATE in its syntax (docs/gguf.md)\n"
        )
    print(f"next: ollama create {gguf.stem} -f {path}")
