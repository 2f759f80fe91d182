"""`validate --fix`: what is certain is written, byte for byte beside everything else; what is not
is left alone."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.shipped import RUN_RECIPES
from titanrun.config.problems import Fix, Origin, Problem, SourceText
from titanrun.recipe.editing.autofix import FixResult, fix_files
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.resolving.validation_levels import validate_file

RECIPES = Path(__file__).parents[3] / "recipes"
SHIPPED = [path.name for path in RUN_RECIPES]
SOUND = (
    "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntokenizer: tiny\ntraining: {dataset: "
    "tiny, steps: 4}\n"
)
KEY = re.compile(r"^ *\[?([A-Za-z_]+)(?=:|\]| =)", re.MULTILINE)
NUMBER = re.compile(r"(?<=[:=] )\d+(?:\.\d+)?(?:e-?\d+)?$", re.MULTILINE)
SWITCH = re.compile(r"(?<=[:=] )(?:true|false)$", re.MULTILINE)
NAME = re.compile(r"(?<=name[:=] )[a-z0-9]+$|(?<=dtype: )float32$", re.MULTILINE)
SECTION = re.compile(r"^(?:\[+[^]]+\]|[A-Za-z_]+:)", re.MULTILINE)
LETTERS = "abcdefghijklmnopqrstuvwxyz_-"


def problems_of(file: str) -> tuple[Problem, ...]:
    return validate_file(file, [], level="rules", environment={}).problems


def fix(*files: str) -> FixResult:
    return fix_files(files, problems_of)


def on_off(word: str) -> list[str]:
    return {
        "true": ["on", "yes", "True", "Yes", '"true"'],
        "false": ["off", "no", "FALSE", "No", "'false'"],
    }[word]


RESPELT: list[tuple[re.Pattern[str], Callable[[str], list[str]]]] = [
    (KEY, lambda key: [key.upper(), key.capitalize(), key.replace("_", "-"), key.replace("_", "")]),
    (NUMBER, lambda number: [f'"{number}"', f"'{number}'"]),
    (SWITCH, on_off),
    (NAME, lambda name: [name.upper(), name.capitalize()]),
]


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shipped") / "recipes"
    shutil.copytree(RECIPES, folder)
    return folder


def respelt_places() -> dict[str, list[tuple[int, int, str]]]:
    """The places to respell in each recipe: start, end, and one of its respellings after the other.

    A line that an earlier recipe holds in the same section is not respelt again.
    """
    seen: set[tuple[object, ...]] = set()
    places: dict[str, list[tuple[int, int, str]]] = {}
    for name in SHIPPED:
        text = (RECIPES / name).read_text(encoding="utf-8")
        places[name] = []
        for pattern, respell in RESPELT:
            for index, found in enumerate(pattern.finditer(text)):
                start, end = found.span(1) if pattern is KEY else found.span()
                section = ["", *SECTION.findall(text[:start])][-1]
                line = text[text.rfind("\n", 0, start) + 1 : text.find("\n", end)].strip()
                place = (Path(name).suffix, pattern, section, line)
                spellings = [word for word in respell(text[start:end]) if word != text[start:end]]
                if spellings and place not in seen:
                    seen.add(place)
                    places[name].append((start, end, spellings[index % len(spellings)]))
    return places


PLACES = respelt_places()


@pytest.mark.parametrize("name", SHIPPED)
def test_every_respelling_in_a_shipped_recipe_is_restored(name: str, copies: Path) -> None:
    file = copies / name
    text = file.read_text(encoding="utf-8")
    goal = resolve_recipe(str(file), environment={}).text
    for start, end, spelling in PLACES[name]:
        file.write_text(text[:start] + spelling + text[end:], encoding="utf-8")
        fix(str(file))
        # the bytes that were there before resolve as they did before
        if file.read_text(encoding="utf-8") != text:
            assert resolve_recipe(str(file), environment={}).text == goal, (name, spelling)
    file.write_text(text, encoding="utf-8")


def test_most_places_of_the_recipes_are_respelt() -> None:
    assert sum(map(len, PLACES.values())) > 400


@pytest.mark.parametrize("number", ["1e5", "1.50", "1.0e-5", "-0.0", "12", "1E+3", "true"])
@pytest.mark.parametrize("suffix", ["yaml", "toml"])
def test_the_help_says_what_the_fix_writes(number: str, suffix: str, tmp_path: Path) -> None:
    # Row C5 of the defect list: the help said "100000.0" where the fix wrote "1e5"
    file = tmp_path / f"mine.{suffix}"
    file.write_text(f"description{': ' if suffix == 'yaml' else ' = '}{number}\n")
    problem = next(found for found in problems_of(str(file)) if found.path == ("description",))
    assert problem.fix is not None and problem.fix.replacement == f'"{number}"'
    assert problem.hint == f"write {problem.fix.replacement}"
    assert number in problem.message


@pytest.mark.parametrize(
    ("section", "hint"),
    [
        ("training: {dataset: tiny, steps: [1e1]}", "write 1e1"),
        ("optimizer: {lr: [1.50e-3]}", "write 1.50e-3"),
        ("plugins: 1e5", 'write ["1e5"]'),
        ("plugins: true", 'write ["true"]'),
    ],
)
def test_a_number_in_a_help_stands_there_as_it_was_written(
    section: str, hint: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"{section}\n")
    assert hint in [problem.hint for problem in problems_of(str(file))]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_one_wrong_letter_in_a_key_is_restored_or_left_alone(
    data: st.DataObject, copies: Path
) -> None:
    file = copies / data.draw(st.sampled_from(SHIPPED), label="recipe")
    text = (RECIPES / file.name).read_text(encoding="utf-8")
    found = data.draw(st.sampled_from(list(KEY.finditer(text))), label="key")
    start, end = found.span(1)
    at = data.draw(st.integers(start, end - 1), label="at")
    letter = data.draw(st.sampled_from(["", *LETTERS]), label="letter")
    skip = data.draw(st.integers(0, 1), label="replaced letters")
    broken = text[:at] + letter + text[at + skip :]
    file.write_text(broken, encoding="utf-8")
    done = fix(str(file))
    fixed = file.read_text(encoding="utf-8")
    assert (
        fixed == broken
        or resolve_recipe(str(file), environment={}).text
        == resolve_recipe(str(RECIPES / file.name), environment={}).text
    )
    assert bool(done.applied_fixes) == (fixed != broken)
    assert fix(str(file)).applied_fixes == []
    assert file.read_text(encoding="utf-8") == fixed
    # another recipe may extend this one
    file.write_text(text, encoding="utf-8")


def test_bytes_beside_the_corrections_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = SOUND.replace("steps: 4", "max_steps:   08  ").rstrip("\n") + "   # no end of line"
    before = "\ufeff# größe\r\n" + text.replace("\n", "\r\n")
    Path("mine.yaml").write_bytes(before.encode())
    Path("mine.yaml").chmod(0o640)
    assert [made.replacement for made in fix("mine.yaml").applied_fixes] == ["8", "steps"]
    assert Path("mine.yaml").read_bytes().decode() == before.replace(
        "max_steps:   08", "steps:   8"
    )
    assert Path("mine.yaml").stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.yaml"]


@pytest.mark.parametrize(
    "line",
    [
        "debug: {sead: 3}",
        "debug: {seed: 0100}",
        "debug: {seed: '0100'}",
        "debug: {seed: 0_10}",
        "debug: {seed: 1:30:00}",
        "debug: {seed: 4k}",
        'debug: {seed: "1.5"}',
        "debug: {Seed: 3, seed: 4}",
        "debug: {Seed: 3, SEED: 3}",
        "debug: {Seed: 3, sEED: 4}",
        "Debug: {seed: 3}\ndebug: {seed: 4}",
        'debug: {seed: &a "3"}',
        'debug: {seed: &a   "3"}',
        'x-a: {b: "3"}\ndebug: {seed: !!str "3"}',
        "debug: {seed: '${env:N,on}'}",
        "debug: {batch_size: 3}",
        # two typos of one key, one that is given too, keys and sections of other programs
        "checkpoint: {interval: 3, intervall: 4}",
        "checkpoint: {intervl: 3, intervall: 4}",
        "stage: sft",
        "stage: []",
        "metrics: {log_frek: 3, log_frequency: 4}",
        # both beta1 and beta2 are near, and adam and adamw
        "optimizer: {beta: 0.9}",
        "optimizer: {beta3: 0.9}",
        "optimizer: adamx",
        # another number, another first letter, a key of another section
        "lr_scheduler: cosine2",
        "launch: {name: slurm, bpus_per_node: 4}",
        "launch: {name: skypilot, gpus_per_node: 8}",
        "lr_scheduler: {step: 4}",
        "debug: [",
    ],
)
def test_what_is_not_certain_is_left_alone(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(f"{SOUND}{line}\n", encoding="utf-8")
    assert problems_of("mine.yaml") != ()
    assert fix("mine.yaml").applied_fixes == []
    assert Path("mine.yaml").read_text(encoding="utf-8") == f"{SOUND}{line}\n"


@pytest.mark.parametrize(
    ("broken", "mended"),
    [
        ("debug: {sead: 3}  # so\n", None),
        ("debug: {sede: 3}  # so\n", "sede seed"),
        ("optimizer: {nmae: adamw}\n", "nmae name"),
        ("kind: pretrian\n", "pretrian pretrain"),
        ("checkpoint:  # so\n  intervl:   3   # many\n", "intervl interval"),
        ("optimizer: {weigth_decay: 0.1}\n", "weigth_decay weight_decay"),
        ("lr_scheduler: {name: cosin, warmupsteps: 1}\n", "cosin cosine warmupsteps warmup_steps"),
        ("optimizer: adamww\n", "adamww adamw"),
        ("validaton: {enable: false}  # so\n", "validaton validation"),
        ("optimizer: {betta1: 0.9}\n", "betta1 beta1"),
    ],
)
def test_one_wrong_letter_is_corrected_in_longer_words_and_swapped_ones_in_all(
    broken: str, mended: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(SOUND + broken)
    fix(str(file))
    words = (mended or "").split()
    for written, meant in zip(words[::2], words[1::2], strict=True):
        broken = broken.replace(written, meant)
    assert file.read_text() == SOUND + broken
    assert bool(problems_of(str(file))) is (mended is None)


def test_a_key_of_another_program_is_no_typo(tmp_path: Path) -> None:
    """The format of a file in axolotl is no dtype."""
    file = tmp_path / "mine.yaml"
    file.write_text(SOUND.replace("steps: 4", "steps: 4, ds_type: json"))
    (problem,) = problems_of(str(file))
    assert (problem.suggestion, problem.fix) == ("dtype", None)


def test_a_key_anywhere_in_the_schema_is_no_typo(tmp_path: Path) -> None:
    """`tasks` of evaluation is a key of another component than that of a task."""
    file = tmp_path / "mine.yaml"
    text = f"{SOUND}evaluation: {{tasks: [{{name: lm_eval, tasks: arc_easy}}]}}\n"
    file.write_text(text)
    assert fix(str(file)).applied_fixes == []
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("setting", "number"),
    [
        ("optimizer: {lr: '.5'}", "0.5"),
        ('optimizer: {lr: "5."}', "5.0"),
        ("debug: {seed: '0x10'}", "0x10"),
    ],
)
def test_a_quoted_number_becomes_one_that_yaml_and_toml_read(
    setting: str, number: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"{SOUND}{setting}\n")
    assert [made.replacement for made in fix(str(file)).applied_fixes] == [number]
    assert problems_of(str(file)) == ()


def test_an_edit_that_changes_nothing_is_not_made(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(SOUND)
    mark = Origin(SourceText(str(file), SOUND), 1, 1, 8)
    same = Problem("unknown-key", "x", origin=mark, fix=Fix(mark, "version"))
    assert fix_files([str(file)], lambda _: (same,)).applied_fixes == []


def test_an_included_file_is_written_only_when_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("extends: base.yaml\nDebug: {seed: 3}\n", encoding="utf-8")
    Path("base.yaml").write_text(SOUND.replace("steps", "Steps"), encoding="utf-8")
    done = fix("mine.yaml")
    assert [str(made.origin) for made in done.applied_fixes] == ["mine.yaml:2:1"]
    assert [(str(left.origin), reason) for left, reason in done.skipped_fixes.items()] == [
        ("base.yaml:4:27", "base.yaml was not named on the command line")
    ]
    assert Path("base.yaml").read_text(encoding="utf-8") == SOUND.replace("steps", "Steps")
    assert len(fix("mine.yaml", "base.yaml").applied_fixes) == 1
    assert Path("base.yaml").read_text(encoding="utf-8") == SOUND
    assert problems_of("mine.yaml") == ()


def test_an_own_key_may_take_the_place_of_an_included_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text(SOUND, encoding="utf-8")
    Path("mine.yaml").write_text("extends: base.yaml\ntraining: {Steps: 9}\n", encoding="utf-8")
    fix("mine.yaml")
    assert (
        Path("mine.yaml").read_text(encoding="utf-8")
        == "extends: base.yaml\ntraining: {steps: 9}\n"
    )


def test_a_correction_that_changes_another_table_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = 'version = 1\n[Model]\nname = "llama3"\n[Model.rope]\ntheta = 3.0\n'
    Path("mine.toml").write_text(text, encoding="utf-8")
    assert fix("mine.toml").applied_fixes == []
    assert Path("mine.toml").read_text(encoding="utf-8") == text


def test_toml_whose_reader_stops_is_mended_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sound = (
        'version = 1\ntokenizer = "tiny"\n[model]\nname = "llama3"\nflavor = '
        '"debugmodel"\n[training]\ndataset = "tiny"\nsteps = 8\n'
    )
    broken = (
        sound.replace("8", "08") + "[checkpoint]\nenable = True # so\n[validation]\nenable = off\n"
    )
    Path("mine.toml").write_text(broken, encoding="utf-8")
    assert len(fix("mine.toml").applied_fixes) == 3
    assert (
        Path("mine.toml").read_text(encoding="utf-8")
        == sound + "[checkpoint]\nenable = true # so\n[validation]\nenable = false\n"
    )
    Path("mine.toml").write_text(f"{broken}interval = \n", encoding="utf-8")
    done = fix("mine.toml")
    assert (done.applied_fixes, len(done.skipped_fixes)) == ([], 3)
    assert Path("mine.toml").read_text(encoding="utf-8") == f"{broken}interval = \n"


def test_names_of_modules_in_transformers_are_replaced(tmp_path: Path) -> None:
    """The model has other names for them, of which only whole words are certain."""
    mine = tmp_path / "mine.yaml"
    targets = "converters: [{name: lora, target_modules: [q_proj, 'v_proj', self_attn.k_proj]}]\n"
    mine.write_text(SOUND + targets, encoding="utf-8")
    done = fix(str(mine))
    assert [made.replacement for made in done.applied_fixes] == ["wq", "'wv'"]
    assert "target_modules: [wq, 'wv', self_attn.k_proj]" in mine.read_text(encoding="utf-8")
    (left,) = problems_of(str(mine))
    assert left.got is None and left.hint == "transformers' k_proj is called wk here"


def test_names_and_values_of_other_programs_are_replaced_by_the_only_word_of_their_help(
    tmp_path: Path,
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        'version: 1\ndevice: cuda\nmodel: {name: "LlamaForCausalLM", flavor: debugmodel}\n'
        "tokenizer: tiny\noptimizer: {name: adamw_torch, lr: 1e-4}\nlr_scheduler: wsd  # warm\n"
        "loss: sft_loss\ntraining: {dataset: tiny, steps: 4}\nmetrics: {logging_steps: 5}\n"
        "checkpoint: {save_total_limit: 3}\noutput_dir: runs/a\n"
    )
    fix(str(file))
    assert file.read_text() == (
        'version: 1\ndevice: gpu\nmodel: {name: "llama3", flavor: debugmodel}\n'
        "tokenizer: tiny\noptimizer: {name: adamw, lr: 1e-4}\n"
        "lr_scheduler: warmup_stable_decay  # warm\n"
        "loss: cross_entropy\ntraining: {dataset: tiny, steps: 4}\nmetrics: {log_freq: 5}\n"
        "checkpoint: {keep_latest_k: 3}\ndump_folder: runs/a\n"
    )
    assert problems_of(str(file)) == ()


@pytest.mark.parametrize(
    "entry",
    [
        "kind: full",  # may be any kind
        "lr_scheduler: linear",  # needs a setting beside its name
        "device: cuda:1",  # the number is lost
        "x-name: &name wsd\nlr_scheduler: *name",
    ],
)
def test_what_the_help_does_not_say_in_one_word_is_left_alone(entry: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    text = "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntraining: {dataset: tiny}\n"
    file.write_text(f"{text}{entry}\n")
    fix(str(file))
    assert file.read_text() == f"{text}{entry}\n"
