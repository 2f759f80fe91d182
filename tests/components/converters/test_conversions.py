"""What each converter takes of a model, what it leaves and why; nothing is computed here."""

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from titanrun.components.converters.config import (
    ConverterConfig,
    Float8GroupedMmConfig,
    Float8LinearConfig,
    Fp32LmHeadConfig,
    Mxfp8GroupedMmConfig,
    Mxfp8LinearConfig,
    Nvfp4LinearConfig,
)
from titanrun.components.converters.conversion_report import (
    ConversionReport,
)
from titanrun.components.converters.grouped_mm import compute_padded_slots, multiply_padded_groups
from titanrun.components.converters.mxfp8_linear import get_matmul_arguments
from titanrun.components.converters.spec.batch_dependence import depends_on_batch
from titanrun.components.converters.spec.module_names import collapse_layer_numbers
from titanrun.config import registry

SHAPES = {
    "layers.0.wq": (64, 32),
    "layers.0.wk": (24, 32),
    "layers.1.wq": (64, 32),
    "gate": (4096, 8192),
    "output": (128, 32),
}


class Experts(nn.Module):
    """A stack of experts as the families have it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(4, width, 64))
        self.grouped_mm: Callable[..., Any] | None = None


def model(**parts: nn.Module) -> nn.Module:
    """Linear modules of SHAPES on the meta device, and whatever else."""
    with torch.device("meta"):
        whole = nn.Module()
        whole.layers = nn.ModuleList([nn.Module(), nn.Module()])
        for name, (rows, columns) in SHAPES.items():
            parent, _, attribute = name.rpartition(".")
            setattr(whole.get_submodule(parent), attribute, nn.Linear(columns, rows, bias=False))
    for name, part in parts.items():
        setattr(whole, name, part)
    return whole


def describe_parameters(whole: nn.Module) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (weight.shape, weight.dtype) for name, weight in whole.named_parameters()}


def converted(config: ConverterConfig, whole: nn.Module, *, shards: int = 1) -> ConversionReport:
    """What the converter did, whose parameters are still the same."""
    before = describe_parameters(whole)
    conversion = config.load_builder()(config, model=whole, shards=shards)
    # what a plan measures without them
    assert config.changes_parameters or describe_parameters(whole) == before
    assert isinstance(conversion, ConversionReport)
    return conversion


def test_float8_takes_linear_modules_in_blocks_that_no_filter_names() -> None:
    whole = model()
    conversion = converted(Float8LinearConfig(filter_fqns=("output", "gate")), whole)
    assert conversion.converted == ("layers.0.wq", "layers.1.wq")
    assert conversion.skipped == {
        "layers.0.wk": "24 x 32 is not in blocks of 16",
        "gate": "'gate' is in its name",
        "output": "'output' is in its name",
    }
    assert conversion.summary.startswith(
        "2 modules (layers.*.wq); skipped layers.*.wk: 24 x 32 is not in blocks of 16; skipped "
        "gate: "
    )
    assert [type(whole.get_submodule(name)).__name__ for name in SHAPES] == [
        *("Float8Linear", "Linear", "Float8Linear", "Linear", "Linear"),
    ]


def test_small_modules_are_left_where_they_gain_nothing() -> None:
    conversion = converted(
        Float8LinearConfig(auto_filter_small_kn=True, recipe_name="rowwise"), model()
    )
    assert conversion.converted == ("gate",)
    assert conversion.skipped["layers.0.wq"] == "64 x 32 is too small to gain"


@pytest.mark.parametrize(
    ("recipe", "scaled"),
    [("tensorwise", "dyn_ten"), ("rowwise", "dyn_axs"), ("rowwise_with_gw_hp", "dyn_axs")],
)
def test_the_recipe_says_how_weights_are_scaled(recipe: Any, scaled: str) -> None:
    whole = model()
    converted(Float8LinearConfig(recipe_name=recipe), whole)
    config = whole.get_submodule("layers.0.wq").config
    assert config.cast_config_weight.short_str().startswith(scaled)
    assert (config.cast_config_grad_output_for_grad_weight.short_str()[:3] == "dis") == (
        recipe == "rowwise_with_gw_hp"
    )


def test_products_are_emulated_only_where_it_is_asked_for() -> None:
    for emulate in (False, True):
        whole = model()
        conversion = converted(Float8LinearConfig(emulate=emulate), whole)
        assert whole.get_submodule("layers.0.wq").linear_mm_config.output.emulate is emulate
        assert conversion.kind.endswith("emulated") is emulate


def test_weights_are_wrapped_for_a_float8_gather_where_ranks_share_them() -> None:
    config = Float8LinearConfig(
        enable_fsdp_float8_all_gather=True, precompute_float8_dynamic_scale_for_fsdp=True
    )
    for shards, is_wrapped in ((1, False), (2, True)):
        whole = model()
        conversion = converted(config, whole, shards=shards)
        assert (conversion.on_weights_changed is not None) is is_wrapped
        assert (
            hasattr(whole.get_parameter("layers.0.wq.weight"), "fsdp_pre_all_gather") is is_wrapped
        )
    conversion = converted(
        Float8LinearConfig(enable_fsdp_float8_all_gather=True), model(), shards=2
    )
    assert conversion.on_weights_changed is None


def test_a_module_has_one_converter() -> None:
    whole = model()
    converted(Fp32LmHeadConfig(), whole)
    assert converted(Float8LinearConfig(), whole).skipped["output"] == "it is a Fp32Linear already"
    assert (
        converted(Mxfp8LinearConfig(), whole).skipped["layers.0.wq"]
        == "it is a Float8Linear already"
    )
    whole = model()
    converted(Float8LinearConfig(), whole)
    assert converted(Fp32LmHeadConfig(), whole).skipped == {
        "output": "it is a Float8Linear already"
    }


def test_the_head_keeps_the_matrix_it_has() -> None:
    whole = model()
    weight = whole.get_parameter("output.weight")
    assert converted(Fp32LmHeadConfig(), whole).converted == ("output",)
    assert whole.get_parameter("output.weight") is weight


def test_mxfp8_takes_blocks_of_32_and_leaves_the_head_by_default() -> None:
    conversion = converted(Mxfp8LinearConfig(emulate=True), model())
    assert conversion.converted == ("layers.0.wq", "layers.1.wq", "gate")
    assert (conversion.skipped["layers.0.wk"], conversion.skipped["output"]) == (
        "24 x 32 is not in blocks of 32",
        "'output' is in its name",
    )
    assert "output" in converted(Mxfp8LinearConfig(filter_fqns=()), model()).converted


def test_mxfp8_makes_products_as_the_recipe_says() -> None:
    names = [
        str(option)
        for option in get_matmul_arguments(
            Mxfp8LinearConfig(
                recipe_name="mxfp8_cublas_rceil", mxfp8_dim1_cast_kernel_choice="cuda"
            )
        )
    ]
    assert (
        "ScaleCalculationMode.RCEIL" in names
        and "MXFP8Dim1CastKernelChoice.CUDA" in names
        and "KernelPreference.AUTO" in names
    )
    names = [str(option) for option in get_matmul_arguments(Mxfp8LinearConfig(emulate=True))]
    assert (
        "ScaleCalculationMode.FLOOR" in names
        and "MXFP8Dim1CastKernelChoice.TORCH" in names
        and "KernelPreference.EMULATED" in names
    )


def test_nvfp4_takes_blocks_of_128_that_are_named() -> None:
    assert converted(Nvfp4LinearConfig(), model()).converted == ("gate",)
    conversion = converted(Nvfp4LinearConfig(fqns=("wq",)), model())
    assert (conversion.converted, conversion.skipped["gate"]) == ((), "fqns does not name it")


def test_nvfp4_fills_up_blocks_of_tokens() -> None:
    """Row A7 of the defect list: torchao refuses other numbers of tokens, which generation has."""

    def multiply(x: Tensor, w: Tensor, bias: None, *, sign_vector: Any) -> Tensor:
        assert x.size(0) % 128 == 0
        return x @ w.t()

    whole = nn.Sequential(nn.Linear(128, 256, bias=False))
    plain = whole[0]
    converted(Nvfp4LinearConfig(), whole)
    whole[0].matmul = multiply
    for shape in ((1, 1), (2, 3), (2, 64), (3, 100)):
        x = torch.randn(*shape, 128)
        torch.testing.assert_close(whole(x), plain(x))


@pytest.mark.parametrize("kind", [Float8GroupedMmConfig, Mxfp8GroupedMmConfig])
def test_experts_in_blocks_get_a_product_where_they_are_named(
    kind: type[Float8GroupedMmConfig] | type[Mxfp8GroupedMmConfig],
) -> None:
    whole = model(first=Experts(64), second=Experts(24), third=Experts(64))
    conversion = converted(kind(fqns=("first", "second")), whole)
    assert conversion.converted == ("first",)
    assert conversion.skipped == {
        "second": f"24 x 64 is not in blocks of {kind.alignment}",
        "third": "fqns does not name it",
    }
    assert whole.first.grouped_mm is not None and whole.third.grouped_mm is None
    assert converted(kind(), whole).skipped["first"] == "its products are converted already"


def test_experts_are_emulated_and_their_gradients_made_as_the_recipe_says() -> None:
    for emulate, recipe in ((True, "mxfp8"), (False, "mxfp8_wgrad_with_hp")):
        whole = model(experts=Experts(64))
        converted(Mxfp8GroupedMmConfig(emulate=emulate, recipe_name=recipe), whole)
        options = whole.experts.grouped_mm.keywords["grouped_mm"].keywords
        assert (options["kernel_preference"].name == "EMULATED") is emulate
        assert options["wgrad_with_hp"] is (recipe == "mxfp8_wgrad_with_hp")


def test_every_experts_slots_begin_at_a_block() -> None:
    room = compute_padded_slots(torch.tensor([3, 0, 5]), slots=10, block=4)
    assert room.places_S.tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 12, 13]
    assert room.ends_E.tolist() == [4, 4, 12]
    assert room.is_slot_S.tolist() == [True] * 8 + [False] * 2
    assert room.size % 4 == 0 and room.size > room.places_S.max()


def test_slots_meet_the_matrix_of_their_expert_whatever_room_there_is() -> None:
    generator = torch.Generator().manual_seed(0)
    x_SI, weight_EOI = (
        torch.randint(-4, 5, shape, generator=generator).float() for shape in ((10, 16), (3, 8, 16))
    )
    counts_E = torch.tensor([3, 0, 5])

    def plain(x: Tensor, w: Tensor, *, offs: Tensor, out_dtype: torch.dtype) -> Tensor:
        starts = [0, *offs.tolist()[:-1]]
        assert all(start % 4 == 0 for start in starts)
        parts = [
            x[start:end] @ matrix
            for start, end, matrix in zip(starts, offs.tolist(), w, strict=True)
        ]
        rest = x.new_full((x.size(0) - int(offs[-1]), w.size(2)), torch.nan)
        return torch.cat([*parts, rest]).to(out_dtype)

    found = multiply_padded_groups(x_SI, weight_EOI, counts_E, grouped_mm=plain, block=4)
    # small whole numbers are exact in bf16
    expected = torch.cat(
        [x_SI[:3] @ weight_EOI[0].T, x_SI[3:8] @ weight_EOI[2].T, torch.zeros(2, 8)]
    )
    assert torch.equal(found, expected)


def test_names_of_layers_are_told_once() -> None:
    assert collapse_layer_numbers(["layers.0.wq", "layers.11.wq", "norm"]) == [
        "layers.*.wq",
        "norm",
    ]


def iter_option_combinations(kind: type[ConverterConfig]) -> Iterator[dict[str, Any]]:
    """Every combination of the options that have a few values."""
    values: dict[str, tuple[Any, ...]] = {}
    for name, field in kind.model_fields.items():
        if field.annotation is bool:
            values[name] = (False, True)
        elif get_origin(field.annotation) is Literal:
            values[name] = get_args(field.annotation)
    for combination in product(*values.values()):
        yield dict(zip(values, combination, strict=True))


@pytest.mark.parametrize("name", sorted(registry.load_choices(ConverterConfig)))
@pytest.mark.parametrize("shards", [1, 4])
def test_options_that_are_valid_together_convert_a_model(name: str, shards: int) -> None:
    """Row A7 of the defect list: torchao refused a combination when the model was built."""
    kind, tried = registry.load_choices(ConverterConfig)[name], 0
    for options in iter_option_combinations(kind):
        try:
            config = kind.model_validate(options)
        except ValidationError:
            continue
        whole = model(experts=Experts(64), large=nn.Linear(256, 256, bias=False, device="meta"))
        assert isinstance(
            config.load_builder()(config, model=whole, shards=shards), ConversionReport
        )
        tried += 1
    assert tried > 0


ROW_WISE = [
    "{name: float8_linear, emulate: true, recipe_name: rowwise}",
    "{name: float8_linear, emulate: true, recipe_name: rowwise_with_gw_hp}",
    "{name: mxfp8_linear, emulate: true}",
    "qat",
    "{name: qat, scheme: int4_weight_only}",
    "fp32_lm_head",
    "lora",
    "qlora",
    "{name: qlora, base: int8}",
]
OF_A_BATCH = "{name: float8_linear, emulate: true, recipe_name: tensorwise}"


@pytest.mark.parametrize("converter", [*ROW_WISE, OF_A_BATCH])
def test_eight_rows_alone_are_the_same_eight_of_a_batch_unless_the_rule_says_otherwise(
    tmp_path: Path, converter: str
) -> None:
    from tests.rl.parts import TEXT
    from titanrun.worker.open_engine import open_engine

    (tmp_path / "recipe.yaml").write_text(TEXT)
    wide = ("model.dim=64", "model.feed_forward.hidden_dim=128", f"converters=[{converter}]")
    opened = open_engine(str(tmp_path / "recipe.yaml"), wide)
    rows = torch.randint(56, (64, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        # some rows have far larger numbers than others
        opened.engine.model.tok_embeddings.weight[:8] *= 6
        whole, alone = opened.engine.model(rows)[:8], opened.engine.model(rows[:8])
    difference = float((whole - alone).abs().max())
    opened.close()
    if depends_on_batch(opened.recipe.converters[0]):
        assert difference > 1e-3
    else:
        assert difference < 1e-6
