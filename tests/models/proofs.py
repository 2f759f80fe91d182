"""Which tests prove what docs/models.md says of each family. tools/write_models.py writes the page
from results.json, which a test run
with TITANRUN_WRITE_FAMILIES set keeps up."""

import json
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(__file__).with_name("results.json")
COLUMNS = (
    "HF parity",
    "export opens",
    "FSDP",
    "TP",
    "PP",
    "CP",
    "EP",
    "compile",
    "AC",
    "float8-ready",
)
LAYOUT = "tests/distributed/test_layouts.py::test_a_layout_trains_as_one_process_does"
FLOAT8 = "tests/models/test_float8.py::test_a_family_trains_in_float8_as_without_it"
OPENS = "test_transformers_opens_what_is_exported_and_gives_the_same_logits"
HERE = "test_weights_of_transformers_give_its_logits_here"
OTHERS = (
    "tests/models/transformers/test_model.py"
    "::test_loss_gradients_and_counts_are_those_of_the_class_called_by_hand"
)
NO_EXPERTS = "it has no experts"


def of_family(folder: str, name: str, **layouts: str) -> dict[str, str]:
    """The proofs of a family, with the names of its layouts by column."""
    tests = f"tests/models/{folder}/test_huggingface.py"
    return {
        "HF parity": f"{tests}::{HERE}",
        "export opens": f"{tests}::{OPENS}",
        **{column: f"{LAYOUT}[{layout}]" for column, layout in layouts.items()},
        "float8-ready": f"{FLOAT8}[{name}]",
    }


PROOFS: dict[str, dict[str, str]] = {
    "llama3": of_family(
        "llama3",
        "llama3",
        FSDP="fsdp2",
        TP="tp2_odd",
        PP="pp2_1f1b",
        CP="cp2",
        compile="fsdp2_compiled",
        AC="fsdp2_recomputed",
    ),
    "llama4": of_family(
        "llama4",
        "llama4",
        FSDP="llama4_fsdp2_recomputed",
        TP="llama4_tp2",
        PP="llama4_pp2_zbv",
        CP="llama4_cp2",
        EP="llama4_cp2_ep2_alltoall",
        compile="llama4_fsdp2_compiled_operations_recomputed",
        AC="llama4_fsdp2_recomputed",
    ),
    "qwen3": of_family(
        "qwen3",
        "qwen3",
        FSDP="fsdp2_compiled_operations_recomputed_qwen3",
        TP="tp2_qwen3",
        PP="pp2_qwen3",
        CP="cp2_qwen3",
        compile="fsdp2_compiled_operations_recomputed_qwen3",
        AC="fsdp2_compiled_operations_recomputed_qwen3",
    ),
    "qwen3 with experts": of_family(
        "qwen3",
        "qwen3_moe",
        FSDP="experts_fsdp2",
        TP="tp2_qwen3_moe",
        PP="pp2_qwen3_moe",
        CP="cp2_qwen3_moe",
        EP="fsdp2_ep2",
        compile="fsdp2_compiled_qwen3_moe",
        AC="fsdp2_ep2_recomputed",
    ),
    "deepseek_v3": of_family(
        "deepseek_v3",
        "deepseek_v3",
        FSDP="fsdp2_deepseek_v3_recomputed",
        TP="tp2_deepseek_v3",
        PP="pp4_deepseek_v3",
        CP="cp2_deepseek_v3",
        EP="fsdp4_ep2_deepseek_v3_compiled",
        compile="fsdp4_ep2_deepseek_v3_compiled",
        AC="fsdp2_deepseek_v3_recomputed",
    ),
    "gpt_oss": of_family(
        "gpt_oss",
        "gpt_oss",
        FSDP="gpt_oss_fsdp2_ep2_recomputed",
        TP="gpt_oss_tp2",
        PP="gpt_oss_pp2_zbv",
        CP="gpt_oss_cp2",
        EP="gpt_oss_fsdp2_ep2_recomputed",
        compile="gpt_oss_fsdp2_compiled_operations_recomputed",
        AC="gpt_oss_fsdp2_ep2_recomputed",
    ),
    "flux": {
        **of_family(
            "flux",
            "flux",
            FSDP="fsdp2_flux",
            CP="cp2_flux",
            compile="fsdp2_flux_compiled_recomputed",
            AC="fsdp2_flux_compiled_recomputed",
        ),
        "HF parity": (
            "tests/models/flux/test_model.py::test_velocity_and_gradients_are_those_of_diffusers"
        ),
        "export opens": "tests/models/flux/test_model.py::test_diffusers_opens_an_export",
    },
    "decoder": {
        **of_family(
            "decoder",
            "decoder",
            FSDP="fsdp2_ep2_compiled_recomputed_decoder",
            TP="tp2_decoder",
            PP="pp2_decoder",
            CP="cp2_decoder",
            EP="fsdp2_tp2_ep2_etp2_decoder",
            compile="fsdp2_ep2_compiled_recomputed_decoder",
            AC="fsdp2_ep2_compiled_recomputed_decoder",
        ),
        "HF parity": (
            "tests/models/decoder/test_ingredients.py"
            "::test_logits_and_gradients_are_those_of_transformers"
        ),
        "export opens": (
            "tests/models/decoder/test_families.py::test_transformers_opens_what_is_exported"
        ),
    },
    "transformers": {
        **of_family("transformers", "transformers", FSDP="fsdp2_mistral", TP="tp2_mistral"),
        **dict.fromkeys(
            ("compile", "AC"), f"{LAYOUT}[fsdp2_mistral_compiled_operations_recomputed]"
        ),
        **dict.fromkeys(("HF parity", "export opens"), OTHERS),
    },
}
"""By family and column, the test; one without parameters stands for all of its cases."""
REFUSED: dict[tuple[str, str], str] = {
    ("llama3", "EP"): NO_EXPERTS,
    ("qwen3", "EP"): NO_EXPERTS,
    ("flux", "TP"): "flux has no plan for it",
    ("flux", "PP"): "its layers need text and time in addition to the stream",
    ("flux", "EP"): NO_EXPERTS,
    ("transformers", "PP"): "its forward pass cannot be split into stages",
    ("transformers", "CP"): "its attention needs whole sequences",
    ("transformers", "EP"): "its experts stay whole",
}
"""What a rule refuses, and why."""


class Passed:
    """Collects what happens to the tests that prove something, and keeps what passed.

    Args:
        proofs: the tests, one without parameters for all of its cases.
        results: where it is kept.
    """

    def __init__(self, proofs: Iterable[str], results: Path) -> None:
        self.proofs, self.results = sorted(set(proofs)), results
        self.outcomes: dict[str, list[bool]] = defaultdict(list)

    def observe(self, nodeid: str, *, passed: bool) -> None:
        """A test has ended."""
        self.outcomes[nodeid].append(passed)

    def write(self) -> None:
        """Stamps the cells all of whose cases have passed, with commit and date."""
        results = (
            json.loads(self.results.read_text(encoding="utf-8")) if self.results.exists() else {}
        )
        stamp = {"commit": tested_commit(), "date": datetime.now(UTC).date().isoformat()}
        for proof in self.proofs:
            ended = [
                all(passed)
                for nodeid, passed in self.outcomes.items()
                if nodeid == proof or nodeid.startswith(f"{proof}[")
            ]
            if ended and all(ended):
                results[proof] = stamp
        self.results.write_text(
            json.dumps(dict(sorted(results.items())), indent=1) + "\n", encoding="utf-8"
        )


def tested_commit() -> str:
    """The commit that is tested, marked where files differ from it: all but the results."""
    commit, changed = (
        git("rev-parse", "--short=10", "HEAD"),
        git("status", "--porcelain", "--", ":/", ":(top,exclude,glob)**/results.json"),
    )
    return f"{commit}-dirty" if changed else commit


def git(*arguments: str) -> str:
    """What git says; nothing where this is no clone."""
    return subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=False, cwd=RESULTS.parent
    ).stdout.strip()
