"""Config dumps of torchtitan: the release's, and the layouts of the versions after it."""

import json
from pathlib import Path
from typing import Any

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.migrate.migration import Migration, migrate_file
from titanrun.recipe.migrate.migration_plan import SAME
from titanrun.recipe.migrate.migration_report import format_migration_report
from titanrun.recipe.migrate.torchtitan import TORCHTITAN
from titanrun.recipe.migrate.torchtitan_table import TORCHTITAN_KEYS

DUMPS = Path(__file__).parent / "dumps"


def migrated(data: Any, folder: Path) -> Migration:
    file = folder / "config.json"
    file.write_text(data if isinstance(data, str) else json.dumps(data, indent=2), encoding="utf-8")
    return migrate_file(str(file), TORCHTITAN, recipe_name="recipe.yaml", header_lines=())


def fates(migration: Migration) -> dict[str, tuple[str, str]]:
    return {
        item.entry.written_path: (item.outcome, item.words)
        for item in migration.items
        if item.entry
    }


def lines(migration: Migration) -> set[str]:
    return set(migration.text.splitlines())


def test_a_dump_of_the_release_is_what_its_defaults_are(tmp_path: Path) -> None:
    nested: dict[str, Any] = {}
    for key in TORCHTITAN_KEYS:
        holder = nested
        *sections, last = key.path.split(".")
        for section in sections:
            holder = holder.setdefault(section, {})
        holder[last] = key.default
    dumped = migrated(nested, tmp_path)
    (tmp_path / "empty.toml").write_text("", encoding="utf-8")
    empty = migrate_file(
        str(tmp_path / "empty.toml"), TORCHTITAN, recipe_name="recipe.yaml", header_lines=()
    )
    values = [line for line in dumped.text.splitlines() if line and "#" not in line]
    assert values == [line for line in empty.text.splitlines() if line]
    assert len(fates(dumped)) == len(TORCHTITAN_KEYS)


def test_a_dump_of_the_dataclasses_is_brought_back_to_the_release() -> None:
    migration = migrate_file(
        str(DUMPS / "dataclasses.json"), TORCHTITAN, recipe_name="recipe.yaml", header_lines=()
    )
    found = fates(migration)
    assert found["model_spec"] == (
        "refused",
        "this dump does not name the model: add model.name and model.flavor",
    )
    assert found["model_converters.converters[1]"] == (
        "refused",
        "the dump does not name this converter",
    )
    assert found["model_converters.converters"][1] in (
        "",
        "converter float8_linear is not built in this version",
    )
    assert found["validator.dataloader.infinite"][0] == "unread"
    assert found["parallelism.tensor_parallel_degree"] == ("mapped", SAME)
    wanted = {
        "dump_folder: ./outputs/first",
        "  lr: 0.0003",
        "  interval: 250",
        "  seed: 5",
        "  freq: 100",
        "  print_config: true",
    }
    assert {line.replace('"', "") for line in lines(migration)} >= wanted
    assert "tensor_parallel_degree" not in migration.text
    assert "keys with titanrun's default value" in format_migration_report(
        migration, "dataclasses.json"
    )


def test_a_dump_of_later_versions_is_brought_back_to_the_release() -> None:
    migration = migrate_file(
        str(DUMPS / "head.json"), TORCHTITAN, recipe_name="recipe.yaml", header_lines=()
    )
    found = fates(migration)
    wanted = {
        "  flavor: debugmodel",
        "  lr: 0.001",
        "  beta2: 0.99",
        "  weight_decay: 0.05",
        "  implementation: foreach",
    }
    assert lines(migration) >= wanted | {
        "  seq_len: 1024",
        "  local_batch_size: 4",
        "  global_batch_size: 16",
        "  steps: 20",
    }
    assert found["model_spec.model"] == ("unread", "left out: the flavor determines all sizes")
    tokens = found["training.num_tokens_per_microbatch_per_dp_rank"]
    assert tokens == (
        "changed",
        "4,096 tokens are 4 sequences of 1,024 tokens, no longer packed across sequences",
    )
    assert found["dataloader.seed"][0] == "unread"
    shown = format_migration_report(migration, "head.json")
    assert "training.num_tokens_per_train_step = 16384 -> training.global_batch_size: 16\n" in shown
    assert 'model_spec.name = "llama3" -> model.name: llama3\n' in shown
    assert "#parallelism" not in migration.text
    assert "converters[0]" in "".join(found)
    assert "shuffle: false" in migration.text


@pytest.mark.parametrize(
    ("changes", "written", "words"),
    [
        (
            {
                "training": {
                    "num_tokens_per_microbatch_per_dp_rank": 1000,
                    "max_context_length": 300,
                }
            },
            "training.num",
            "not a whole number of sequences",
        ),
        (
            {"optimizer": {"param_groups": [{"pattern": "a"}, {"pattern": ".*"}]}},
            "optimizer.param_groups",
            "parameter groups",
        ),
        (
            {"activation_checkpoint": {"preserve_rng_state": True}},
            "activation_checkpoint",
            "full or none",
        ),
        ({"loss": {"mtp_scale": 0.3}}, "loss", "multi-token prediction"),
        ({"debug": {"batch_invariant": True}}, "debug.batch_invariant", "rejects it"),
        (
            {"model_converters": {"converters": [{"wheels": 4}]}},
            "model_converters.converters[0]",
            "does not name this converter",
        ),
    ],
)
def test_what_a_dump_says_and_nobody_can_carry_over_is_refused(
    changes: Any, written: str, words: str, tmp_path: Path
) -> None:
    migration = migrated(
        {"model_spec": {"name": "llama3", "flavor": "debugmodel"}, **changes}, tmp_path
    )
    refused = [
        text
        for key, (fate, text) in fates(migration).items()
        if key.startswith(written) and fate == "refused"
    ]
    assert len(refused) == 1
    assert words in refused[0]


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ('{"a": 1,\n "b": }', "syntax", 2),
        ("[1]", "wrong-type", 1),
        ("[" * 3000, "limit", 1),
        ('{"a": 1, "a": 2}', "duplicate-key", 1),
    ],
)
def test_a_file_that_is_no_dump_is_a_located_problem(
    text: str, code: str, line: int, tmp_path: Path
) -> None:
    with pytest.raises(ProblemsFound) as caught:
        migrated(text, tmp_path)
    (problem,) = caught.value.problems
    assert problem.origin is not None
    assert (problem.code, problem.origin.line) == (code, line)
