from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.worker.build.run_start_log import (
    format_global_batch,
    format_model_size,
)


def test_a_global_batch_of_several_ranks_says_how_to_keep_that_of_one() -> None:
    recipe = resolve_recipe("llama3_debug", ["training.global_batch_size=16"], environment={}).run
    assert format_global_batch(recipe, 2) == (
        "global batch: 16 sequences = 8 a rank x 2 ranks "
        "(training.local_batch_size=4 training.global_batch_size=8 keep what one rank has)"
    )
    assert format_global_batch(recipe, 3) == "global batch: 16 sequences = 8 a rank x 3 ranks"


def test_the_size_of_a_model_says_that_its_adapters_are_not_counted() -> None:
    plain = resolve_recipe("llama3_debug", environment={}).run
    adapted = resolve_recipe("llama3_debug", ["converters=[lora]"], environment={}).run
    quantized = resolve_recipe("llama3_debug", ["converters=[qlora]"], environment={}).run
    assert format_model_size(plain) == "6,163,712 parameters in float32"
    assert format_model_size(quantized) == "6,163,712 parameters without adapters"
    assert format_model_size(adapted) == "6,163,712 parameters without adapters, frozen in float32"
