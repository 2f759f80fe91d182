"""Files made to hang, to fill the memory, or to run code: a problem at once, and nothing imported,
started, opened or written."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from titanrun.config.fields import find_field_metadata
from titanrun.config.problems import ProblemsFound
from titanrun.config.serialize import to_toml, to_yaml
from titanrun.config.type_introspection import find_item_type, is_slot, unwrap_annotation
from titanrun.config.types import validate_run_path
from titanrun.recipe.reference.schema_topics import find_field_locations, get_topics
from titanrun.recipe.resolving.resolve import resolve_recipe

DRIVER = Path(__file__).with_name("hostile_driver.py")
START = "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntraining: {dataset: tiny}\n"
KB64, MIB = 64 * 1024, 1024 * 1024
# three times what a recipe may take: a hang is caught, a slow machine is none
SECONDS, MEGABYTES, LONG_SECONDS = 3, 600, 30


def bomb(levels: int, width: int) -> str:
    """Lists of aliases of lists: width ** levels values."""
    lines = ["x-a0: &a0 [x]"]
    lines += [
        f"x-a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]"
        for level in range(1, levels)
    ]
    return "\n".join([*lines, START])


def merge_bomb(levels: int) -> str:
    """Mappings that merge two of the level below."""
    lines = ["x-m0: &m0 {k: 1}"]
    lines += [
        f"x-m{level}: &m{level} {{<<: [*m{level - 1}, *m{level - 1}], k{level}: *m{level - 1}}}"
        for level in range(1, levels)
    ]
    return "\n".join([*lines, START])


def short_files() -> dict[str, bytes]:
    """Hostile recipes of at most 64 KiB, by name."""
    texts = {
        "bomb_9_29.yaml": bomb(29, 9),
        "bomb_2_2000.yaml": bomb(700, 2),
        "merge_bomb.yaml": merge_bomb(300),
        "own_anchor.yaml": "x-a: &a [*a]\n" + START,
        "own_merge.yaml": "x-a: &a {<<: *a, b: *a}\n" + START,
        "deep_flow.yaml": START + "description: " + "[" * 30000,
        "deep_flow_mapping.yaml": START + "x-a: " + "{a: " * 15000,
        "deep_block.yaml": START + "\n".join(" " * depth + "a:" for depth in range(300)),
        "deep_dashes.yaml": START + "x-a:\n  " + "- " * 30000,
        "long_key.yaml": START + "k" * 60000 + ": 1",
        "question_marks.yaml": START + "? " * 30000,
        "comments.yaml": START + "#\n" * 30000 + "a: 1\n",
        "no_key.yaml": START + "a " * 30000,
        "quotes.yaml": START + 'description: "' + "\\u0041" * 10000,
        "duplicates.yaml": START + "a: 1\n" * 12000,
        "nul.yaml": START + "name: a\0b\n",
        "nbsp.yaml": START + "optimizer:\n\u00a0\u00a0lr: 1\n",
        "python.yaml": START + "name: !!python/object/apply:os.system ['touch hostile-was-here']\n",
        "python_name.yaml": START + "name: !!python/name:os.system\n",
        "binary.yaml": START + "name: !!binary aGk=\n",
        "new_tag.yaml": "%TAG !e! tag:yaml.org,2002:python/\n---\n"
        + START
        + "name: !e!name:os.system\n",
        "references.yaml": START
        + "".join(f'x{n}: "${{x{n - 1}}}${{x{n - 1}}}"\n' for n in range(1, 60))
        + "x0: aaaaaaaa\n",
        "ring.yaml": START + 'name: "${description}"\ndescription: "${name}"\n',
        "open_references.yaml": START + 'name: "' + "${" * 20000 + '"\n',
        "unclosed_braces.yaml": START + "name: " + "${a" * 15000 + "\n",
        "deep_table.toml": "[" + ".".join("a" * 20000) + "]\n",
        "deep_array.toml": "a = " + "[" * 30000,
        "deep_inline.toml": "a = " + "{a = " * 10000,
        "many_tables.toml": "[[a]]\n" * 10900,
        "dotted.toml": "a." * 30000 + "b = 1\n",
        "digits.toml": "a = " + "1" * 60000,
        "underscores.toml": "a = 1" + "_1" * 30000,
        "quotes.toml": 'a = "' + "\\u0041" * 10000,
        "keys.toml": "".join(f"k{number} = 1\n" for number in range(6000)),
    }
    files = {name: text.encode() for name, text in texts.items()}
    files |= {
        "utf16.yaml": START.encode("utf-16"),
        "utf32.yaml": START.encode("utf-32"),
        "zeros.yaml": b"\0" * KB64,
        "ff.toml": b"\xff" * KB64,
    }
    files["digits.yaml"] = (START + "debug: {seed: " + "9" * 60000 + "}\n").encode()
    return files


def long_files() -> dict[str, bytes]:
    """Hostile recipes of up to 1 MiB, and one beyond it."""
    texts = {
        "digits.yaml": START + "debug: {seed: " + "9" * 10**6 + "}\n",
        "fraction.yaml": START + "optimizer: {lr: 0." + "9" * 10**6 + "}\n",
        "digits.toml": "a = " + "9" * 10**6,
        "spaces.yaml": START + "a:" + " " * 10**6 + "1",
        "comments.yaml": START + "# x\n" * 250_000 + "a: 1\n",
        "words.yaml": START + "description: " + "word " * 200_000 + "\na: 1\n",
        "text.yaml": START + 'description: "' + "x" * 10**6 + '"\na: 1\n',
        "escapes.yaml": START + 'description: "' + "\\n" * 500_000 + '"\na: 1\n',
        "lines.yaml": START + 'description: "' + "a\n " * 300_000 + '"\na: 1\n',
        "block.yaml": START + "description: |\n" + "  x\n" * 250_000 + "a: 1\n",
        "keys.yaml": START + "".join(f"k{number}: 1\n" for number in range(95_000)),
        "list.yaml": START + "a: [" + "1," * 500_000 + "]",
        "brackets.yaml": START + "a: " + "[" * 10**6,
        "dashes.yaml": START + "a:\n  " + "- " * 500_000,
        "no_colon.yaml": START + "a\n" * 500_000,
        "empty_lines.yaml": START + "\n" * 10**6 + "a: 1",
        "colons.yaml": START + "a:" * 500_000,
        "quotes.yaml": START + "''" * 500_000,
        "references.yaml": START + 'description: "' + "${name}" * 140_000 + '"',
        "text.toml": 'a = "' + "x" * 10**6 + '"',
        "array.toml": "a = [" + "1," * 500_000 + "]",
        "lines.toml": "a = '''" + "x\n" * 500_000 + "'''",
        "blank.toml": "\n" * 10**6 + "a = 1",
        "dots.toml": "a" + ".a" * 500_000 + " = 1",
        "bare.toml": "a" * 10**6,
        "beyond.yaml": START + "#" * MIB,
    }
    return {name: text.encode() for name, text in texts.items()}


def drive(folder: Path, *arguments: str, files: dict[str, bytes]) -> list[dict[str, Any]]:
    """What the driver says about each file."""
    for name, data in files.items():
        (folder / name).write_bytes(data)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, str(DRIVER), *arguments, *files]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_refused(outcome: dict[str, Any]) -> None:
    """A hostile file is a recipe problem with a place."""
    assert outcome["code"] == 2, outcome
    assert f"--> {outcome['file']}:" in outcome["told"], outcome
    assert "internal" not in outcome["told"], outcome


def test_hostile_files_of_64_kb_are_refused_within_a_second_and_200_mb(tmp_path: Path) -> None:
    files = short_files()
    assert all(len(data) <= KB64 for data in files.values()), {
        name: len(data) for name, data in files.items()
    }
    for outcome in drive(tmp_path, "limits", str(SECONDS), str(MEGABYTES), files=files):
        check_refused(outcome)
    assert not (tmp_path / "hostile-was-here").exists()


@pytest.mark.slow
def test_hostile_files_of_a_megabyte_are_refused_within_ten_seconds(tmp_path: Path) -> None:
    for outcome in drive(
        tmp_path, "limits", str(LONG_SECONDS), str(2 * MEGABYTES), files=long_files()
    ):
        check_refused(outcome)


# what a reader of recipes that imports what it is told would run
IMPORTS = [
    "os.system",
    "os:system",
    "posix.system",
    "subprocess.Popen",
    "subprocess:run",
    "builtins.exec",
    "builtins:eval",
    "builtins.__import__",
    "pickle.loads",
    "pickle:load",
    "marshal.loads",
    "shelve.open",
    "importlib.import_module",
    "runpy.run_path",
    "code.interact",
    "pdb.Pdb",
    "pty.spawn",
    "ctypes.CDLL",
    "shutil.rmtree",
    "pathlib.Path.write_text",
    "io.open",
    "tempfile.mkstemp",
    "socket.socket",
    "urllib.request.urlopen",
    "http.server",
    "webbrowser.open",
    "antigravity",
    "this",
    "idlelib.run",
    "turtle.done",
    "torch.load",
    "torch:load",
    "torch.hub.load",
    "logging.config.dictConfig",
    "multiprocessing.Process",
    "asyncio.run",
    "titanrun.worker.rank_main",
    "titanrun.worker.rank_main:main",
    "__main__",
    "..os",
    "/bin/sh",
    "file:///etc/passwd",
    "http://localhost:1/x",
    "$(touch&x)",
    "`id`",
]
# titanrun itself and what reads and checks recipes; mypyc is how tomli is compiled
OWN = re.compile(
    r"import: "
    r"((titanrun|tomli|ruamel|pydantic|pydantic_core|encodings)(\..*)?|unicodedata|stringprep|\w+__mypyc)"
)


def text_fields() -> list[Any]:
    """Every field that takes text or a component's name, as spots of the schema."""
    found = []
    for topic in get_topics():
        for name, field in ({} if topic.is_slot else topic.config.model_fields).items():
            inner = find_item_type(field.annotation) or unwrap_annotation(field.annotation)
            if inner is str or is_slot(inner):
                found += [
                    spot
                    for spot in find_field_locations((*topic.keys, name))
                    if spot.holder is topic.config
                ]
    return found


def with_value(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of `data` with `value` at `path`."""
    step, *rest = path
    if isinstance(data, list):
        return [with_value(item, tuple(rest), value) if rest else value for item in data]
    return {**data, step: with_value(data[step], tuple(rest), value) if rest else value}


def recipes_with_imports() -> dict[str, bytes]:
    """Each import string in the names of all slots, and each text field with some of them."""
    base = {
        "version": 1,
        "model": {"name": "llama3", "flavor": "debugmodel"},
        "training": {"dataset": "tiny"},
    }
    files: dict[str, bytes] = {"first.yaml": to_yaml(base).encode()}
    for number, target in enumerate(IMPORTS):
        named = {
            **base,
            "model": target,
            "optimizer": {"name": target, "_target_": target},
            "plugins": [target],
            "loss": target,
            "_component_": target,
        }
        files[f"named_{number}.yaml"] = to_yaml(
            {**named, "tokenizer": {"name": target}, "converters": [target, {"name": target}]}
        ).encode()
        files[f"named_{number}.toml"] = to_toml(named).encode()
    for number, spot in enumerate(text_fields()):
        many = find_item_type(spot.holder.model_fields[spot.path[-1]].annotation) is not None
        for shift in range(3):
            target = IMPORTS[(number * 3 + shift) % len(IMPORTS)]
            data = {
                **base,
                **with_value(spot.recipe_example, spot.path, [target] if many else target),
            }
            files[f"text_{number}_{shift}.yaml"] = to_yaml(data).encode()
    return files


def test_no_recipe_makes_validate_import_start_connect_or_write(tmp_path: Path) -> None:
    files = recipes_with_imports()
    outcomes = drive(tmp_path, "watch", files=files)
    assert len(outcomes) == len(files) > 150
    for outcome in outcomes:
        foreign = [event for event in outcome["events"] if not OWN.fullmatch(event)]
        assert not foreign, (outcome, foreign)
        assert outcome["code"] in (0, 2), outcome
    refused = {outcome["file"] for outcome in outcomes if outcome["code"] == 2}
    assert {name for name in files if name.startswith("named_")} <= refused
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)


OUTSIDE = [
    "..",
    "../x",
    "a/../../x",
    "a/..",
    "/x",
    "/",
    "",
    ".",
    "./",
    "a\0b",
    "logs",
    "run.json",
    "metrics.jsonl",
    "resolved.yaml/x",
]
OUTSIDE += [
    "./status.json",
    ".hidden",
    "x" * 256,
    "a/" + "é" * 128,
    "/".join(["x" * 200] * 30),
    "RUN.JSON",
    "~/x/../..",
]


def test_an_output_path_outside_the_run_directory_is_refused_in_every_section(
    tmp_path: Path,
) -> None:
    fields = [spot for spot in text_fields() if validate_run_path in validators(spot)]
    assert len(fields) >= 2
    base = {
        "version": 1,
        "model": {"name": "llama3", "flavor": "debugmodel"},
        "training": {"dataset": "tiny"},
    }
    files = {
        f"{place}_{number}.yaml": to_yaml(
            {**base, **with_value(spot.recipe_example, spot.path, path)}
        ).encode()
        for place, spot in enumerate(fields)
        for number, path in enumerate(OUTSIDE)
    }
    for outcome in drive(tmp_path, "watch", files=files):
        check_refused(outcome)


def validators(spot: Any) -> list[Any]:
    """The functions that decide about a field."""
    field = spot.holder.model_fields[spot.path[-1]]
    built = (setting := find_field_metadata(field)) is None or setting.not_built is None
    return [getattr(item, "func", None) for item in field.metadata] if built else []


def test_thousands_of_mistakes_are_counted_and_the_first_hundred_told(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text(
        START + "".join(f"k{number}: 1\n" for number in range(5000))
    )
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe(str(tmp_path / "keys.yaml"), environment={})
    assert [problem.message for problem in found.value.problems if problem.code == "limit"] == [
        "4900 more problems are not shown"
    ]
    assert len(found.value.problems) == 101
