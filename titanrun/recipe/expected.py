"""What the schema expects at a path of one recipe: what overrides and references need to know before anything is validated."""

from dataclasses import dataclass

from titanrun.config.base import dump_value
from titanrun.config.fields import is_secret
from titanrun.config.problems import DataPath
from titanrun.config.renames import path_of_today
from titanrun.config.shape import annotation_at, bare, field_at, is_slot, item_type
from titanrun.recipe.plugins import recipe_class


@dataclass(frozen=True, slots=True)
class Expected:
    """Questions about paths; `data` decides which choice of a slot is asked about."""

    data: object

    def has_field(self, path: DataPath) -> bool:
        """Whether the schema has something at `path`, under its name of today or a former one."""
        return annotation_at(recipe_class(), self.data, self.today(path)) is not None

    def today(self, path: DataPath) -> DataPath:
        """The path with the names that fields have today."""
        return path_of_today(recipe_class(), path, self.data)

    def is_list(self, path: DataPath) -> bool:
        """Whether a list belongs at `path`."""
        field = field_at(recipe_class(), self.data, self.today(path))
        return field is not None and item_type(field.annotation) is not None

    def is_component(self, path: DataPath) -> bool:
        """Whether text at `path` is short for a mapping with that name."""
        return bool(path) and is_slot(annotation_at(recipe_class(), self.data, self.today(path)))

    def is_text(self, path: DataPath) -> bool:
        """Whether text belongs at `path`."""
        field = field_at(recipe_class(), self.data, self.today(path))
        return field is not None and bare(field.annotation) is str

    def is_secret(self, path: DataPath) -> bool:
        """Whether a secret belongs at `path`."""
        field = field_at(recipe_class(), self.data, self.today(path))
        return field is not None and is_secret(field)

    def default_of(self, path: DataPath) -> object:
        """What stands at `path` where the recipe says nothing. Raises LookupError."""
        field = field_at(recipe_class(), self.data, self.today(path))
        if field is None or field.is_required():
            raise LookupError(path)
        return dump_value(field.get_default(call_default_factory=True, validated_data={}))
