"""Fields whose effect is not built yet accept their default only."""

from collections.abc import Iterator

from titanrun.config.base import dump_value, nested
from titanrun.config.fields import setting_of
from titanrun.config.render import shorten
from titanrun.config.tree import path_text
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule


@rule("not-built")
def only_defaults_where_nothing_is_built(run: Recipe) -> Iterator[Finding]:
    """The field is part of the recipe language, but what it asks for is not built in this version; leave it at its default."""
    for path, config in nested(run):
        for name, field in type(config).model_fields.items():
            setting = setting_of(field)
            value = getattr(config, name)
            if setting is None or setting.not_built is None or value == field.get_default(call_default_factory=True, validated_data={}):
                continue
            where = (*path, name)
            message = f"{path_text(where)}: {shorten(dump_value(value))} asks for {setting.not_built}, which this version does not have"
            yield Finding(message, (where,), help="leave it out", code="not-built", named=False)


@rule("one-process")
def one_process(run: Recipe) -> Iterator[Finding]:
    """This version trains in one process, on a CPU or one accelerator: more ranks than one are refused."""
    shards = run.parallelism.data_parallel_shard_degree
    if shards not in ("auto", 1):
        path = ("parallelism", "data_parallel_shard_degree")
        yield Finding(f"{shards} shards: this version trains in one process", (path,), help="use 1 or auto", code="not-built")
    processes = getattr(run.launch, "nproc_per_node", 1)
    if processes not in ("auto", 1):
        path = ("launch", "nproc_per_node")
        yield Finding(f"{processes} processes: this version trains in one", (path,), help="use 1 or auto", code="not-built")
