"""What the families share about weights under transformers' names: the names around the layers, tied heads, and the check of a state."""

from collections.abc import Mapping

from torch import Tensor

from titanrun.config.problems import Problem, ProblemsFound
from titanrun.config.suggest import listing

NAMES = {"tok_embeddings.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}


def huggingface_name(name: str, layer_names: Mapping[str, str]) -> str:
    """The name that transformers gives the parameter `name`; `layer_names` has the family's names within a layer."""
    if name in NAMES:
        return NAMES[name]
    _, layer, rest = name.split(".", 2)
    return f"model.layers.{layer}.{layer_names[rest]}"


def without_tied_head(state: Mapping[str, Tensor], *, tied: bool, head: str) -> dict[str, Tensor]:
    """`state` without the head that is the embedding once more."""
    return {name: tensor for name, tensor in state.items() if name != head or not tied}


def check_state(expected: Mapping[str, tuple[int, ...]], given: Mapping[str, Tensor]) -> None:
    """Raise ProblemsFound unless `given` has exactly the expected names and shapes."""
    absent = [name for name in expected if name not in given]
    unknown = sorted(given.keys() - expected.keys())
    other = [
        f"{name} is {by(given[name].shape)}, not {by(shape)}"
        for name, shape in expected.items()
        if name in given and tuple(given[name].shape) != shape
    ]
    problems = [
        Problem("checkpoint", f"{what}: {listing(names, last='and', most=4)}", help=help)
        for what, names, help in (
            ("weights the model needs are missing", absent, "check that the folder holds all files of this model"),
            ("weights the model does not have", unknown, "check that the folder belongs to this model"),
            ("weights of other sizes than the model's", other, "use flavor auto to take the sizes from config.json"),
        )
        if names
    ]
    if problems:
        raise ProblemsFound(problems)


def by(shape: tuple[int, ...]) -> str:
    """`256 x 768`."""
    return " x ".join(map(str, shape))
