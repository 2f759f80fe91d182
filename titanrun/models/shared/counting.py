"""Parameters and floating-point operations of a model, in closed form."""

from math import prod

from titanrun.models.shared.config import ModelConfig

EMBEDDING = "tok_embeddings.weight"
OUTPUT = "output.weight"


def parameter_count(config: ModelConfig) -> int:
    """Number of parameters; a matrix that embedding and output head share counts once."""
    return sum(prod(shape) for shape in config.parameter_shapes().values())


def embedding_parameter_count(config: ModelConfig) -> int:
    """Number of parameters of the token embedding."""
    return prod(config.parameter_shapes()[EMBEDDING])


def active_parameter_count(config: ModelConfig) -> int:
    """Number of parameters that one token meets; all of a dense model's."""
    return parameter_count(config) - config.idle_parameter_count()


def flops_per_token(config: ModelConfig, seq_len: int) -> int:
    """Floating-point operations that training spends on one token of a row of `seq_len`, forward and backward.

    Six for each parameter that a token is multiplied by: a table that is only looked up is left out, a matrix tied to the head
    is not. Plus 6 * attention_width * seq_len for scores and weighted values, counted as if nothing were masked
    (PaLM, https://arxiv.org/abs/2204.02311, appendix B).
    """
    looked_up = embedding_parameter_count(config) if OUTPUT in config.parameter_shapes() else 0
    # the head is multiplied by once more for each further token
    again = (
        config.further_tokens() * config.output_width() * config.stream_width()
        if config.further_tokens()
        else 0
    )
    return (
        6 * (active_parameter_count(config) - looked_up + again)
        + 6 * config.attention_width() * seq_len
    )
