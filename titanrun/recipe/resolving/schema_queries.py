"""Schema lookups by path of one recipe.

Overrides and references need them before anything is validated.
"""

from dataclasses import dataclass

from titanrun.config.base import dump_value
from titanrun.config.fields import is_secret
from titanrun.config.problems import DataPath
from titanrun.config.renames import to_current_path
from titanrun.config.type_introspection import (
    find_annotation,
    find_field_info,
    find_item_type,
    is_slot,
    unwrap_annotation,
)
from titanrun.recipe.plugins import get_recipe_class


@dataclass(frozen=True, slots=True)
class SchemaQueries:
    """Schema lookups by path; `data` decides which component of a slot applies."""

    data: object

    def has_field(self, path: DataPath) -> bool:
        """Return whether the schema has something at `path`, under a current or former name."""
        return (
            find_annotation(get_recipe_class(), self.data, self.get_current_path(path)) is not None
        )

    def get_current_path(self, path: DataPath) -> DataPath:
        """Return the path with the current names of fields."""
        return to_current_path(get_recipe_class(), path, self.data)

    def is_list(self, path: DataPath) -> bool:
        """Return whether a list belongs at `path`."""
        field = find_field_info(get_recipe_class(), self.data, self.get_current_path(path))
        return field is not None and find_item_type(field.annotation) is not None

    def is_component(self, path: DataPath) -> bool:
        """Return whether text at `path` is short for a mapping with that name."""
        return bool(path) and is_slot(
            find_annotation(get_recipe_class(), self.data, self.get_current_path(path))
        )

    def is_text(self, path: DataPath) -> bool:
        """Return whether text belongs at `path`."""
        field = find_field_info(get_recipe_class(), self.data, self.get_current_path(path))
        return field is not None and unwrap_annotation(field.annotation) is str

    def is_secret(self, path: DataPath) -> bool:
        """Return whether a secret belongs at `path`."""
        field = find_field_info(get_recipe_class(), self.data, self.get_current_path(path))
        return field is not None and is_secret(field)

    def get_default(self, path: DataPath) -> object:
        """Return the default at `path`.

        Raises:
            LookupError: If the field does not exist or has no default.
        """
        field = find_field_info(get_recipe_class(), self.data, self.get_current_path(path))
        if field is None or field.is_required():
            raise LookupError(path)
        return dump_value(field.get_default(call_default_factory=True, validated_data={}))
