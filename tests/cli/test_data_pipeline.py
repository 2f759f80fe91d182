"""`titanrun data build --pipeline`: what is written, and what cannot be."""

import ast
import hashlib
import json
import re
import subprocess
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from tokenizers import Tokenizer

from titanrun.cli import data as command
from titanrun.cli.data_pipeline import iter_pipeline_problems
from titanrun.cli.pipeline_source import EXECUTORS, READERS, format_pipeline
from titanrun.components.data.config import TokensDatasetConfig
from titanrun.components.data.spec.tokenizer_digest import name_tokenizer_file
from titanrun.components.data.token_dataset import build_token_dataset
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import build_tiny_tokenizer
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.worker.commands.data import ACTIONS

RECORDED = Path(__file__).parents[1] / "components" / "data" / "recorded" / "datatrove"
HOSTILE = 'q"\'\'\'"""\\\n{print(1)}#é'
RECIPE = """
version: 1
model: {name: llama3, flavor: debugmodel}
tokenizer: tiny
training:
  dataset: {name: text, path: pages}
  seq_len: 32
debug: {seed: 7}
"""
SLURM = ["launch.name=slurm", "launch.partition=cpu", "launch.time_limit=90m"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a recipe and three files."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b/a.jsonl", "c.jsonl"):
        (tmp_path / "pages" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pages" / name).write_text('{"text": "one", "title": "t"}\n')
    replies = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (tmp_path / "chat.jsonl").write_text(json.dumps({"messages": replies}))
    (tmp_path / "r.yaml").write_text(RECIPE)
    return tmp_path


def read_constants(source: str) -> dict[str, Any]:
    """The constants of a program, each a literal."""
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


def refuse(*arguments: str) -> Any:
    """The problems of a command that must write nothing."""
    before = sorted(Path().rglob("*"))
    with pytest.raises(ProblemsFound) as caught:
        command.run(["build", "r.yaml", *arguments])
    assert sorted(Path().rglob("*")) == before
    return caught.value.problems


def test_a_pipeline_holds_what_the_recipe_says(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask_in_process(line: list[str], *, input: str, **_: Any) -> CompletedProcess[str]:  # noqa: A002 - as subprocess.run
        request = json.loads(input)
        answer = {"answer": ACTIONS[request["action"]](request), "problems": []}
        return CompletedProcess(line, 0, json.dumps(answer))

    monkeypatch.setattr(subprocess, "run", ask_in_process)
    arguments = ["--executor", "slurm", "--tasks", "2", "training.dataset.add_bos=false"]
    arguments += [*SLURM, "launch.account=team"]
    assert command.run(["build", "r.yaml", "--pipeline", "out.py", *arguments]) == 0
    target, tokenizer = (Path(line) for line in capsys.readouterr().out.splitlines())
    fingerprint = build_tiny_tokenizer(TinyTokenizerConfig()).fingerprint
    assert target == folder / "out.py"
    assert tokenizer == folder / name_tokenizer_file("out", fingerprint)
    assert read_constants(target.read_text()) == {
        "RECIPE": "r.yaml",
        "FOLDER": str(folder / "pages"),
        "FILES": ["a.jsonl", "b/a.jsonl", "c.jsonl"],
        "COLUMN": "text",
        "TOKENIZER": str(tokenizer),
        "TOKENIZER_SHA256": hashlib.sha256(tokenizer.read_bytes()).hexdigest(),
        "BEGIN": [],
        "END": [["<|end_of_text|>", 2047]],
        "TASKS": 2,
        "OUTPUT": str(folder / "out_tokens"),
        "LOGS": str(folder / "out_logs"),
        "SEED": 7,
        "PARTITION": "cpu",
        "TIME": "01:30:00",
        "QOS": None,
        "SBATCH_ARGS": {"account": "team"},
    }
    text = "two words"
    plain = Tokenizer.from_file(str(TinyTokenizerConfig().folder / "tokenizer.json"))
    ids = plain.encode(text, add_special_tokens=False).ids
    assert Tokenizer.from_file(str(tokenizer)).encode(text).ids == [*ids, 2047]
    for line in ("shuffle_documents=False", "shuffle_chunk_size=None", "seed=SEED"):
        assert f"            {line},\n" in target.read_text()
    # nothing was started, and nothing is overwritten
    assert not (folder / "out_tokens").exists()
    written = target.read_bytes()
    (problem,) = refuse("--pipeline", "out.py")
    assert problem.message == "'out.py' already exists" and target.read_bytes() == written


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("suffix", READERS)
def test_text_of_a_recipe_stays_within_its_constants(suffix: str, executor: str) -> None:
    plain: dict[str, Any] = {"FILES": ["a"], "COLUMN": "text", "FOLDER": "/", "BEGIN": []}
    hostile = {"FILES": [HOSTILE, "\udcff"], "COLUMN": HOSTILE, "FOLDER": HOSTILE, "BEGIN": []}
    sources = [
        format_pipeline(values, suffix=suffix, executor=executor) for values in (plain, hostile)
    ]
    assert read_constants(sources[1]) == hostile
    trees = [ast.parse(source.encode()) for source in sources]
    code = [
        [ast.dump(node) for node in tree.body if not isinstance(node, ast.Assign)] for tree in trees
    ]
    assert code[0] == code[1] and len(code[0]) > 10
    assert len(trees[0].body) == len(trees[1].body)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--executor local", "--executor is an option of a pipeline"),
        ("--tasks 2", "--tasks is an option of a pipeline"),
        ("--pipeline q.py --workers 2", "so that --workers has no meaning"),
        ("--pipeline q.py --part 1/2", "so that --part has no meaning"),
        ("--pipeline q.py --finish", "so that --finish has no meaning"),
        ("--pipeline q.py --repair", "so that --repair has no meaning"),
        ("--pipeline q.py --executor dask", "invalid choice: 'dask'"),
        ("--pipeline q.txt", "'q.txt' is not a Python file"),
        ("--pipeline a::b.py", "datatrove would misread the path"),
        ("--pipeline $(q).py --executor slurm", "that the batch script"),
        ("--pipeline q.py --tasks 4", "--tasks is 4, and the dataset has 3 files"),
        ("--pipeline q.py --tasks 0", "--tasks is 0"),
    ],
)
def test_options_out_of_place_are_told(arguments: str, told: str) -> None:
    (problem,) = refuse(*arguments.split())
    assert problem.code == "usage" and told in problem.message


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("training.dataset=tiny", "not dataset 'tiny'"),
        ("training.dataset={name: chat, path: chat.jsonl}", "not dataset 'chat'"),
        ("training.dataset={name: mixture, sources: [{dataset: tiny}]}", "not dataset 'mixture'"),
        ("training.dataset.format='{text}'", "cannot combine columns"),
        ("training.dataset.filters=[{column: text, min_characters: 2}]", "cannot apply"),
        ("training.dataset.max_documents=2", "cannot count documents"),
        ("training.dataset.bad_records=skip", "cannot count skipped records"),
    ],
)
def test_a_dataset_that_a_pipeline_cannot_express_is_located(override: str, told: str) -> None:
    (problem,) = refuse("--pipeline", "q.py", override)
    assert problem.code == "usage" and told in problem.message
    assert problem.origin is not None and problem.hint


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ([], "needs the partition, and launch is 'local'"),
        ([SLURM[0], SLURM[1]], "needs launch.time_limit"),
        ([SLURM[0], SLURM[2]], "needs launch.partition"),
    ],
)
def test_slurm_needs_a_partition_and_a_time_limit(overrides: list[str], told: str) -> None:
    (problem,) = refuse("--pipeline", "q.py", "--executor", "slurm", *overrides)
    assert told in problem.message and problem.path[0] == "launch" and problem.origin is not None


def test_held_out_documents_are_located() -> None:
    (problem,) = refuse("--pipeline", "q.py", "validation.enable=true", "validation.holdout=0.5")
    assert problem.path == ("validation", "holdout") and problem.origin is not None


def test_a_stream_of_addresses_is_located(folder: Path) -> None:
    (folder / "r.yaml").write_text(
        RECIPE.replace("path: pages", "path: 'https://localhost:1/a.jsonl', streaming: true")
    )
    # the command itself asks the address first
    recipe = resolve_recipe("r.yaml", [], environment={}).run
    (problem,) = iter_pipeline_problems(recipe)
    assert "not 'https://localhost:1/a.jsonl'" in problem.message
    assert problem.path == ("training", "dataset", "path")


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["d.csv"], "files of several formats: .csv and .jsonl"),
        (["../other/d.txt"], "does not read .txt files"),
        (["../other/x::y/d.csv"], "'::' in its path"),
    ],
)
def test_files_that_datatrove_cannot_read_are_located(names: list[str], told: str) -> None:
    for name in names:
        file = Path("pages", name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("text\none\n")
    override = ["training.dataset.path=other"] if Path("other").exists() else []
    (problem,) = refuse("--pipeline", "q.py", *override)
    assert told in problem.message and problem.path[-1] == "path" and problem.origin is not None


def test_tokens_of_another_tokenizer_are_refused(folder: Path) -> None:
    tokenizer = build_tiny_tokenizer(TinyTokenizerConfig())
    config = TokensDatasetConfig(path=str(folder / "tokens"), layout="datatrove")

    def open_tokens(fingerprint: str) -> int:
        (folder / "tokens").mkdir(exist_ok=True)
        for file in RECORDED.iterdir():
            (folder / "tokens" / file.name).write_bytes(file.read_bytes())
            if file.suffix == ".metadata":
                name = name_tokenizer_file("/x/out", fingerprint)
                written = re.sub(r"^.*\|", f"{name}|", file.read_text(), count=1)
                (folder / "tokens" / file.name).write_text(written)
        return len(build_token_dataset(config, sample_length=33, tokenizer=tokenizer))

    assert open_tokens(tokenizer.fingerprint) > 10
    with pytest.raises(ProblemsFound) as caught:
        open_tokens("0" * 64)
    (problem,) = caught.value.problems
    assert "000000000000" in problem.message and problem.path == ("path",)


def test_the_file_of_the_tokenizer_adds_both_tokens() -> None:
    request = {"resolved": resolve_recipe("r.yaml", [], environment={}).text}
    answer = json.loads(json.dumps(ACTIONS["tokenizer"](request)))
    assert answer["begin"] == [["<|begin_of_text|>", 2046]]
    assert Tokenizer.from_str(answer["tokenizer"]).encode("").ids == [2046, 2047]
