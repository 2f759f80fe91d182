"""Each tracker against the library it writes for, without a network."""

import csv
import json
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from titanrun.components.metrics.async_tracker import AsyncTracker
from titanrun.components.metrics.config import (
    CsvConfig,
    MlflowConfig,
    TensorBoardConfig,
    TrackioConfig,
    WandbConfig,
)
from titanrun.components.metrics.csv_tracker import CsvTracker
from titanrun.components.metrics.metric_logger import MetricLogger
from titanrun.components.metrics.mlflow_tracker import MlflowTracker
from titanrun.components.metrics.tensorboard_tracker import TensorBoardTracker
from titanrun.components.metrics.trackio_tracker import TrackioTracker
from titanrun.components.metrics.wandb_tracker import WandbTracker
from titanrun.config.problems import ProblemsFound

sys.path.insert(0, str(Path(__file__).parent))

from log_twice import RESOLVED, TOLD, log_twice


def test_tensorboard_curves_do_not_double_after_a_resume(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log_twice(TensorBoardTracker, tmp_path, TensorBoardConfig())
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [
        (1, 1),
        (2, 1),
        (3, 2),
        (4, 2),
        (5, 2),
    ]
    texts = {
        name: events.Tensors(f"{name}/text_summary")[-1].tensor_proto.string_val[0].decode()
        for name in ("recipe", "recipe_hash")
    }
    assert texts == {
        "recipe": "    name: first\n    model:\n      dim: 32\n",
        "recipe_hash": TOLD.recipe_hash,
    }


def test_tensorboard_gets_histograms_of_counts(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = TensorBoardTracker(TensorBoardConfig(), run_dir=tmp_path, run_info=TOLD)
    logger = MetricLogger(
        trackers={
            "board": AsyncTracker(tracker),
            # takes none
            "table": AsyncTracker(CsvTracker(CsvConfig(), run_dir=tmp_path, run_info=TOLD)),
        }
    )
    logger.log_histogram(3, "experts", [4, 0, 7])
    logger.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (event,) = events.Histograms("experts")
    found = event.histogram_value
    assert (event.step, found.num, found.sum) == (3, 11, 14)
    by_limit = dict(zip(found.bucket_limit, found.bucket, strict=True))
    assert (by_limit[1.0], by_limit[3.0]) == (4, 7)


@pytest.mark.parametrize(
    ("tracker", "config"), [(TensorBoardTracker, TensorBoardConfig()), (CsvTracker, CsvConfig())]
)
def test_a_run_that_logs_nothing_leaves_no_file(tracker: Any, config: Any, tmp_path: Path) -> None:
    tracker(config, run_dir=tmp_path, run_info=TOLD).close()
    assert list(tmp_path.iterdir()) == []


PACKAGES = [
    (TensorBoardTracker, TensorBoardConfig(), "tensorboard", "torch.utils.tensorboard"),
    (WandbTracker, WandbConfig(), "wandb", "wandb"),
    (MlflowTracker, MlflowConfig(), "mlflow", "mlflow"),
    (TrackioTracker, TrackioConfig(), "trackio", "trackio"),
]


@pytest.mark.parametrize(
    ("tracker", "config", "name", "module"), PACKAGES, ids=[row[2] for row in PACKAGES]
)
def test_a_missing_package_is_a_problem_with_the_install_line(
    tracker: Any,
    config: Any,
    name: str,
    module: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ProblemsFound) as error:
        tracker(config, run_dir=tmp_path, run_info=TOLD)
    (problem,) = error.value.problems
    assert (problem.code, problem.path) == ("usage", ("metrics", "trackers"))
    assert problem.message == f"the tracker {name} needs a package that is not installed: {name}"
    assert problem.hint == f'pip install "titanrun[{name}]"'


def test_a_table_grows_columns_and_loses_the_steps_that_come_again(tmp_path: Path) -> None:
    first = CsvTracker(CsvConfig(), run_dir=tmp_path, run_info=TOLD)
    first.log(1, {"loss": 0.1})
    first.log(2, {"loss": 1e-17, "a,b": float("nan")})
    first.log(3, {"loss": 3.0})
    file = tmp_path / "csv" / "metrics.csv"
    with file.open("a") as opened:
        opened.write(f"4,{TOLD.recipe_hash},0.")  # torn by a crash
    second = CsvTracker(CsvConfig(), run_dir=tmp_path, run_info=TOLD)
    second.log(3, {"loss": 4.0})
    with file.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert [(row["step"], row["loss"], row["a,b"]) for row in rows] == [
        ("1", "0.1", ""),
        ("2", "1e-17", "nan"),
        ("3", "4.0", ""),
    ]
    assert {row["recipe_hash"] for row in rows} == {TOLD.recipe_hash}
    assert [path.name for path in file.parent.iterdir()] == ["metrics.csv"]


# in a process of its own, as in a run: these libraries leave threads and processes behind
CANARY = "a-cAnArY-0123456789"


def in_a_process(
    cwd: Path, tracker: str, state: str = "finished", **config: Any
) -> subprocess.CompletedProcess[str]:
    """Logs twice where the network is out of reach and a key is in the environment; both ends of
    the run are in that state."""
    command = [
        sys.executable,
        str(Path(__file__).with_name("log_twice.py")),
        tracker,
        json.dumps(config),
        state,
        CANARY,
    ]
    path = os.pathsep.join((str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")))
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "HOME": str(cwd),
        "WANDB_API_KEY": CANARY,
        "MLFLOW_TRACKING_TOKEN": CANARY,
        "no_proxy": "*",
    }
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    leaks = [
        path for path in cwd.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()
    ]
    assert leaks == []
    return done


def records(file: Path) -> Iterator[Any]:
    """The records of a file of Weights & Biases: 7 bytes of header, then blocks of 32 KiB as
    LevelDB's log has them."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        # 1 is whole, 4 the last part
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


@pytest.mark.slow
def test_wandb_gets_the_recipe_and_every_step_offline(tmp_path: Path) -> None:
    options = {
        "project": "p",
        "entity": "e",
        "group": "g",
        "tags": ["one", "two"],
        "folder": "boards",
        "mode": "offline",
    }
    done = in_a_process(tmp_path, "wandb", **options)
    assert done.stdout + done.stderr == ""
    files = sorted(
        (tmp_path / "boards" / "wandb").glob("offline-run-*/*.wandb"),
        key=lambda file: file.stat().st_mtime,
    )
    histograms: list[int] = []
    points: list[tuple[int, float]] = []
    for file in files:
        found = list(records(file))
        begun = next(record.run for record in found if record.WhichOneof("record_type") == "run")
        assert (begun.project, begun.entity, begun.run_group, list(begun.tags)) == (
            "p",
            "e",
            "g",
            ["one", "two"],
        )
        assert (begun.display_name, begun.run_id) == (
            "first",
            (tmp_path / "boards" / "run_id").read_text().strip(),
        )
        config = {item.key: json.loads(item.value_json) for item in begun.config.update}
        assert {key: config[key] for key in ("model", "converters")} == TOLD.settings
        assert config["recipe_hash"] == TOLD.recipe_hash
        lines = [
            record.history for record in found if record.WhichOneof("record_type") == "history"
        ]
        for line in lines:
            values = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in line.item
            }
            if "experts/values" in values:
                assert values["experts/values"] == [4, 0, 7]
                assert values["experts/bins"] == [0, 1, 2, 3]
                histograms.append(values["step"])
            else:
                points.append((values["step"], values["loss"]))
    assert len(files) == 2 and histograms == [4, 5]
    assert points == [(1, 1), (2, 1), (3, 1), (4, 1), (3, 2), (4, 2), (5, 2)]


def test_wandb_without_a_key_does_not_ask_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, bool]] = []

    def login(**options: bool) -> bool:
        asked.append(options)
        return False

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(login=login))
    tracker = WandbTracker(WandbConfig(), run_dir=tmp_path, run_info=TOLD)
    with pytest.raises(PermissionError, match="set WANDB_API_KEY"):
        tracker.log(1, {"loss": 1.0})
    assert asked == [{"prompt": False, "verify": False}]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["own", "named"])
def test_mlflow_gets_the_recipe_and_every_step(where: str, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    named = None if where == "own" else f"sqlite:///{tmp_path}/elsewhere.db"
    done = in_a_process(tmp_path, "mlflow", experiment="e", folder="ml", tracking_uri=named)
    assert done.stdout + done.stderr == ""
    database = tmp_path / ("ml/mlflow.db" if where == "own" else "elsewhere.db")
    client = MlflowClient(f"sqlite:///{database}")
    experiment = client.get_experiment_by_name("e")
    (found,) = client.search_runs([experiment.experiment_id])
    run_id = found.info.run_id
    assert (found.info.run_name, found.info.status) == ("first", "FINISHED")
    assert found.data.tags["recipe_hash"] == TOLD.recipe_hash
    assert found.data.params == {
        "model.dim": "32",
        "model.name": "llama3",
        "converters": '["a", "b"]',
    }
    history = client.get_metric_history(run_id, "loss")
    assert sorted((point.step, point.value) for point in history) == [
        (1, 1),
        (2, 1),
        (3, 1),
        (3, 2),
        (4, 1),
        (4, 2),
        (5, 2),
    ]
    assert found.data.metrics["loss"] == 2
    if where == "own":
        (artifact,) = (tmp_path / "ml" / "artifacts").rglob("resolved.yaml")
        assert artifact.read_text() == RESOLVED


@pytest.mark.slow
def test_trackio_gets_the_recipe_and_every_step(tmp_path: Path) -> None:
    done = in_a_process(tmp_path, "trackio", project="p", group="g", folder="tio")
    assert done.stdout == ""
    run_id = (tmp_path / "tio" / "run_id").read_text().strip()
    (database,) = (tmp_path / ".cache" / "huggingface" / "trackio").glob("p*.db")
    with closing(sqlite3.connect(database)) as connection:
        logged = connection.execute(
            "select run_name, step, metrics from metrics order by id"
        ).fetchall()
        ((config,),) = connection.execute("select config from configs").fetchall()
    assert {name for name, _, _ in logged} == {f"first-{run_id}"}
    points = [(step, json.loads(metrics)["loss"]) for _, step, metrics in logged]
    assert points == [(1, 1), (2, 1), (3, 1), (4, 1), (3, 2), (4, 2), (5, 2)]
    told = json.loads(config)
    assert ({key: told[key] for key in ("model", "converters")}, told["_Group"]) == (
        TOLD.settings,
        "g",
    )
    assert told["recipe_hash"] == TOLD.recipe_hash


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "status"), [("finished", "FINISHED"), ("preempted", "KILLED"), ("failed", "FAILED")]
)
def test_mlflow_is_told_how_the_run_ended(state: str, status: str, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    in_a_process(tmp_path, "mlflow", state=state)
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow' / 'mlflow.db'}")
    (found,) = client.search_runs([client.get_experiment_by_name("titanrun").experiment_id])
    assert found.info.status == status


@pytest.mark.slow
@pytest.mark.parametrize(("state", "code"), [("finished", 0), ("preempted", 75), ("failed", 1)])
def test_wandb_is_told_how_the_run_ended(state: str, code: int, tmp_path: Path) -> None:
    in_a_process(tmp_path, "wandb", state=state, mode="offline")
    for file in (tmp_path / "wandb" / "wandb").glob("offline-run-*/*.wandb"):
        (ended,) = [
            record.exit.exit_code
            for record in records(file)
            if record.WhichOneof("record_type") == "exit"
        ]
        assert ended == code


def test_trackio_is_asked_for_the_space_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def init(**options: Any) -> SimpleNamespace:
        asked.update(options)
        return SimpleNamespace(log=lambda values, step: None)

    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(init=init, finish=lambda: None))
    tracker = TrackioTracker(TrackioConfig(space_id="team/runs"), run_dir=tmp_path, run_info=TOLD)
    tracker.log(1, {"loss": 1.0})
    tracker.close()
    assert (asked["space_id"], asked["resume"], asked["auto_log_gpu"]) == (
        "team/runs",
        "allow",
        False,
    )
