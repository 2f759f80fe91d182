"""verl's configs of the same training for its own engine and for titanrun's."""

from pathlib import Path
from typing import Any

import torch

VOCABULARY = 64
FP32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}


def write_model(folder: Path) -> Path:
    """A Hugging Face folder of a tiny model with weights and a tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = {chr(97 + number) if number < 26 else f"<{number}>": number for number in range(64)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<63>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<62>", pad_token="<61>", unk_token="<63>"
    )
    fast.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    fast.save_pretrained(folder)
    return folder


def model_config(folder: Path, *, is_packed: bool) -> Any:
    from verl.workers.config import HFModelConfig

    return HFModelConfig(
        path=str(folder),
        use_remove_padding=is_packed,
        enable_gradient_checkpointing=False,
        override_config={"attn_implementation": "eager"},
    )


def fsdp_configs(**optimizer: Any) -> tuple[Any, Any]:
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig

    engine = FSDPEngineConfig(
        strategy="fsdp2",
        use_torch_compile=False,
        use_dynamic_bsz=False,
        micro_batch_size_per_gpu=2,
        infer_micro_batch_size_per_gpu=2,
        model_dtype="fp32",
        dtype="float32",
        mixed_precision=FP32,
    )
    return engine, FSDPOptimizerConfig(**{"lr": 1e-2, "weight_decay": 0.01, **optimizer})


def titanrun_configs(engine_options: Any = None, **optimizer: Any) -> tuple[Any, Any]:
    from verl.workers.config import TorchtitanOptimizerConfig

    from titanrun.integrations.verl.registered_engine import TitanrunEngineConfig

    engine = TitanrunEngineConfig(
        **{
            "use_torch_compile": False,
            "use_dynamic_bsz": False,
            "micro_batch_size_per_gpu": 2,
            "infer_micro_batch_size_per_gpu": 2,
            "dtype": "float32",
            "activation_checkpoint": "none",
            "max_seq_len": 64,
            **(engine_options or {}),
        }
    )
    settings = {"lr": 1e-2, "weight_decay": 0.01, "min_lr_factor": 1.0, **optimizer}
    return engine, TorchtitanOptimizerConfig(**settings)


def worker_config(folder: Path, backend: str, *, shards: int = 1, **optimizer: Any) -> Any:
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import TrainingWorkerConfig

    engine, optim = (
        titanrun_configs({"data_parallel_shard_size": shards}, **optimizer)
        if backend == "titanrun"
        else fsdp_configs(**optimizer)
    )
    return TrainingWorkerConfig(
        model_type="language_model",
        model_config=model_config(folder, is_packed=backend == "titanrun"),
        engine_config=engine,
        optimizer_config=optim,
        checkpoint_config=CheckpointConfig(),
    )


def learnable_batch(count: int = 4) -> Any:
    """Sequences that repeat a short pattern, as verl's trainers hand them to a worker."""
    from tensordict import NonTensorData
    from verl.utils import tensordict_utils as tu

    lengths = [9, 12, 7, 10, 8, 11, 12, 9][:count]
    rows = [
        (torch.arange(length) * (number + 1) + number) % 7 for number, length in enumerate(lengths)
    ]

    def jagged(parts: list[Any]) -> Any:
        return torch.nested.as_nested_tensor(parts, layout=torch.jagged)

    tensors = {
        "input_ids": jagged(rows),
        "position_ids": jagged([torch.arange(length) for length in lengths]),
        "loss_mask": jagged([(torch.arange(length) > 1).long() for length in lengths]),
    }
    settings = {
        "temperature": 1.0,
        "pad_mode": "no_padding",
        "pad_token_id": 61,
        "global_batch_size": count,
        "update_lr_scheduler": True,
    }
    data = tu.get_tensordict(tensors, non_tensor_dict=settings)
    tu.assign_non_tensor(data, global_token_num=NonTensorData(lengths))
    return data
