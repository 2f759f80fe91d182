"""`titanrun migrate FILE`: former names of keys, in a plug-in that has some, are replaced and
nothing else is."""

import os
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

Run = Callable[..., CompletedProcess[str]]
RENAMING = '''
from typing import ClassVar, Literal

from titanrun.components.optimizers.config import OptimizerConfig
from titanrun.config.fields import numerics

PLUGIN_API = 1


class RenamingConfig(OptimizerConfig):
    """An optimizer whose fields had other names."""

    name: Literal["renaming"] = numerics("renaming")
    builds: ClassVar = "renaming:build"
    rate: float = numerics(0.1, was=("speed",))
    """Learning rate."""
    beta: float = numerics(0.9, was=("b",))
    """Momentum."""
'''
YAML = """\
# a recipe with comments
version: 1
plugins: [renaming]
model: {name: llama3, flavor: debugmodel}
optimizer:
  name: renaming
  # how fast
  "speed":   0.5   # very
  b: 0.8
training: {dataset: tiny, steps: 5, seq_len: 64}
"""
TOML = """\
# a recipe with comments
version = 1
plugins = ["renaming"]
model = { name = "llama3", flavor = "debugmodel" }
optimizer.name = "renaming"
optimizer . speed =   0.5 # very
training = { dataset = "tiny", steps = 5, seq_len = 64 }
"""


@pytest.fixture
def renaming(tmp_path: Path) -> dict[str, str]:
    """An environment in which a plug-in with that optimizer is installed."""
    (tmp_path / "renaming.py").write_text(RENAMING, encoding="utf-8")
    info = tmp_path / "renaming-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: renaming\nVersion: 1\n", encoding="utf-8"
    )
    (info / "entry_points.txt").write_text(
        "[titanrun.plugins]\nrenaming = renaming\n", encoding="utf-8"
    )
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    }


def test_a_recipe_without_former_names_is_version_1_already(titanrun: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("version: 1\nmodel: llama3\n", encoding="utf-8")
    (tmp_path / "part.yaml").write_text("training: {steps: 5}\n", encoding="utf-8")
    for name in ("mine.yaml", "part.yaml"):
        for option in ([], ["--check"], ["--write"]):
            done = titanrun("migrate", name, *option)
            assert (done.returncode, done.stdout, done.stderr) == (
                0,
                "",
                f"{name}: already version 1\n",
            )


@pytest.mark.parametrize("option", [["--check"], ["--write"]])
def test_a_configuration_of_torchtitan_is_not_taken_for_a_recipe(
    titanrun: Run, tmp_path: Path, option: list[str]
) -> None:
    (tmp_path / "theirs.toml").write_text(
        '[job]\ndump_folder = "./outputs"\n[model]\nname = "llama3"\n', encoding="utf-8"
    )
    done = titanrun("migrate", "theirs.toml", *option)
    assert (done.returncode, done.stdout) == (2, "")
    assert "it looks like a configuration of torchtitan" in done.stderr
    assert "titanrun migrate --from torchtitan theirs.toml" in done.stderr


def test_a_configuration_of_another_program_is_known_by_its_keys(
    titanrun: Run, tmp_path: Path
) -> None:
    (tmp_path / "theirs.toml").write_text(
        '[job]\ndescription = "x"\n[training]\ndataset = "tiny"\n', encoding="utf-8"
    )
    tune = "seed: 1\noptimizer: {_component_: torch.optim.SGD, lr: 1.0, magic: 2}\n"
    (tmp_path / "theirs.yaml").write_text(tune, encoding="utf-8")
    (tmp_path / "llama.yml").write_text("base_model: ./weights\nseed: 4\n", encoding="utf-8")
    for name, program, code in (
        ("theirs.toml", "torchtitan", 0),
        ("llama.yml", "axolotl", 1),
        ("theirs.yaml", "torchtune", 1),
    ):
        done = titanrun("migrate", name)
        assert (done.returncode, done.stdout.splitlines()[0]) == (
            code,
            f"# Migrated from {program}'s {name} by titanrun migrate.",
        )
        assert done.stderr.startswith(f"{name}: a configuration of {program}\n")
        assert titanrun("migrate", "--from", program, name).stdout == done.stdout
        # without -o there is no file to validate
        assert "next:" not in done.stderr
        written = titanrun("migrate", name, "-o", f"{program}.yaml")
        last = f"next: titanrun validate {program}.yaml --level environment"
        assert (written.returncode, written.stderr.splitlines()[-1]) == (code, last)
    assert "torchtune has no such key" in done.stderr
    assert "optimizer.magic: 2" in done.stdout
    checked = titanrun("migrate", "theirs.yaml", "--check")
    assert (
        checked.returncode,
        "titanrun migrate --from torchtune theirs.yaml" in checked.stderr,
    ) == (2, True)


def test_several_recipes_are_checked_and_updated_at_once(
    titanrun: Run, tmp_path: Path, renaming: dict[str, str]
) -> None:
    (tmp_path / "new.yaml").write_text("version: 1\nmodel: llama3\n", encoding="utf-8")
    (tmp_path / "old.yaml").write_text(YAML, encoding="utf-8")
    (tmp_path / "old.toml").write_text(TOML, encoding="utf-8")
    (tmp_path / "future.yaml").write_text("version: 2\n", encoding="utf-8")
    names = ("new.yaml", "old.yaml", "old.toml")
    checked = titanrun("migrate", "--check", *names, env=renaming)
    assert checked.returncode == 1
    assert [name for name in names if f"--> {name}:" in checked.stderr] == ["old.yaml", "old.toml"]
    mixed = titanrun("migrate", "--check", "future.yaml", *names, env=renaming)
    assert mixed.returncode == 2
    assert "this recipe has version 2" in mixed.stderr and "--> old.toml:" in mixed.stderr
    assert titanrun("migrate", "--write", *names, env=renaming).returncode == 0
    assert titanrun("migrate", "--check", "--quiet", *names, env=renaming).returncode == 0


def test_configurations_of_other_programs_are_converted_alone(
    titanrun: Run, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text("version: 1\nmodel: llama3\n", encoding="utf-8")
    (tmp_path / "llama.yml").write_text("base_model: ./weights\nseed: 4\n", encoding="utf-8")
    done = titanrun("migrate", "mine.yaml", "llama.yml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "a configuration of axolotl is converted alone" in done.stderr


def test_a_recipe_from_the_future_is_an_error(titanrun: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("version: 2\nmodel: llama3\n", encoding="utf-8")
    done = titanrun("migrate", "mine.yaml", "--write")
    assert done.returncode == 2
    assert done.stderr.startswith("error[version]: this recipe has version 2")
    assert "mine.yaml:1:10" in done.stderr


def test_former_names_are_read_with_a_warning(
    titanrun: Run, tmp_path: Path, renaming: dict[str, str]
) -> None:
    (tmp_path / "mine.yaml").write_text(YAML, encoding="utf-8")
    done = titanrun("validate", "mine.yaml", env=renaming)
    assert done.returncode == 0
    assert (
        "warning[deprecated]: 'speed' was renamed to 'rate'\n --> mine.yaml:8:3  (optimizer.rate)"
        in done.stderr
    )
    assert "write 'rate'; titanrun migrate FILE --write does it" in done.stderr
    assert titanrun("show", "mine.yaml", "optimizer.rate", env=renaming).stdout == "0.5\n"
    assert (
        titanrun("show", "mine.yaml", "optimizer.beta", "optimizer.b=0.7", env=renaming).stdout
        == "0.7\n"
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [("mine.yaml", YAML), ("mine.toml", TOML), ("crlf.yaml", YAML.replace("\n", "\r\n"))],
)
def test_write_changes_the_keys_and_not_a_byte_more(
    name: str, text: str, titanrun: Run, tmp_path: Path, renaming: dict[str, str]
) -> None:
    before = b"\xef\xbb\xbf" + text.encode()
    (tmp_path / name).write_bytes(before)
    checked = titanrun("migrate", name, "--check", env=renaming)
    assert (checked.returncode, checked.stdout) == (1, "")
    assert "warning[deprecated]" in checked.stderr
    assert (tmp_path / name).read_bytes() == before
    done = titanrun("migrate", name, "--write", env=renaming)
    assert done.returncode == 0, done.stderr
    after = (
        before.replace(b'"speed"', b'"rate"')
        .replace(b". speed", b". rate")
        .replace(b"  b:", b"  beta:")
    )
    assert (tmp_path / name).read_bytes() == after
    assert titanrun("validate", name, "--strict", env=renaming).returncode == 0


def test_validate_fix_renames_too(titanrun: Run, tmp_path: Path, renaming: dict[str, str]) -> None:
    (tmp_path / "mine.yaml").write_text(YAML, encoding="utf-8")
    assert titanrun("validate", "mine.yaml", "--fix", env=renaming).returncode == 0
    assert titanrun("validate", "mine.yaml", "--strict", env=renaming).returncode == 0


def test_without_an_option_the_change_is_shown_as_a_patch(
    titanrun: Run, tmp_path: Path, renaming: dict[str, str]
) -> None:
    (tmp_path / "mine.yaml").write_text(YAML, encoding="utf-8")
    done = titanrun("migrate", "mine.yaml", env=renaming)
    assert done.returncode == 0
    assert (
        '-  "speed":   0.5   # very\n-  b: 0.8\n+  "rate":   0.5   # very\n+  beta: 0.8\n'
        in done.stdout
    )
    assert (tmp_path / "mine.yaml").read_text(encoding="utf-8") == YAML


def test_both_names_are_a_conflict_and_nothing_is_written(
    titanrun: Run, tmp_path: Path, renaming: dict[str, str]
) -> None:
    text = YAML.replace("  b: 0.8", "  b: 0.8\n  beta: 0.7")
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    for command in (["validate"], ["migrate", "--write"]):
        done = titanrun(*command, "mine.yaml", env=renaming)
        assert done.returncode == 2
        assert "error[conflict]: 'b' is the former name of 'beta', but both are set" in done.stderr
    assert (tmp_path / "mine.yaml").read_text(encoding="utf-8") == text


def test_the_component_may_be_named_in_another_file(
    titanrun: Run, tmp_path: Path, renaming: dict[str, str]
) -> None:
    (tmp_path / "base.yaml").write_text(
        YAML.replace('"speed":   0.5', "rate: 0.5").replace("  b:", "  beta:"), encoding="utf-8"
    )
    (tmp_path / "mine.yaml").write_text(
        "extends: base.yaml\nplugins: [renaming]\noptimizer: {speed: 0.3}\n", encoding="utf-8"
    )
    done = titanrun("migrate", "mine.yaml", "--write", env=renaming)
    assert (done.returncode, done.stderr) == (
        0,
        "mine.yaml:3:13: 'speed' was renamed to 'rate': changed\n",
    )
    assert "optimizer: {rate: 0.3}" in (tmp_path / "mine.yaml").read_text(encoding="utf-8")


def test_a_key_that_several_places_share_is_not_renamed_in_one_of_them(
    titanrun: Run, tmp_path: Path, renaming: dict[str, str]
) -> None:
    text = YAML.replace(
        "optimizer:\n  name: renaming\n",
        "x-shared: &shared\n  speed: 0.2\noptimizer:\n  <<: *shared\n  name: renaming\n",
    )
    text = (
        text.replace('  "speed":   0.5   # very\n', "").replace("  b: 0.8\n", "")
        + "x-more: {<<: *shared}\n"
    )
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    done = titanrun("migrate", "mine.yaml", "--write", env=renaming)
    assert done.returncode == 2
    assert (
        "error[deprecated]: this key cannot be renamed without changing something else"
        in done.stderr
    )
    assert (tmp_path / "mine.yaml").read_text(encoding="utf-8") == text
