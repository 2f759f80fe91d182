"""`titanrun migrate --from torchtitan` as its users run it."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

Run = Callable[..., CompletedProcess[str]]
SOUND = """\
# my first run

[training]
dataset = "tiny"
steps = 20   # short
[activation_checkpoint]
mode = "none"
[lr_scheduler]
warmup_steps = 2
"""


def test_the_recipe_goes_to_stdout_and_the_report_to_stderr(titanrun: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SOUND, encoding="utf-8")
    done = titanrun("migrate", "--from", "torchtitan", "mine.toml")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "# Migrated from torchtitan's mine.toml by titanrun migrate.\n# my first run\nversion: 1\n"
    )
    assert done.stderr.startswith(
        "mine.toml: 4 keys: 4 mapped, 0 changed in meaning, 0 left out, 0 refused; "
        "2 defaults changed in meaning\n"
    )
    (tmp_path / "mine.yaml").write_text(done.stdout, encoding="utf-8")
    validated = titanrun("validate", "mine.yaml", "--strict")
    assert (validated.returncode, validated.stderr) == (
        0,
        "mine.yaml: ok\nnext: titanrun train mine.yaml\n",
    )


def test_output_names_a_new_file_that_an_editor_understands(titanrun: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SOUND, encoding="utf-8")
    words = ("migrate", "--from", "torchtitan", "mine.toml", "-q", "-o", "mine.yaml")
    done = titanrun(*words)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    before = (tmp_path / "mine.yaml").read_text(encoding="utf-8")
    assert before.startswith("# yaml-language-server: $schema=")
    again = titanrun(*words)
    assert again.returncode == 2
    assert "'mine.yaml' already exists" in again.stderr
    assert (tmp_path / "mine.yaml").read_text(encoding="utf-8") == before


def test_a_refused_key_exits_1_and_trouble_exits_2(titanrun: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SOUND + "[mine]\nown = 1\n", encoding="utf-8")
    (tmp_path / "broken.toml").write_text("a =\n", encoding="utf-8")
    refused = titanrun("migrate", "--from", "torchtitan", "mine.toml", "-q")
    assert (refused.returncode, refused.stderr) == (
        1,
        "mine.toml: torchtitan has no such key:\nmine.toml:   line 11: mine.own = 1\n",
    )
    for words in (
        ["broken.toml"],
        ["nowhere.toml"],
        ["mine.yaml"],
        ["mine.toml", "-o", "mine.toml"],
        ["mine.toml", "--write"],
    ):
        done = titanrun("migrate", "--from", "torchtitan", *words)
        assert (done.returncode, done.stdout, done.stderr.startswith("error[")) == (2, "", True), (
            words
        )
