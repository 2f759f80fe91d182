"""What the console states about the parameters of a run, as peft counts them."""

from peft import LoraConfig as TheirLoraConfig
from peft import get_peft_model
from torch import nn

from titanrun.components.converters.config import LoraConfig
from titanrun.components.converters.lora import convert
from titanrun.training.parameter_counts import count_trainable_parameters


def build_model() -> nn.Module:
    return nn.ModuleDict({"wq": nn.Linear(24, 40), "wk": nn.Linear(24, 8), "norm": nn.LayerNorm(5)})


def test_adapters_are_counted_as_peft_counts_them() -> None:
    ours = build_model()
    convert(LoraConfig(rank=3, target_modules=("wq", "wk")), model=ours, shards=1)
    theirs = get_peft_model(build_model(), TheirLoraConfig(r=3, target_modules=["wq", "wk"]))
    trained, total = theirs.get_nb_trainable_parameters()
    assert count_trainable_parameters(ours).format() == (
        f"trainable: {trained:,} of {total:,} parameters ({trained / total:.2%})"
    )


def test_all_are_trained_without_adapters() -> None:
    assert count_trainable_parameters(build_model()).format() == "trainable: all 1,210 parameters"
