"""Number of parameters and floating-point operations of a model, in closed form."""

from math import prod

from titanrun.models.shared.config import ModelConfig

EMBEDDING = "tok_embeddings.weight"
OUTPUT = "output.weight"


def count_parameters(config: ModelConfig) -> int:
    """Return the number of parameters. A matrix that embedding and head share counts once."""
    return sum(prod(shape) for shape in config.parameter_shapes().values())


def count_embedding_parameters(config: ModelConfig) -> int:
    """Return the number of parameters of the token embedding."""
    return prod(config.parameter_shapes()[EMBEDDING])


def count_active_parameters(config: ModelConfig) -> int:
    """Return the number of parameters that one token uses, which is all in a dense model."""
    return count_parameters(config) - config.inactive_parameter_count()


def flops_per_token(config: ModelConfig, seq_len: int) -> int:
    """Return the floating-point operations of training per token, forward and backward.

    They are six for each parameter by which a token is multiplied: an embedding that is only looked
    up does not count, a matrix tied to the head does. In addition they are 6 * attention_dim *
    seq_len for scores and weighted values, counted as if nothing were masked (PaLM,
    https://arxiv.org/abs/2204.02311, appendix B).
    """
    looked_up = count_embedding_parameters(config) if OUTPUT in config.parameter_shapes() else 0
    # the head is applied once more for each token of multi-token prediction
    again = (
        config.mtp_depth() * config.output_dim() * config.model_dim() if config.mtp_depth() else 0
    )
    return (
        6 * (count_active_parameters(config) - looked_up + again)
        + 6 * config.attention_dim() * seq_len
    )
