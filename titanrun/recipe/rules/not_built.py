"""Rule about fields that are not built yet: they accept their default only."""

from collections.abc import Iterator

from titanrun.config.base import dump_value, iter_nested_configs
from titanrun.config.diagnostics import format_short_value
from titanrun.config.fields import find_field_metadata
from titanrun.config.tree import format_path
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.registry import RuleViolation, rule


@rule("not-built")
def unbuilt_fields_keep_defaults(run: Recipe) -> Iterator[RuleViolation]:
    """Require fields that are not built in this version to keep their default.

    The field is part of the recipe language, but its feature is not built in this version. Remove
    it.
    """
    for path, config in iter_nested_configs(run):
        for name, field in type(config).model_fields.items():
            setting = find_field_metadata(field)
            value = getattr(config, name)
            if (
                setting is None
                or setting.not_built is None
                or value == field.get_default(call_default_factory=True, validated_data={})
            ):
                continue
            field_path = (*path, name)
            short_value = format_short_value(dump_value(value))
            message = (
                f"{format_path(field_path)}: {short_value} needs {setting.not_built}, "
                "which this version does not have"
            )
            yield RuleViolation(
                message, (field_path,), hint="remove it", code="not-built", shows_rule_id=False
            )
