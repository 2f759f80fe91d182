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
            if (
                setting is None
                or setting.not_built is None
                or value == field.get_default(call_default_factory=True, validated_data={})
            ):
                continue
            where = (*path, name)
            message = f"{path_text(where)}: {shorten(dump_value(value))} asks for {setting.not_built}, which this version does not have"
            yield Finding(message, (where,), help="leave it out", code="not-built", named=False)
