"""Where the architecture of a transformers model comes from, and what is asked of its file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.models.shared.spec.flavors import resolve_model_sizes
from titanrun.models.transformers.config import TransformersConfig

FILE = Path(__file__).with_name("mistral.json")
WRITTEN = json.loads(FILE.read_text())


def spelled(**written: object) -> dict[str, object]:
    return resolve_model_sizes(TransformersConfig.model_validate(written))


def test_the_architecture_is_read_from_a_file_a_folder_or_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(FILE.read_text())
    found = [
        spelled(path=str(FILE)),
        spelled(path=str(tmp_path)),
        spelled(hf_assets_path=str(tmp_path)),
        spelled(hf_assets_path=str(tmp_path), flavor="auto"),
        spelled(config_json=json.dumps(WRITTEN)),
    ]
    for sizes in found:
        assert json.loads(str(sizes["config_json"])) == WRITTEN
        assert (sizes["vocab_size"], sizes["max_seq_len"], sizes["flavor"]) == (2048, 256, None)


def test_a_flavor_is_an_architecture_to_begin_with() -> None:
    sizes = spelled(flavor="debugmodel")
    assert (
        TransformersConfig.read_huggingface_sizes(json.loads(str(sizes["config_json"]))).keys()
        <= sizes.keys()
    )
    assert (sizes["vocab_size"], sizes["max_seq_len"], sizes["flavor"]) == (
        2048,
        2048,
        "debugmodel",
    )


def test_what_is_resolved_needs_the_file_no_more(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(FILE.read_text())
    resolved = spelled(path=str(tmp_path))
    file.unlink()
    assert spelled(**resolved) == resolved


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({}, "needs path"),
        ({"flavor": "debugmodel", "path": str(FILE)}, "path name different architectures"),
        ({"flavor": "7B"}, "transformers has no flavor '7B'"),
        ({"path": "nowhere"}, "file not found: nowhere"),
        ({"config_json": "{"}, "is not JSON"),
        ({"config_json": "[]"}, "does not contain a mapping"),
        ({"config_json": "{}"}, "model_type is missing"),
        ({"config_json": '{"model_type": "t5", "is_encoder_decoder": true}'}, "with an encoder"),
        ({"config_json": '{"model_type": "gemma3", "text_config": {}}'}, "nested in text_config"),
        ({"config_json": '{"model_type": "mamba", "vocab_size": 64}'}, "needs max_seq_len"),
    ],
)
def test_a_file_that_describes_no_model_is_a_problem(
    written: dict[str, object], words: str
) -> None:
    with pytest.raises(ProblemsFound) as caught:
        spelled(**written)
    assert words in caught.value.problems[0].message


@pytest.mark.slow
def test_who_has_no_torch_asks_a_process_of_its_own() -> None:
    code = (
        "import json, sys; from titanrun.models.shared.spec.flavors import resolve_model_sizes; "
        "from titanrun.models.shared.spec.flops import count_parameters; "
        "from titanrun.models.transformers.config import TransformersConfig as C; "
        f"config = "
        f"C.model_validate(resolve_model_sizes(C.model_validate({{'path': {str(FILE)!r}}}))); "
        "print(count_parameters(config), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["146592", "False"]
