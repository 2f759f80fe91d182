"""Files of torchtitan as people have them, and what becomes of them.

The whole output for each setting in torchtitan/ lies beside it, written by
tools/write_reference.py: read the diff when it changes, as
it does where something that was "not built" is built.
"""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from titanrun.config.base import dump_config
from titanrun.config.problems import ProblemsFound, SourceText
from titanrun.config.read_source import read_source_text
from titanrun.config.serialize import to_toml
from titanrun.config.tree import to_plain_data
from titanrun.config.type_introspection import find_value
from titanrun.recipe.migrate.migration import Migration, migrate_file
from titanrun.recipe.migrate.migration_report import format_migration_report
from titanrun.recipe.migrate.target_paths import parse_target
from titanrun.recipe.migrate.torchtitan import TORCHTITAN
from titanrun.recipe.migrate.torchtitan_table import TORCHTITAN_KEYS
from titanrun.recipe.resolving.resolve import resolve_recipe

FILES = sorted((Path(__file__).parent / "torchtitan").glob("*.toml"))


def migrated(text: str, folder: Path, suffix: str = ".toml") -> Migration:
    file = folder / f"config{suffix}"
    file.write_text(text, encoding="utf-8")
    return migrate_file(str(file), TORCHTITAN, recipe_name="recipe.yaml", header_lines=())


def lines(migration: Migration) -> list[str]:
    return [line for line in migration.text.splitlines() if line]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_nothing_is_dropped_silently(file: Path) -> None:
    migration = migrate_file(str(file), TORCHTITAN, recipe_name="recipe.yaml", header_lines=())
    keys = [item.entry.written_path for item in migration.items if item.entry]
    text = file.read_text(encoding="utf-8")
    written = sum("=" in line and not line.startswith("#") for line in text.splitlines())
    assert len(keys) == len(set(keys)) == written
    shown = format_migration_report(migration, str(file))
    assert all(f"{key} = " in shown for key in keys)
    assert all(
        comment.strip() in migration.text
        for line in text.splitlines()
        for comment in line.partition("#")[1:]
        if comment
    )


# sizes that the class's config.json has
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "max_position_embeddings": 262144,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 5000000,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
REFUSED = {
    "transformers_debug": "config.json",
    "transformers_full": "config.json",
    "vlm_debug": "titanrun has no vision-language models",
}


def test_there_are_settings_for_each_file_that_torchtitan_ships() -> None:
    """Those of v0.2.2: 19 below its models, 3 of experiments and that of its own tests."""
    assert (len(FILES), len(REFUSED)) == (23, 3)
    assert {file.stem for file in FILES} > REFUSED.keys()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_validates_or_is_refused_by_name(file: Path, tmp_path: Path) -> None:
    migration = migrate_file(str(file), TORCHTITAN, recipe_name="recipe.yaml", header_lines=())
    said = [problem.message for problem in migration.problems]
    said += [item.words for item in migration.items if item.outcome == "refused"]
    if file.stem in REFUSED:
        assert any(REFUSED[file.stem] in words for words in said)
        return
    (tmp_path / "recipe.yaml").write_text(migration.text, encoding="utf-8")
    resolve_recipe(str(tmp_path / "recipe.yaml"), environment={})


@pytest.mark.parametrize("name", ["transformers_debug", "transformers_full"])
def test_a_causal_model_of_transformers_needs_its_config_only(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (Path(FILES[0].parent) / f"{name}.toml").read_text(encoding="utf-8")
    refused = migrated(text, tmp_path)
    assert refused.exit_code == 1
    # the tokenizer's folder without a config.json is no problem of its own
    (problem,) = refused.problems
    assert problem.path == ("model", "path")
    name = "Qwen/Qwen3-4B-Instruct-2507"
    assert problem.hint is not None
    assert f"titanrun download {name} --only config -o {name} fetches it" in problem.hint
    assert f"`titanrun download {name} -o {name}`" in format_migration_report(refused, "old.toml")
    folder = tmp_path / "Qwen" / "Qwen3-4B-Instruct-2507"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(QWEN3), encoding="utf-8")
    migration = migrated(text, tmp_path)
    assert migration.exit_code == 0
    (tmp_path / "recipe.yaml").write_text(migration.text, encoding="utf-8")
    resolve_recipe(str(tmp_path / "recipe.yaml"), environment={})


def test_lanes_follow_from_written_degrees(tmp_path: Path) -> None:
    text = '[training]\ndataset = "C4"\n[parallelism]\n'
    degrees = "data_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 4\n"
    assert "  lanes: 8" in lines(migrated(text + degrees, tmp_path))
    assert not any("lanes:" in line for line in lines(migrated(text, tmp_path)))


def test_an_empty_file_is_the_release_with_its_defaults(tmp_path: Path) -> None:
    migration = migrated('training.dataset = "tiny"\n', tmp_path)
    (tmp_path / "recipe.yaml").write_text(migration.text, encoding="utf-8")
    run = dump_config(resolve_recipe(str(tmp_path / "recipe.yaml"), environment={}).recipe)
    values = {key.path: key.default for key in TORCHTITAN_KEYS} | {"training.dataset": "tiny"}
    differing = []
    for key in TORCHTITAN_KEYS:
        for target, value in key.convert_value(values[key.path], values).targets.items():
            steps = parse_target(target)
            if (
                value is not None
                and not key.format_unmet_condition(values)
                and find_value(run, steps) != value
            ):
                differing.append((key.path, value, find_value(run, steps)))
    refused = [item.path for item in migration.items if item.outcome == "refused"]
    assert differing == []
    assert refused == []
    assert run["activation_checkpoint"]["selective_ac_option"] == "2"
    assert run["training"]["dataset"]["shuffle"] is False


def test_defaults_that_differ_are_written_and_equal_ones_are_not(tmp_path: Path) -> None:
    found = lines(
        migrated('[checkpoint]\nenable = true\n[activation_checkpoint]\nmode = "full"\n', tmp_path)
    )
    assert "  last_save_model_only: true" in found
    assert "  early_stop: false" in found
    assert "  warmup_steps: 200" in found
    assert not any("interval" in line or "beta1" in line for line in found)


def test_a_file_of_what_is_built_migrates_with_exit_code_0_and_validates(tmp_path: Path) -> None:
    text = """
[model]
flavor = "8B"
[training]
dataset = "tiny"
steps = 100
global_batch_size = 16
[lr_scheduler]
warmup_steps = 300   # more than the run has
[activation_checkpoint]
mode = "none"
[debug]
seed = 3
"""
    migration = migrated(text, tmp_path)
    assert (migration.exit_code, migration.problems) == (0, ())
    found = lines(migration)
    assert "  warmup_steps: 100  # more than the run has" in found
    assert "  global_batch_size: 16" in found
    assert "  seed: 3" in found
    (warmup,) = [item for item in migration.items if item.path == "lr_scheduler.warmup_steps"]
    assert (warmup.outcome, warmup.words.startswith("reduced to the 100 steps")) == (
        "changed",
        True,
    )


def test_comments_stay_with_their_keys_and_sections(tmp_path: Path) -> None:
    text = """\
# top of the file

# about training
[training]  # all of it
dataset = "tiny"
# why so many
steps = 7  # seven

# left alone after a key

[optimizer]
lr = 1e-3 # fast
# not me = 5
"""
    found = migrated(text, tmp_path).text
    assert found.startswith("# top of the file\nversion: 1\n")
    assert "\n# about training\ntraining:  # all of it\n" in found
    assert "\n  # why so many\n  steps: 7  # seven\n  # left alone after a key\n" in found
    assert "\noptimizer:\n  lr: 0.001  # fast\n  # not me = 5\n" in found


def test_unknown_keys_are_refused_with_a_suggestion(tmp_path: Path) -> None:
    migration = migrated("[training]\nstepz = 5\nlr = 0.1\n[mine]\nsecret = 1\n", tmp_path)
    words = {item.path: item.words for item in migration.items if item.entry}
    assert words["training.stepz"] == "torchtitan has no such key; did you mean 'training.steps'?"
    assert words["training.lr"] == "torchtitan has no such key; did you mean 'optimizer.lr'?"
    assert words["mine.secret"] == "torchtitan has no such key"
    assert migration.exit_code == 1


def test_older_spellings_are_understood_and_today_s_wins(tmp_path: Path) -> None:
    text = """
[model]
tokenizer_path = "assets/tokenizer"
converters = ["float8"]
[float8]
filter_fqns = ["lm_head"]
[training]
seed = 1
deterministic = true
[debug]
seed = 2
"""
    migration = migrated(text, tmp_path)
    fates = {
        item.entry.written_path: (item.outcome, item.words)
        for item in migration.items
        if item.entry
    }
    assert fates["training.seed"] == ("unread", "left out: 'debug.seed' is written too")
    assert fates["training.deterministic"][0] == "mapped"
    assert {"  seed: 2", "  deterministic: true", "  hf_assets_path: assets/tokenizer"} <= set(
        lines(migration)
    )
    assert (
        "float8_linear is not built" in fates["float8.filter_fqns"][1]
        or "filter_fqns: [output]" in migration.text
    )


def test_keys_of_older_versions_without_use_are_left_out(tmp_path: Path) -> None:
    text = """
[job]
print_args = true
use_for_integration_test = true
[training]
dataset = "tiny"
batch_size = 3
compile = true
[lr_scheduler]
lr_min = 0.1
[validation]
enabled = false
[parallelism]
enable_compiled_autograd = false
pipeline_parallel_split_points = []
"""
    migration = migrated(text, tmp_path)
    fates = {item.entry.written_path: item.outcome for item in migration.items if item.entry}
    assert fates["job.use_for_integration_test"] == "unread"
    assert fates["parallelism.pipeline_parallel_split_points"] == "unread"
    assert fates["parallelism.enable_compiled_autograd"] == "unread"
    assert {"  local_batch_size: 3", "  print_config: true", "  min_lr_factor: 0.1"} <= set(
        lines(migration)
    )
    assert "\ncompile:\n  enable: true\n" in migration.text
    assert migration.exit_code == 0


def test_a_value_of_a_wrong_type_is_kept_and_told(tmp_path: Path) -> None:
    migration = migrated(
        '[training]\ndataset = "tiny"\n[optimizer]\nlr = '
        '"3e-4"\n[activation_checkpoint]\nmode="none"\n',
        tmp_path,
    )
    (problem,) = migration.problems
    assert (problem.code, problem.path, migration.exit_code) == (
        "wrong-type",
        ("optimizer", "lr"),
        1,
    )
    assert 'lr: "3e-4"' in migration.text


def test_text_that_looks_like_a_reference_stays_text(tmp_path: Path) -> None:
    migration = migrated(
        'job.description = "${env:HOME} ${training.steps}"\ntraining.dataset = "tiny"\n', tmp_path
    )
    (tmp_path / "recipe.yaml").write_text(migration.text, encoding="utf-8")
    assert (
        resolve_recipe(str(tmp_path / "recipe.yaml"), environment={}).recipe.description
        == "${env:HOME} ${training.steps}"
    )


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("a = \n", "syntax", 1),
        ("[a]\nb = 1\nb = 2\n", "duplicate-key", 3),
        ("a = 1979-05-27\n", "wrong-type", 1),
    ],
)
def test_a_file_that_is_no_toml_is_a_located_problem(
    text: str, code: str, line: int, tmp_path: Path
) -> None:
    with pytest.raises(ProblemsFound) as caught:
        migrated(text, tmp_path)
    problem = caught.value.problems[0]
    assert problem.origin is not None
    assert (problem.code, problem.origin.line) == (code, line)


def test_what_nobody_can_see_is_escaped_in_comments_and_report(tmp_path: Path) -> None:
    migration = migrated('"a\\nb" = "x\\r"\nmodel.converters = "c\\u001f\\n"\n', tmp_path)
    assert isinstance(
        to_plain_data(read_source_text(SourceText("recipe.yaml", migration.text), "yaml")), dict
    )
    assert '# a\\u000ab = "x\\r"' in migration.text
    assert all(
        line.isprintable() for line in format_migration_report(migration, "config.toml").split("\n")
    )


ANY = st.one_of(
    st.booleans(),
    st.integers(-3, 10**6),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.lists(st.text(max_size=4), max_size=2),
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from([key.path for key in TORCHTITAN_KEYS]), ANY, max_size=6))
def test_any_value_of_any_key_is_accounted_for(
    tmp_path_factory: pytest.TempPathFactory, chosen: dict[str, object]
) -> None:
    nested: dict[str, object] = {}
    for path, value in chosen.items():
        holder: dict[str, object] = nested
        *sections, last = path.split(".")
        for section in sections:
            holder = holder.setdefault(section, {})  # type: ignore[assignment]
        holder[last] = value
    migration = migrated(to_toml(nested), tmp_path_factory.mktemp("any"))
    assert sorted(item.path for item in migration.items if item.entry) == sorted(chosen)
    assert isinstance(
        to_plain_data(read_source_text(SourceText("recipe.yaml", migration.text), "yaml")), dict
    )
    assert format_migration_report(migration, "config.toml")


def test_kernels_with_states_in_bf16_are_a_type_of_states_here(tmp_path: Path) -> None:
    migration = migrated(
        'training.dataset = "tiny"\noptimizer.implementation = "fused_opt_states_bf16"\n', tmp_path
    )
    assert "  state_dtype: bfloat16" in lines(migration)
    assert "implementation" not in migration.text


FLUX = (
    '[model]\nname = "flux"\nflavor = "flux-schnell"\n[encoder]\nt5_encoder = "a"\nclip_encoder '
    '= "b"\nautoencoder_path = "c"\n'
)


def test_rows_of_flux_are_a_text_and_a_picture_from_tar_files(tmp_path: Path) -> None:
    text = (
        FLUX + 'max_t5_encoding_len = 512\n[training]\ndataset = "cc12m-wds"\ndataset_path = '
        '"mine/*.tar"\nimg_size = 512\nseq_len = 4096\n'
    )
    migration = migrated(text, tmp_path)
    run = to_plain_data(read_source_text(SourceText("recipe.yaml", migration.text), "yaml"))
    assert migration.exit_code == 0
    assert run["loss"] == "flow_matching"
    assert run["training"]["seq_len"] == 512 + 32 * 32
    assert run["training"]["dataset"] == {
        "name": "webdataset",
        "path": "mine/*.tar",
        "image_size": 512,
        "shuffle": False,
    }


def test_tar_files_of_flux_have_a_place_where_none_is_named(tmp_path: Path) -> None:
    run = to_plain_data(
        read_source_text(
            SourceText(
                "recipe.yaml", migrated(FLUX + '[training]\ndataset = "cc12m-wds"\n', tmp_path).text
            ),
            "yaml",
        )
    )
    assert run["training"]["dataset"]["path"] == "data/cc12m/*.tar"


@pytest.mark.parametrize("dataset", ["c4_test", "mine"])
def test_data_without_pictures_is_refused_for_flux(dataset: str, tmp_path: Path) -> None:
    migration = migrated(FLUX + f'[training]\ndataset = "{dataset}"\n', tmp_path)
    assert migration.exit_code == 1
    assert [item.path for item in migration.items if item.outcome == "refused"] == [
        "training.dataset"
    ]
