"""Resolving: YAML and TOML mean the same run, and one unreadable value hides nothing else."""

import json
import re
from pathlib import Path

import pytest
from transformers import LlamaConfig

from titanrun.components.losses.config import CrossEntropyConfig
from titanrun.config.base import dump_config
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.hub_datasets import (
    find_dataset_commit,
    iter_datasets_without_revision,
    record_dataset_commit,
)
from titanrun.recipe.resolving.hub_models import (
    RECORD_FILE,
    HubModel,
    find_model_folder,
    get_hub_folder,
    get_reference_file,
)
from titanrun.recipe.resolving.provenance import build_source_report, collect_value_sources
from titanrun.recipe.resolving.recipe_from_hf import resolve_from_huggingface
from titanrun.recipe.resolving.resolve import ResolveOptions, resolve_recipe
from titanrun.recipe.resolving.resolve_loaded import resolve_source

YAML = """\
version: 1
name: same
model: {name: llama3, flavor: debugmodel}
training: {dataset: tiny, seq_len: 256, max_norm: null}
validation: {enable: true, steps: null}
"""
TOML = """\
version = 1
name = "same"
training = { dataset = "tiny", seq_len = 256, max_norm = "null" }
validation = { enable = true, steps = "null" }

[model]
name = "llama3"
flavor = "debugmodel"
"""


def written(folder: Path, text: str, name: str = "recipe.yaml") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def labels(file: str, *overrides: str) -> list[tuple[str, tuple[str | int, ...]]]:
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe(file, overrides, environment={})
    return [(problem.label, problem.path) for problem in found.value.problems]


def test_null_in_yaml_and_in_toml_resolve_to_the_same_bytes(tmp_path: Path) -> None:
    from_yaml = resolve_recipe(written(tmp_path, YAML), environment={})
    from_toml = resolve_recipe(written(tmp_path, TOML, "recipe.toml"), environment={})
    assert from_yaml.text == from_toml.text
    assert from_toml.run.training.max_norm is None


def test_the_text_null_stays_text_in_yaml(tmp_path: Path) -> None:
    file = written(tmp_path, YAML + 'description: "null"\n')
    assert resolve_recipe(file, environment={}).run.description == "null"


def test_an_unreadable_value_spreads_by_alias_and_reference_without_follow_ups(
    tmp_path: Path,
) -> None:
    text = (
        YAML + "optimizer: {lr: &lr 010, eps: *lr, weight_decay: '${optimizer.eps}', beta1: '1'}\n"
    )
    assert labels(written(tmp_path, text)) == [
        ("ambiguous-number", ("optimizer", "lr")),
        ("wrong-type", ("optimizer", "beta1")),
    ]


@pytest.mark.parametrize("place", ["path: '${env:NO_SUCH_NAME}'", "pth: x"])
def test_a_dataset_with_an_unreadable_place_is_not_told_that_it_has_none(
    place: str, tmp_path: Path
) -> None:
    text = YAML.replace("dataset: tiny", f"dataset: {{name: text, {place}}}")
    key = place.partition(":")[0]
    assert [path for _, path in labels(written(tmp_path, text))] == [("training", "dataset", key)]


def test_unreadable_values_of_an_extended_file_do_not_hide_the_schema(tmp_path: Path) -> None:
    written(tmp_path, YAML + "metrics: {log_freq: 010}\n", "base.yaml")
    file = written(tmp_path, "extends: base.yaml\nversion: 1\ntraining: {stepz: 5}\n")
    assert labels(file) == [
        ("ambiguous-number", ("metrics", "log_freq")),
        ("unknown-key", ("training", "stepz")),
    ]


def test_an_unreadable_section_hides_what_is_in_it_and_nothing_else(tmp_path: Path) -> None:
    text = YAML.replace("training: {", "training: !!map {") + "metrics: {log_freq: 0}\n"
    assert labels(written(tmp_path, text)) == [
        ("tag", ("training",)),
        ("out-of-range", ("metrics", "log_freq")),
    ]


def test_unreadable_values_and_a_bad_override_are_told_together(tmp_path: Path) -> None:
    text = YAML + "metrics: {log_freq: 010}\n"
    assert labels(written(tmp_path, text), "training.steps.x=3!", "training.steps=") == [
        ("ambiguous-number", ("metrics", "log_freq")),
        ("usage", ("training", "steps")),
    ]


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("training.steps=010", ("ambiguous-number", ("training", "steps"))),
        ("training.steps.x=1", ("usage", ("training", "steps", "x"))),
        ("training.steps", ("usage", ())),
        ("description=${env:NOT_SET}", ("interpolation", ("description",))),
    ],
)
def test_an_override_that_cannot_be_applied_hides_neither_schema_nor_rules(
    tmp_path: Path, override: str, problem: tuple[str, tuple[str, ...]]
) -> None:
    file = written(tmp_path, YAML.replace("seq_len: 256", "seq_len: 256, steps: 5, stepz: 5"))
    found = labels(file, override, "training.global_batch_size=12")
    assert sorted(found, key=str) == sorted(
        [
            problem,
            ("unknown-key", ("training", "stepz")),
            ("conflict/batch-sizes-divide", ("training", "global_batch_size")),
        ],
        key=str,
    )


def test_nothing_is_said_about_a_value_that_an_unreadable_override_replaces(tmp_path: Path) -> None:
    file = written(tmp_path, YAML + "lr_scheduler: {warmup_steps: 40}\n")
    assert labels(file, "lr_scheduler.warmup_steps=010", "training.steps=5") == [
        ("ambiguous-number", ("lr_scheduler", "warmup_steps"))
    ]


def test_settings_that_nothing_reads_are_judged_by_what_was_written(tmp_path: Path) -> None:
    file = written(tmp_path, YAML.replace("enable: true, ", "") + "checkpoint: {interval: 500}\n")
    assert resolve_recipe(file, environment={}).warnings == ()
    warned = resolve_recipe(file, ["validation.freq=3"], environment={}).warnings
    assert [(problem.label, problem.path) for problem in warned] == [
        ("no-effect/settings-need-validation", ("validation", "freq"))
    ]


def test_a_resolved_recipe_is_not_warned_about_what_it_wrote_itself(tmp_path: Path) -> None:
    resolved = resolve_recipe(written(tmp_path, YAML.replace("enable: true, ", "")), environment={})
    assert (
        resolve_recipe(written(tmp_path, resolved.text, "resolved.yaml"), environment={}).warnings
        == ()
    )


def test_the_global_batch_follows_the_ranks_that_are_known(tmp_path: Path) -> None:
    file = written(tmp_path, YAML)
    assert resolve_recipe(file, environment={}).run.training.global_batch_size == 8
    assert resolve_recipe(file, environment={}, ranks=4).run.training.global_batch_size == 32
    assert (
        resolve_recipe(file, environment={}, ranks=4).run.parallelism.data_parallel_shard_degree
        == "auto"
    )


def test_a_misspelt_section_is_one_mistake_also_where_a_base_has_the_section(
    tmp_path: Path,
) -> None:
    # Row C7 of the defect list: training.dataset was reported as missing as well
    (tmp_path / "base.yaml").write_text("training: {seq_len: 64}\nmodel: {n_layers: 2}\n")
    text = (
        "version: 1\nextends: base.yaml\n{}: {{name: llama3, flavor: debugmodel}}\n"
        "{}: {{dataset: tiny, steps: 4}}\n"
    )
    for model, training in (("model", "trainiing"), ("modle", "training"), ("modle", "trainiing")):
        misspelt = sorted({model, training} & {"modle", "trainiing"})
        found = labels(written(tmp_path, text.format(model, training)))
        assert sorted(found) == [("unknown-key", (key,)) for key in misspelt]


def test_a_resolved_recipe_does_not_repeat_the_warnings_of_its_recipe(tmp_path: Path) -> None:
    # Row C8 of the defect list: schedule-free-stays-high came again
    text = (
        "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntraining: {dataset: tiny}\n"
        "optimizer: schedule_free_adamw\n"
    )
    resolved = resolve_recipe(written(tmp_path, text), environment={})
    assert [problem.rule for problem in resolved.warnings] == ["schedule-free-stays-high"]
    again = written(tmp_path, resolved.text, "resolved.yaml")
    assert resolve_recipe(again, environment={}).warnings == ()
    # what an override brings about is new
    changed = resolve_recipe(again, ["lr_scheduler.name=cosine"], environment={})
    assert [problem.rule for problem in changed.warnings] == ["schedule-free-stays-high"]


@pytest.mark.parametrize("base", ["nowhere.yaml", "broken.yaml"])
def test_a_base_that_cannot_be_read_hides_no_other_mistake(tmp_path: Path, base: str) -> None:
    # Row C9 of the defect list: "file not found" was all that was reported
    (tmp_path / "broken.yaml").write_text("model: {name: llama3\n")
    text = (
        f"version: 1\nextends: {base}\nmodel: {{n_layerz: 2}}\n"
        "optimizer: {lr: fast, momentum: 0.5}\n"
        'training: {stepz: 4, seq_len: "${training.steps}"}\n'
        "checkpoint: {interval: -1}\nlr_scheduler: {name: constant, powr: 0.5}\n"
    )
    found = labels(written(tmp_path, text), "training.tokenz=3", "debug.seed=x")
    # not momentum, n_layerz and what is missing: the base may say which optimizer and model it is
    assert sorted(found[1:]) == [
        ("out-of-range", ("checkpoint", "interval")),
        ("unknown-key", ("lr_scheduler", "powr")),
        ("unknown-key", ("training", "stepz")),
        ("unknown-key", ("training", "tokenz")),
        ("wrong-type", ("debug", "seed")),
    ]
    assert found[0][0] == ("file" if base == "nowhere.yaml" else "syntax")


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("base_model: meta/Llama\nadapter: lora\nsequence_len: 64\n", "migrate"),
        ("model: {_component_: torchtune.models.llama3.llama3_8b}\nepochs: 1\n", "migrate"),
        ("job: {description: x}\nmodel: {flavor: 8B}\n", "migrate"),
        ("version: 1\nrecipe: mine.yaml\ngrid: {optimizer.lr: [1.0e-3]}\n", "sweep"),
        ("version: 1\nbase: mine.yaml\ngrid: {optimizer.lr: [1.0e-3]}\n", "sweep"),
        ("version: 1\nzip: {optimizer.lr: [1.0e-3]}\n", "sweep"),
    ],
)
def test_a_file_that_is_no_recipe_is_one_problem_with_the_command_for_it(
    tmp_path: Path, text: str, command: str
) -> None:
    # Row C10 of the defect list: each key was unknown
    file = written(tmp_path, text)
    with pytest.raises(ProblemsFound) as caught:
        resolve_recipe(file, environment={})
    (problem,) = caught.value.problems
    assert problem.hint == f"titanrun {command} {file}"
    assert problem.origin is not None and "not a recipe" in problem.message


WARMING = (
    "version: 1\nmodel: {name: llama3, flavor: debugmodel}\n"
    "training: {dataset: tiny, steps: 1000}\nlr_scheduler: {warmup_steps: 100}\n"
)


def test_fewer_steps_on_the_command_line_shorten_the_warmup(tmp_path: Path) -> None:
    # Row C18 of the defect list: a short trial of a recipe with a fixed warmup was refused
    file = written(tmp_path, WARMING)
    short = resolve_recipe(file, ["training.steps=20"], environment={})
    assert short.run.lr_scheduler.warmup_steps == 2  # type: ignore[attr-defined]
    (warning,) = short.warnings
    assert (warning.severity, warning.path) == ("warning", ("training", "steps"))
    (place,) = warning.related
    assert place.origin is not None and place.origin.line == 4
    # one that fits, and one that was asked for as well, stay
    assert not resolve_recipe(file, ["training.steps=100"], environment={}).warnings
    both = ["training.steps=20", "lr_scheduler.warmup_steps=30"]
    assert labels(file, *both) == [("conflict/warmup-within-run", ("lr_scheduler", "warmup_steps"))]


def test_a_warmup_above_the_steps_of_a_file_is_a_conflict(tmp_path: Path) -> None:
    file = written(tmp_path, WARMING.replace("steps: 1000", "steps: 20"))
    assert labels(file) == [("conflict/warmup-within-run", ("lr_scheduler", "warmup_steps"))]


@pytest.mark.parametrize("model", ["{name: llama3, flavor: huge}", "{flavor: debugmodel}"])
def test_a_model_of_unknown_size_does_not_hide_conflicts_elsewhere(
    model: str, tmp_path: Path
) -> None:
    file = written(tmp_path, WARMING.replace("steps: 1000", "steps: 20"))
    tree = re.sub(r"model: \{.*\}", f"model: {model}", Path(file).read_text())
    first, *others = labels(written(tmp_path, tree))
    assert first[1][0] == "model"
    has_family = "name" in model
    assert others == [("conflict/warmup-within-run", ("lr_scheduler", "warmup_steps"))] * has_family


@pytest.mark.parametrize(("batch", "lanes"), [(64, 64), (65, 13), (67, 1)])
def test_lanes_are_the_largest_divisor_of_the_batch_up_to_64(
    batch: int, lanes: int, tmp_path: Path
) -> None:
    file = written(
        tmp_path,
        "version: 1\ntokenizer: tiny\nmodel: {name: llama3, flavor: debugmodel}\n"
        "training: {dataset: {name: text, path: '*.jsonl', streaming: true}, seq_len: 64, "
        f"steps: 2, local_batch_size: 1, global_batch_size: {batch}}}\n",
    )
    assert resolve_recipe(file, environment={}).run.training.lanes == lanes


def test_a_machine_gives_its_ranks_to_recipes_that_leave_them_open(tmp_path: Path) -> None:
    for device, ranks in (("cpu", 1), ("gpu", 8)):
        text = YAML + f"device: {device}\n"
        recipe = resolve_recipe(written(tmp_path, text), environment={}).recipe
        assert ResolveOptions("", machine_ranks=8).get_ranks(recipe) == ranks
        assert ResolveOptions("", ranks=3, machine_ranks=8).get_ranks(recipe) == 3
        assert ResolveOptions("").get_ranks(recipe) is None


@pytest.mark.parametrize(("device", "pins"), [("cpu", False), ("gpu", True), ("auto", True)])
def test_batches_are_pinned_where_the_device_may_be_an_accelerator(
    device: str, pins: bool, tmp_path: Path
) -> None:
    file = written(
        tmp_path,
        f"version: 1\ndevice: {device}\nmodel: {{name: llama3, flavor: debugmodel}}\n"
        "training: {dataset: tiny, seq_len: 64}\n",
    )
    run = resolve_recipe(file, environment={}).run
    assert run.training.dataloader.pin_memory is pins
    assert run.validation.dataloader.pin_memory is pins
    asked = resolve_recipe(file, ["training.dataloader.pin_memory=false"], environment={}).run
    assert asked.training.dataloader.pin_memory is False


@pytest.mark.parametrize(
    ("device", "products"), [("cpu", "ieee"), ("gpu", "tf32"), ("auto", "tf32")]
)
def test_an_fp32_head_multiplies_in_tf32_where_the_device_may_be_an_accelerator(
    device: str, products: str, tmp_path: Path
) -> None:
    file = written(
        tmp_path,
        f"version: 1\ndevice: {device}\nmodel: {{name: llama3, flavor: debugmodel}}\n"
        "converters: [fp32_lm_head]\ntraining: {dataset: tiny, seq_len: 64}\n",
    )
    run = resolve_recipe(file, environment={}).run
    assert [getattr(converter, "products", None) for converter in run.converters] == [products]


LARGE = "{name: llama3, flavor: debugmodel, vocab_size: 32768}"


@pytest.mark.parametrize(
    ("device", "model", "further", "name"),
    [
        ("gpu", LARGE, [], "chunked_cross_entropy"),
        ("auto", LARGE, [], "chunked_cross_entropy"),
        ("gpu", LARGE, ["loss=auto"], "chunked_cross_entropy"),
        ("cpu", LARGE, [], "cross_entropy"),
        ("gpu", LARGE.replace("32768", "32767"), [], "cross_entropy"),
        ("gpu", LARGE, ["parallelism.pipeline_parallel_degree=2"], "cross_entropy"),
        ("gpu", LARGE.replace("llama3", "decoder"), [], "chunked_cross_entropy"),
        (
            "gpu",
            LARGE.replace("llama3", "decoder").replace("}", ", logit_soft_cap: 30.0}"),
            [],
            "cross_entropy",
        ),
        ("gpu", LARGE, ["loss=cross_entropy"], "cross_entropy"),
    ],
)
def test_the_loss_is_computed_in_chunks_where_the_vocabulary_is_large(
    device: str, model: str, further: list[str], name: str, tmp_path: Path
) -> None:
    file = written(
        tmp_path,
        f"version: 1\ndevice: {device}\nmodel: {model}\n"
        "training: {dataset: {name: tokens, path: rows.npy}, seq_len: 1024, steps: 1}\n",
    )
    resolved = resolve_recipe(file, [*further, "training.local_batch_size=16"], environment={})
    assert resolved.run.loss.name == name
    # 16,384 tokens, 256 wide: 128 tokens have logits as large as that, and 512 are the fewest
    assert getattr(resolved.run.loss, "num_chunks", 32) == 32
    source = collect_value_sources(resolved)[("loss", "name")]
    assert (source.kind == "decided") == ("loss=cross_entropy" not in further)
    again = written(tmp_path, resolved.text)
    assert resolve_recipe(again, environment={}).text == resolved.text


def test_settings_of_a_cross_entropy_stay_whichever_it_becomes(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        f"version: 1\nmodel: {LARGE}\nloss: {{label_smoothing: 0.1, z_loss: 0.01}}\n"
        "training: {dataset: {name: tokens, path: rows.npy}, seq_len: 1024, steps: 1}\n",
    )
    for device in ("gpu", "cpu"):
        loss = resolve_recipe(file, [f"device={device}"], environment={}).run.loss
        assert isinstance(loss, CrossEntropyConfig)
        assert (loss.name == "cross_entropy") == (device == "cpu")
        assert (loss.label_smoothing, loss.z_loss) == (0.1, 0.01)


def test_only_a_section_that_may_be_left_out_is_said_to_be(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntraining:\noptimizer:\n",
    )
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe(file, environment={})
    hints = {problem.path: problem.hint for problem in found.value.problems}
    assert hints == {
        ("training",): "write its keys below it, indented",
        ("optimizer",): "write its keys below it, indented, or leave it out",
    }
    file = written(
        tmp_path,
        "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntraining: 3\noptimizer: 3\n",
    )
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe(file, environment={})
    hints = {problem.path: problem.hint for problem in found.value.problems}
    assert hints == {
        ("training",): "write its keys below it, indented, one `key: value` a line",
        ("optimizer",): None,
    }


def test_a_wrong_value_in_the_dataset_does_not_hide_what_is_wrong_elsewhere(
    tmp_path: Path,
) -> None:
    file = written(
        tmp_path,
        "version: 1\ntokenizer: tiny\nmodel: {name: llama3, flavor: debugmodel}\n"
        "training: {dataset: {name: hub, repo: a/b, revision: 3}, seq_len: 64, steps: 2}\n"
        "parallelism: {tensor_parallel_degree: 7}\n",
    )
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe(file, environment={})
    paths = {problem.path for problem in found.value.problems}
    assert paths == {
        ("training", "dataset", "revision"),
        ("training", "seq_len"),
        ("parallelism", "tensor_parallel_degree"),
    }


def test_the_commit_of_main_is_put_into_datasets_of_the_hub_alone(tmp_path: Path) -> None:
    commit = "c" * 40
    environment = {"HOME": str(tmp_path), "TITANRUN_CACHE": str(tmp_path / "cache")}
    for recorded in ("b" * 40, commit):
        record_dataset_commit("owner/words", recorded, environment)
        assert find_dataset_commit("owner/words", environment) == recorded
    base = (
        "version: 1\nkind: sft\ntokenizer: tiny\n"
        "model: {{name: llama3, flavor: debugmodel, attention: {{mask: block_causal}}}}\n"
        "training: {{dataset: {{name: chat, {}}}, seq_len: 64, steps: 2}}\n"
    )
    for source, revision in (
        ("repo: owner/words", commit),
        ("repo: owner/other", None),
        (f"repo: owner/words, revision: {'a' * 40}", "a" * 40),
        ("path: chats.jsonl", None),
    ):
        file = written(tmp_path, base.format(source))
        dataset = resolve_recipe(file, environment=environment).run.training.dataset
        assert getattr(dataset, "revision", None) == revision
    tree = resolve_recipe(file, environment=environment).tree
    assert not list(iter_datasets_without_revision(tree))


def test_overrides_are_not_applied_to_a_recipe_that_is_loaded(tmp_path: Path) -> None:
    file = written(tmp_path, YAML)
    resolved = resolve_source(file, ["training.seq_len=64"], environment={}, ranks=None)
    for loaded in (resolved, resolved.run):
        assert resolve_source(loaded, environment={}, ranks=None).run == resolved.run
        with pytest.raises(ProblemsFound) as found:
            resolve_source(loaded, ["training.seq_len=32"], environment={}, ranks=None)
        assert found.value.problems[0].code == "usage"


def test_a_value_of_a_run_keeps_the_source_that_the_run_recorded(tmp_path: Path) -> None:
    recorded = {"source": "file", "file": "mine.yaml", "line": 4, "column": 9}
    resolved = resolve_recipe(written(tmp_path, YAML), environment={})
    file = written(tmp_path, resolved.text, "resolved.yaml")
    sources = {"format": 1, "values": {"training.seq_len": recorded}}
    written(tmp_path, json.dumps(sources), "resolved.sources.json")
    again = resolve_recipe(file, ["training.steps=3"], environment={})
    values = build_source_report(collect_value_sources(again), again.tree, [])["values"]
    assert values["training.seq_len"] == recorded
    assert values["training.steps"]["source"] == "override"
    assert values["optimizer.lr"]["file"] == file
    assert "shadowed" not in values["optimizer.lr"]
    replaced = resolve_recipe(written(tmp_path, YAML), ["training.seq_len=64"], environment={})
    values = build_source_report(collect_value_sources(replaced), replaced.tree, [])["values"]
    # a file that is gone when the run is recorded has no hash
    Path(tmp_path / "recipe.yaml").unlink()
    report = build_source_report(collect_value_sources(replaced), replaced.tree, [])
    assert report["files"] == {}
    assert values["training.seq_len"]["shadowed"] == [f"{tmp_path / 'recipe.yaml'}:4:36"]


def test_the_source_of_each_value_is_the_place_where_it_was_written(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "version: 1\nmodel: {name: llama3, flavor: debugmodel}\n"
        "training: {dataset: tiny, seq_len: 64, steps: 2}\n"
        "optimizer: {name: sgd}\nlr_scheduler: constant\n",
    )
    resolved = resolve_recipe(file, ["training.steps=3"], environment={})
    found = collect_value_sources(resolved)
    origins = {path: str(source.origin) for path, source in found.items() if source.origin}
    assert origins == {
        ("version",): f"{file}:1:10",
        ("model", "name"): f"{file}:2:15",
        ("model", "flavor"): f"{file}:2:31",
        ("training", "dataset", "name"): f"{file}:3:21",
        ("training", "seq_len"): f"{file}:3:36",
        ("training", "steps"): "<override 1>",
        ("optimizer", "name"): f"{file}:4:19",
        ("lr_scheduler", "name"): f"{file}:5:15",
    }
    assert str(found[("optimizer", "lr")]) == "default"
    assert str(found[("training", "seq_len")]) == f"{file}:3:36"


def test_a_model_is_found_in_the_cache_with_the_parts_that_were_fetched(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "TITANRUN_CACHE": str(tmp_path)}
    commit = "d" * 40
    model, of_commit = HubModel("owner/name"), HubModel("owner/name", commit)
    assert find_model_folder(model, environment) is None
    folder = get_hub_folder("owner/name", environment) / commit
    folder.mkdir(parents=True)
    (folder / RECORD_FILE).write_text('{"parts": ["config"]}')
    assert find_model_folder(of_commit, environment, part="config") == folder
    assert find_model_folder(of_commit, environment, part="weights") is None
    assert find_model_folder(model, environment, part="config") is None
    get_reference_file(model, environment).parent.mkdir()
    get_reference_file(model, environment).write_text(commit)
    assert find_model_folder(model, environment, part="config") == folder


def test_a_folder_of_transformers_is_a_recipe_with_its_sizes(tmp_path: Path) -> None:
    sizes = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6}
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"], vocab_size=96, num_key_value_heads=2, **sizes
    )
    config.save_pretrained(tmp_path)
    model = resolve_from_huggingface(tmp_path).run.model
    assert (model.name, model.dim, model.n_layers, model.n_heads, model.n_kv_heads) == (
        "llama3",
        48,
        3,
        6,
        2,
    )


@pytest.mark.parametrize(
    ("model", "backend"),
    [
        ("llama3, flavor: debugmodel", "sdpa"),
        ("llama3, flavor: debugmodel, attention: {mask: block_causal}", "flex"),
        ("llama3, flavor: debugmodel, attention: {mask: block_causal, backend: sdpa}", "sdpa"),
        ("llama3, flavor: debugmodel_varlen_attn", "varlen"),
        ("deepseek_v3, flavor: debugmodel, attention: {mask: block_causal}", "flex"),
        ("decoder, flavor: debugmodel, attention: {window: 16}", "flex"),
    ],
)
def test_attention_skips_masked_scores_unless_it_is_told_how(
    tmp_path: Path, model: str, backend: str
) -> None:
    file = written(
        tmp_path,
        f"version: 1\ntokenizer: tiny\nmodel: {{name: {model}}}\n"
        "training: {dataset: {name: c4_test}, seq_len: 64, steps: 2}\n",
    )
    resolved = dump_config(resolve_recipe(file, environment={}).run)
    assert resolved["model"]["attention"]["backend"] == backend
