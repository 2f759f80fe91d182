"""Hostile text in every text field of every section, and everything that the text reaches.

A field takes the text or refuses it with a problem. If it takes it, the resolved recipe holds it
unchanged, and no line of a script, no argument and no printed line is more than it was.
"""

from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

import pytest
import yaml
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.test_hostile import text_fields, with_value
from titanrun.config.control_characters import CONTROL_BUT_LAYOUT
from titanrun.config.diagnostics import render_problems
from titanrun.config.interpolate import escape_references
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.config.serialize import to_yaml
from titanrun.config.type_introspection import find_item_type
from titanrun.launch.config import LocalLaunchConfig, SlurmLaunchConfig
from titanrun.launch.kubernetes.config import KubernetesLaunchConfig
from titanrun.launch.kubernetes.job_objects import build_objects, format_objects
from titanrun.launch.multi_node import build_torchrun_arguments
from titanrun.launch.skypilot.config import SkyPilotLaunchConfig
from titanrun.launch.skypilot.task_file import build_task, format_task
from titanrun.launch.slurm_launcher import build_run_script
from titanrun.recipe.consent.recipe_code import find_recipe_code
from titanrun.recipe.resolving.resolve import Resolved, load_resolved_text, resolve_recipe
from titanrun.recipe.rundir.run_directory import choose_new_folder

BASE = {
    "version": 1,
    "model": {"name": "llama3", "flavor": "debugmodel"},
    "training": {"dataset": "tiny"},
}
TEXTS = [
    "a\ntouch /tmp/hostile",
    "a\r\nb",
    "'\"; $(touch /tmp/hostile) `id` #",
    "\x1b]0;x\x07\x1b[2J",
    "a\0b",
    "\u202eabc\u2066\u200f",
    "x" * 10_240,
    "--wrap=id",
    "\x85\u2028\ufeff",
]
HOSTILE = st.sampled_from(TEXTS) | st.lists(st.sampled_from(TEXTS), min_size=2, max_size=2).map(
    "".join
)
FIELDS = text_fields()
SCRIPTS = {"setup", "run"}


def test_the_fields_are_many() -> None:
    assert len(FIELDS) > 80


def check_printed(problems: tuple[Problem, ...]) -> None:
    """No format of the problems has a control character, and only text has several lines each."""
    for output_format in ("text", "github"):
        told = render_problems(problems, output_format=output_format)  # type: ignore[arg-type]
        assert CONTROL_BUT_LAYOUT.search(told) is None, (output_format, told)
        if output_format == "github":
            assert len(told.splitlines()) == len(problems)


def check_run(resolved: Resolved) -> None:
    """What a run that takes the text writes, starts and prints."""
    run = resolved.run
    assert load_resolved_text(resolved.text) == run
    assert CONTROL_BUT_LAYOUT.search(resolved.text) is None or "\u202e" in resolved.text
    name = str(run.name)
    folder = choose_new_folder(Path("runs"), name, datetime.now(UTC))
    assert folder.parent == Path("runs") and folder.name.isprintable() and " " not in folder.name
    for code in find_recipe_code(run, Path("/")):
        assert code.text.isprintable()
    launch = run.launch
    if isinstance(launch, LocalLaunchConfig):
        assert not any("\0" in word for word in build_torchrun_arguments(launch, "logs", 1))
        launch = SlurmLaunchConfig()
    if isinstance(launch, KubernetesLaunchConfig):
        where = PurePosixPath("/runs/a")
        try:
            objects = build_objects(launch, name="a", resolved=resolved.text, folder=where)
        except ProblemsFound as found:
            check_printed(found.problems)
            return
        # whatever the texts are, they are values: a YAML reader finds the same objects
        assert [*yaml.safe_load_all(format_objects(objects))] == objects
        return
    if isinstance(launch, SkyPilotLaunchConfig):
        task = build_task(launch, name="a", recipe="a.yaml", folder=PurePosixPath("/runs/a"))
        read = yaml.safe_load(format_task(task))
        assert {
            **read,
            **{key: read[key].removesuffix("\n") for key in SCRIPTS & set(read)},
        } == task
        return
    assert isinstance(launch, SlurmLaunchConfig)
    script = build_run_script(launch, folder, name=name, folder=Path("/work"))
    plain = build_run_script(SlurmLaunchConfig(), folder, name="n", folder=Path("/work"))
    own = len(launch.setup) + len(launch.options) + 8
    assert len(script.split("\n")) <= len(plain.split("\n")) + own


each_field = pytest.mark.parametrize(
    "number", range(len(FIELDS)), ids=lambda n: ".".join(map(str, FIELDS[n].path))
)


@each_field
def test_hostile_text_stays_text(number: int, tmp_path: Path) -> None:
    check_field(number, tmp_path, examples=3)


@pytest.mark.slow
@each_field
def test_many_hostile_texts_stay_texts(number: int, tmp_path: Path) -> None:
    check_field(number, tmp_path, examples=12)


def check_field(number: int, folder: Path, *, examples: int) -> None:
    """No text that a field may hold is more than a text, wherever it goes."""
    spot = FIELDS[number]
    many = find_item_type(spot.holder.model_fields[spot.path[-1]].annotation) is not None
    file = folder / "recipe.yaml"

    # each field meets other texts
    @seed(number)
    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(HOSTILE)
    def stays_text(text: str) -> None:
        value = escape_references([text] if many else text)
        data = {**BASE, **with_value(spot.recipe_example, spot.path, value)}
        file.write_text(to_yaml(data), encoding="utf-8", newline="")
        try:
            resolved = resolve_recipe(str(file), environment={})
        except ProblemsFound as found:
            check_printed(found.problems)
            return
        check_printed(resolved.warnings)
        check_run(resolved)

    stays_text()
