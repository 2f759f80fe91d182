"""A config that comes with weights."""

from transformers import LlamaConfig


class OthersConfig(LlamaConfig):
    model_type = "of_others"
