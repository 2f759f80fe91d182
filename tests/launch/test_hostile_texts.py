"""No text of a launch section reaches a batch script or a command line as more than a word or line.

Row B1 of the defect list: a newline in `name`, `partition`, `account`, `qos` or `dump_folder` ended
an `#SBATCH` line, and bash ran the next one.
"""

import shlex
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from titanrun.config.problems import ProblemsFound
from titanrun.config.type_introspection import find_item_type, unwrap_annotation
from titanrun.launch.config import LocalLaunchConfig, SlurmLaunchConfig
from titanrun.launch.multi_node import build_torchrun_arguments
from titanrun.launch.slurm_launcher import build_run_script, build_sweep_script
from titanrun.recipe.recipe import Recipe

PIECES = ["\n", "\r", "\0", "\x1b[31m", "'", '"', "$(touch x)", "`id`", ";", " ", "\\", "a", "-"]
PIECES += ["\u2028", "\u202e", "\x85", "%j", "#", "=", "é", "x" * 10_000]
HOSTILE = st.lists(st.sampled_from(PIECES), max_size=4).map("".join) | st.text(max_size=20)
TEXT_FIELDS = [
    (config, name)
    for config in (SlurmLaunchConfig, LocalLaunchConfig)
    for name, field in config.model_fields.items()
    if name != "name"
    and str in (find_item_type(field.annotation), unwrap_annotation(field.annotation))
]
PLAIN = build_run_script(
    SlurmLaunchConfig(partition="p", account="a", qos="q"), Path("runs/r"), name="n", folder=Path()
)


def test_the_text_fields_of_both_launchers_are_the_ones_tried() -> None:
    assert {name for _, name in TEXT_FIELDS} >= {
        *("partition", "account", "qos", "options", "setup", "rdzv_id", "rdzv_endpoint")
    }


@pytest.mark.parametrize(("config", "name"), TEXT_FIELDS)
@given(text=HOSTILE)
@example(text="p\ntouch /tmp/x")
@example(text="-x")
def test_a_text_of_the_section_stays_a_word_or_a_line(config: type, name: str, text: str) -> None:
    is_list = find_item_type(config.model_fields[name].annotation) is not None
    try:
        made = config.model_validate({name: [text] if is_list else text})
    except ValidationError:
        return
    if isinstance(made, LocalLaunchConfig):
        arguments = build_torchrun_arguments(made, "logs", 2)
        assert not any("\0" in argument or "\n" in argument for argument in arguments)
        assert not any(value.startswith("-") for value in arguments[1::2])
        return
    plain = build_run_script(SlurmLaunchConfig(), Path("runs/r"), name="n", folder=Path())
    lines = build_run_script(made, Path("runs/r"), name="n", folder=Path()).splitlines()
    added = [line for line in lines if line not in plain.splitlines()]
    assert len(added) == 1 and "\0" not in added[0] and "\x1b" not in added[0]
    if not is_list:
        (word,) = shlex.split(added[0].removeprefix("#SBATCH "))
        assert word.endswith(f"={text}") and not word.startswith("--wrap")


@given(text=HOSTILE)
@example(text="x\ntouch /tmp/x")
def test_names_and_folders_never_become_lines_of_their_own(text: str) -> None:
    """The name may be a file's, and the folder the one where the command runs."""
    for name, run, folder in ((text, "r", "/w"), ("n", text, "/w"), ("n", "r", f"/{text}")):
        try:
            script = build_run_script(
                SlurmLaunchConfig(), Path(run), name=name, folder=Path(folder)
            )
            sweep = build_sweep_script(
                SlurmLaunchConfig(),
                [Path(run)],
                name=name,
                folder=Path(folder),
                sweep=Path(run),
                slots=1,
            )
        except ProblemsFound as found:
            assert "it has a control character" in found.problems[0].message
            continue
        for text_of_script in (script, sweep):
            head = text_of_script.split("\n# rendezvous")[0].split("\n")
            assert all(line.startswith("#") or not line for line in head), head


@given(text=HOSTILE)
@example(text="x\ntouch /tmp/x")
@pytest.mark.parametrize("name", ["name", "dump_folder"])
def test_the_name_and_folder_of_a_run_are_one_line(name: str, text: str) -> None:
    field = Recipe.model_fields[name]
    adapter = TypeAdapter(field.annotation)
    if any(character in text for character in "\n\r\0\x1b\x85\u2028\u202e"):
        with pytest.raises(ValidationError):
            adapter.validate_python(text)
