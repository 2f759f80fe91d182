"""verl's own SFTTrainer: training, validation, checkpoints and resuming."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("ignore")]
STEPS = 10


def write_conversations(folder: Path, count: int = 28) -> Path:
    import pandas

    rows = [
        [
            {"role": "user", "content": chr(97 + number % 4)},
            {"role": "assistant", "content": chr(97 + number % 4) * (2 + number % 5)},
        ]
        for number in range(count)
    ]
    file = folder / "train.parquet"
    pandas.DataFrame({"messages": rows}).to_parquet(file)
    return file


def load_config(folder: Path, data: Path, checkpoints: Path) -> Any:
    """verl's own config of its SFT trainer, with titanrun's engine."""
    import verl.trainer.config
    from hydra import compose, initialize_config_dir

    configs = str(Path(verl.trainer.config.__file__).parent)
    with initialize_config_dir(configs, version_base=None):
        return compose(
            "sft_trainer_engine",
            [
                "engine=torchtitan",
                "optim=torchtitan",
                "engine._target_=titanrun.integrations.verl.registered_engine.TitanrunEngineConfig",
                "engine.strategy=titanrun",
                "engine.use_torch_compile=false",
                "engine.activation_checkpoint=none",
                "engine.dtype=float32",
                "engine.max_seq_len=64",
                "optim.lr=0.01",
                f"model.path={folder}",
                f"data.train_files={data}",
                f"data.val_files={data}",
                "data.train_batch_size=4",
                "data.micro_batch_size_per_gpu=2",
                "data.max_token_len_per_gpu=64",
                "data.num_workers=0",
                "data.ignore_input_ids_mismatch=true",
                f"trainer.default_local_dir={checkpoints}",
                "trainer.logger=[file]",
                "trainer.total_epochs=4",
                f"trainer.total_training_steps={STEPS}",
                "trainer.save_freq=5",
                "trainer.test_freq=5",
                "trainer.max_ckpt_to_keep=2",
                "trainer.device=cpu",
            ],
        )


def fit(config: Any, log: Path, patch: pytest.MonkeyPatch) -> dict[int, dict[str, float]]:
    """Train with verl's trainer and return its own log by step."""
    from verl.trainer.sft_trainer import SFTTrainer

    patch.setenv("VERL_FILE_LOGGER_PATH", str(log))
    SFTTrainer(config=config).fit()
    found: dict[int, dict[str, float]] = {}
    for line in log.read_text().splitlines():
        entry = json.loads(line)
        found.setdefault(entry["step"], {}).update(entry["data"])
    return found


def test_the_trainer_learns_and_resumes_bit_for_bit(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_conversations(tmp_path)
    whole = fit(
        load_config(folder, data, tmp_path / "whole"), tmp_path / "whole.jsonl", monkeypatch
    )
    assert sorted(whole) == list(range(1, STEPS + 1))
    assert whole[STEPS]["train/loss"] < 0.9 * whole[1]["train/loss"]
    assert whole[STEPS]["val/loss"] < whole[5]["val/loss"]
    assert whole[STEPS - 1]["train/lr"] == pytest.approx(0.001)
    leave_after_five_steps(tmp_path)
    half = fit(load_config(folder, data, tmp_path / "half"), tmp_path / "half.jsonl", monkeypatch)
    assert sorted(half) == list(range(6, STEPS + 1))
    for step, metrics in half.items():
        for name in ("train/loss", "train/grad_norm", "train/lr"):
            assert metrics[name] == whole[step][name]


def leave_after_five_steps(folder: Path) -> None:
    """Copy the whole run as it was after five steps."""
    shutil.copytree(folder / "whole", folder / "half")
    for left in (folder / "half").glob("*10"):
        shutil.rmtree(left)
    (folder / "half" / "latest_checkpointed_iteration.txt").write_text("5")


def load_fsdp_config(folder: Path, data: Path, checkpoints: Path) -> Any:
    """The same training with verl's own engine."""
    import verl.trainer.config
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    fp32 = "{param_dtype: fp32, reduce_dtype: fp32, buffer_dtype: fp32}"
    with initialize_config_dir(str(Path(verl.trainer.config.__file__).parent), version_base=None):
        theirs = compose(
            "sft_trainer_engine",
            [
                *("engine=fsdp", "optim=fsdp", "engine.strategy=fsdp2", "optim.lr=0.01"),
                *("engine.use_torch_compile=false", "engine.model_dtype=fp32"),
                *("engine.dtype=float32", f"+engine.mixed_precision={fp32}"),
                *(f"model.path={folder}", "model.use_remove_padding=false"),
                "model.enable_gradient_checkpointing=false",
                "+model.override_config.attn_implementation=eager",
            ],
        )
    config = load_config(folder, data, checkpoints)
    OmegaConf.set_struct(config, False)
    config.engine, config.optim, config.model = theirs.engine, theirs.optim, theirs.model
    return config


@pytest.mark.parametrize("load", [load_config, load_fsdp_config])
def test_after_an_epoch_verl_resumes_with_other_data_unless_the_loaders_state_is_deleted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: Any
) -> None:
    """verl restores a data loader that has ended, and so skips an epoch, with its own engine too.
    Without that state the steps are those of the uninterrupted run, as the page says."""
    data = write_conversations(tmp_path, 20)
    whole = fit(load(folder, data, tmp_path / "whole"), tmp_path / "whole.jsonl", monkeypatch)
    leave_after_five_steps(tmp_path)
    skipped = fit(load(folder, data, tmp_path / "half"), tmp_path / "skipped.jsonl", monkeypatch)
    assert skipped[6]["train/loss"] != whole[6]["train/loss"]
    shutil.rmtree(tmp_path / "half")
    leave_after_five_steps(tmp_path)
    (tmp_path / "half" / "global_step_5" / "data_0.pt").unlink()
    half = fit(load(folder, data, tmp_path / "half"), tmp_path / "half.jsonl", monkeypatch)
    assert sorted(half) == list(range(6, STEPS + 1))
    for step, metrics in half.items():
        for name in ("train/loss", "train/grad_norm", "train/lr"):
            assert metrics[name] == whole[step][name]
