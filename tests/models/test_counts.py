"""The modules of all flavors have the worked numbers of parameters: built on the meta device, which
allocates nothing."""

import pytest
import torch

from titanrun.config import registry
from titanrun.models.shared.config import ModelConfig
from titanrun.models.shared.spec.flavors import resolve_model_sizes
from titanrun.recipe.builtins import register_builtins

# by family and flavor, a tied matrix once
PARAMETERS = {
    ("llama3", "debugmodel"): 6_163_712,
    ("llama3", "8B"): 8_030_261_248,
    ("llama3", "70B"): 70_553_706_496,
    ("llama3", "405B"): 405_853_388_800,
    ("qwen3", "debugmodel"): 31_987_968,
    ("qwen3", "0.6B"): 596_049_920,
    ("qwen3", "1.7B"): 1_720_574_976,
    ("qwen3", "4B"): 4_022_468_096,
    ("qwen3", "8B"): 8_190_735_360,
    ("qwen3", "14B"): 14_768_307_200,
    ("qwen3", "32B"): 32_762_123_264,
    ("qwen3", "debugmodel_moe"): 315_758_848,
    ("qwen3", "30B-A3B"): 30_532_122_624,
    ("qwen3", "235B-A22B"): 235_093_634_560,
    ("deepseek_v3", "debugmodel"): 33_014_016,
    ("deepseek_v3", "16B"): 15_706_484_224,
    ("deepseek_v3", "236B"): 235_741_434_880,
    ("deepseek_v3", "671B"): 671_026_404_352,
    ("gpt_oss", "debugmodel"): 183_397_920,
    ("gpt_oss", "20b"): 20_914_757_184,
    ("gpt_oss", "120b"): 116_829_156_672,
    ("llama4", "debugmodel"): 15_017_216,
    ("llama4", "17bx16e"): 107_769_861_120,
    ("llama4", "17bx128e"): 400_711_848_960,
}


@pytest.mark.parametrize(("family", "flavor"), PARAMETERS)
def test_the_module_of_a_flavor_has_the_worked_number_of_parameters(
    family: str, flavor: str
) -> None:
    register_builtins()
    chosen = registry.load_choice(ModelConfig, family)
    config = chosen.model_validate(
        resolve_model_sizes(chosen.model_validate({"name": family, "flavor": flavor}))
    )
    with torch.device("meta"):
        model = registry.load_implementation(chosen)(config, seq_len=16)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[family, flavor]
