"""docs/models.md says what results.json does, of every family, and no cell is unproven."""

import json
from pathlib import Path

import pytest

from tests.models.proofs import COLUMNS, NO_EXPERTS, PROOFS, REFUSED, RESULTS
from titanrun.config import registry
from titanrun.models.shared.config import ModelConfig
from titanrun.recipe.builtins import register_builtins
from titanrun.recipe.rules.model import find_unsupported_features
from tools.write_models import TARGET, page

ROOT = Path(__file__).parents[2]
FEATURES = {
    "TP": "tensor parallelism",
    "PP": "pipeline parallelism",
    "CP": "context parallelism",
    "EP": "expert parallelism",
}


def test_the_page_is_what_the_results_say():
    assert TARGET.read_text(encoding="utf-8") == page()


def test_every_cell_of_every_family_is_proven_or_refused():
    register_builtins()
    assert {family.split()[0] for family in PROOFS} == set(registry.get_choice_names(ModelConfig))
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    for family, proofs in PROOFS.items():
        for column in COLUMNS:
            assert (column in proofs) != ((family, column) in REFUSED), f"{family}, {column}"
            assert column not in proofs or proofs[column] in results, (
                f"{family}, {column}: run {proofs[column]}"
            )


@pytest.mark.parametrize(
    "proof", sorted({proof for proofs in PROOFS.values() for proof in proofs.values()})
)
def test_what_proves_a_cell_is_a_test(proof):
    file, _, name = proof.partition("::")
    function, _, case = name.rstrip("]").partition("[")
    text = (ROOT / file).read_text(encoding="utf-8")
    assert f"def {function}(" in text
    assert not case or f'"{case}"' in text


@pytest.mark.parametrize(
    ("family", "column"), [cell for cell, why in REFUSED.items() if why != NO_EXPERTS]
)
def test_what_is_refused_a_rule_refuses(family, column):
    register_builtins()
    chosen = registry.load_choice(ModelConfig, family)
    assert FEATURES[column] in find_unsupported_features(chosen.model_construct())
