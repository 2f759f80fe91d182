"""Fields of verl's configs: each is read, warned of or refused by its name."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.integrations.verl import verl_config_fields
from titanrun.integrations.verl.build_verl_engine import build_verl_engine, build_verl_recipe

FOLDER = Path("model")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    return tmp_path


def build(folder: Path, **configs: Any) -> Any:
    given = {"model": {"path": str(folder)}, "engine": {}, "optimizer": {}, "checkpoint": None}
    made = {**given, **configs}
    return build_verl_engine(made["model"], made["engine"], made["optimizer"], made["checkpoint"])


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"engine": {"mixed_precision": True}}, "mixed_precision of verl's engine config"),
        ({"engine": {"router_replay": {"mode": "R2"}}}, "router_replay of verl's engine config"),
        ({"engine": {"fsdp_size": -1}}, "fsdp_size of verl's engine config"),
        ({"optimizer": {"lr_scheduler_type": "cosine"}}, "lr_scheduler_type of verl's optimizer"),
        ({"checkpoint": {"async_save": True}}, "async_save of verl's checkpoint config"),
        ({"checkpoint": {"save_contents": ["hf_model"]}}, r"save_contents \[hf_model\]"),
        ({"checkpoint": {"load_contents": ["optimizer"]}}, r"load_contents \[optimizer\]"),
    ],
)
def test_a_field_that_cannot_be_honoured_is_refused_by_its_name(
    folder: Path, configs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ProblemsFound, match=message):
        build(folder, **configs)


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ({"lora_rank": 8}, "lora_rank"),
        ({"lora": {"rank": 4}}, "lora.rank"),
        ({"lora_adapter_path": "there"}, "lora_adapter_path"),
        ({"target_parameters": ["w"]}, "target_parameters"),
        ({"enable_activation_offload": True}, "enable_activation_offload"),
        ({"use_liger": True}, "use_liger"),
        ({"tiled_mlp": {"enabled": True}}, "tiled_mlp.enabled"),
        ({"mtp": SimpleNamespace(enable=True)}, "mtp.enable"),
        ({"override_config": {"vocab_size": 3}}, "override_config.vocab_size"),
    ],
)
def test_a_model_config_that_changes_the_model_is_refused(
    folder: Path, field: dict[str, Any], name: str
) -> None:
    with pytest.raises(ProblemsFound, match=f"{name} of verl's model config"):
        build(folder, model={"path": str(folder), **field})


def test_fields_at_their_defaults_say_nothing_and_others_are_warned_of_once(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verl_config_fields, "_warned", set())
    quiet = {
        "wrap_policy": {"min_num_params": 0},
        "forward_prefetch": False,
        "mixed_precision": False,
        "router_replay": SimpleNamespace(mode="disabled"),
        "spmd_backend": "spmd_types",
        "use_remove_padding": True,
        "max_seq_len": None,
    }
    with caplog.at_level(logging.WARNING):
        build(folder, engine=quiet)
        assert not caplog.text
        for _ in range(2):
            build(folder, engine={"use_orig_params": True})
    assert caplog.text.count("use_orig_params has no effect: FSDP2") == 1


def test_what_the_engine_reads_reaches_the_recipe_and_the_engine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(
        folder,
        engine={
            "entropy_from_logits_with_chunking": True,
            "entropy_from_logits_chunk_size": 5,
            "entropy_checkpointing": True,
            "param_offload": True,
        },
        checkpoint={"save_contents": ["model"], "load_contents": ["model", "optimizer", "extra"]},
    )
    assert engine.entropy.chunk_tokens == 5 and engine.entropy.should_recompute
    assert engine.contents.saves_model_only and not engine.contents.loads_model_only
    assert engine.param_offload and not engine.optimizer_offload
    assert build(folder).entropy.chunk_tokens is None
    monkeypatch.setattr(
        "titanrun.integrations.verl.build_verl_engine.get_model_family", lambda folder: "llama3"
    )
    optimizer = {"clip_grad": 2.0, "grad_clip": 0.5}
    recipe = build_verl_recipe(FOLDER, {"attn_type": "varlen"}.get, optimizer.get)
    assert recipe["training"]["max_norm"] == 0.5
    assert recipe["model"]["attention"]["backend"] == "varlen"
    with pytest.raises(ProblemsFound, match="flex_flash needs FlexAttention"):
        build_verl_recipe(FOLDER, {"attn_type": "flex_flash"}.get, optimizer.get)
