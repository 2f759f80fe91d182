"""Keys of torchtitan 0.2.2's quantization sections and their migration."""

from titanrun.recipe.migrate import torchtitan_values as to
from titanrun.recipe.migrate.key_mapping import SourceKey, move_key, when_component, when_enabled

FLOAT8 = when_component("model.converters", "quantize.linear.float8", "float8")
FLOAT8_GROUPED = when_component("model.converters", "quantize.grouped_mm.float8")
MX, MX_GROUPED = (
    when_component("model.converters", "quantize.linear.mx", "mx"),
    when_component("model.converters", "quantize.grouped_mm.mx"),
)

QUANTIZE_KEYS: tuple[SourceKey, ...] = (
    move_key(
        "quantize.linear.float8.enable_fsdp_float8_all_gather",
        False,
        "converters[float8_linear].enable_fsdp_float8_all_gather",
        needs=(FLOAT8,),
    ),
    move_key(
        "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp",
        False,
        "converters[float8_linear].precompute_float8_dynamic_scale_for_fsdp",
        needs=(FLOAT8, when_enabled("quantize.linear.float8.enable_fsdp_float8_all_gather")),
    ),
    move_key(
        "quantize.linear.float8.recipe_name",
        None,
        "converters[float8_linear].recipe_name",
        needs=(FLOAT8,),
    ),
    move_key(
        "quantize.linear.float8.filter_fqns",
        [],
        "converters[float8_linear].filter_fqns",
        convert=to.convert_filter_fqns,
        needs=(FLOAT8,),
    ),
    move_key(
        "quantize.linear.float8.emulate",
        False,
        "converters[float8_linear].emulate",
        needs=(FLOAT8,),
    ),
    move_key(
        "quantize.grouped_mm.float8.fqns",
        [],
        "converters[float8_grouped_mm].fqns",
        convert=to.convert_word_list,
        needs=(FLOAT8_GROUPED,),
    ),
    move_key(
        "quantize.linear.mx.mxfp8_dim1_cast_kernel_choice",
        "triton",
        "converters[mxfp8_linear].mxfp8_dim1_cast_kernel_choice",
        needs=(MX,),
    ),
    move_key(
        "quantize.linear.mx.recipe_name",
        "mxfp8_cublas",
        "converters[mxfp8_linear].recipe_name",
        needs=(MX,),
    ),
    move_key(
        "quantize.linear.mx.filter_fqns",
        ["output"],
        "converters[mxfp8_linear].filter_fqns",
        convert=to.convert_module_names,
        needs=(MX,),
    ),
    move_key(
        "quantize.grouped_mm.mx.recipe_name",
        "mxfp8",
        "converters[mxfp8_grouped_mm].recipe_name",
        needs=(MX_GROUPED,),
    ),
    move_key(
        "quantize.grouped_mm.mx.fqns",
        [],
        "converters[mxfp8_grouped_mm].fqns",
        convert=to.convert_word_list,
        needs=(MX_GROUPED,),
    ),
)
