"""Shipped recipes: next to the package in a clone, inside it in an installed wheel."""

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from titanrun.config.lazy_module import LazyModule
from titanrun.config.problems import problem_error
from titanrun.config.suggest import find_closest
from titanrun.config.tree import find_node

if TYPE_CHECKING:
    from titanrun.config import read_source
else:
    # importing the YAML reader takes longer than completing a word may
    read_source = LazyModule("titanrun.config.read_source")

SHIPPED = "shipped"
PACKAGE = Path(__file__).parents[2]
HEADER_KEYS = ("purpose", "model", "method", "devices", "memory")
# tasks by a word of the method, the first that fits, in the order in which they are listed
TASKS = {
    "fine-tuning": ("SFT", "continued", "distillation"),
    "preferences and rewards": ("DPO", "KTO", "ORPO", "reward"),
    "reinforcement learning": ("RL",),
    "pretraining": ("pretraining",),
    "images": ("pictures",),
}
# the last stage is the task of a recipe with several
LAST_STAGES = ("reinforcement learning", "preferences and rewards")
# letters of a word that may be part of another one
MIN_PART = 4
WORD = re.compile(r"[\w.+-]+")
HEADER = re.compile(r"#\s*([a-z]+):\s*(.+)")


@dataclass(frozen=True, slots=True)
class ShippedRecipe:
    """One shipped recipe, with the `# key: text` lines at its top by key."""

    name: str
    path: Path
    header: dict[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """Names without suffix that a command takes: that of the file, then those in `# also:`."""
        also = self.header.get("also", "").replace(",", " ").split()
        return (str(PurePath(self.name).with_suffix("")), *also)

    @property
    def task(self) -> str:
        """What the recipe is for, a key of TASKS."""
        words = WORD.findall(self.header.get("method", ""))
        order = (*LAST_STAGES, *TASKS)
        return next((task for task in order if set(TASKS[task]) & set(words)), "pretraining")

    def matches(self, wanted: Mapping[str, str], words: Sequence[str] = ()) -> bool:
        """Return whether each wanted text is in the header, and each word in it, name or task.

        `has_all_words` describes what matches.
        """
        whole = " ".join([self.name.replace("_", " "), self.task, *self.header.values()])
        return has_all_words(" ".join(words), whole) and all(
            has_all_words(text, self.header.get(key, "")) for key, text in wanted.items()
        )


def get_shipped_folder() -> Path:
    """Return the folder of the shipped recipes."""
    installed = PACKAGE / "shipped" / "recipes"
    return installed if installed.is_dir() else PACKAGE.parent / "recipes"


def get_extends_roots() -> dict[str, Path]:
    """Return the roots for `extends: shipped:parts/fp32.yaml`, in a clone or a wheel."""
    return {SHIPPED: get_shipped_folder()}


def list_shipped_recipes() -> list[ShippedRecipe]:
    """Return all shipped recipes by name, those of a subfolder prefixed with its name.

    The fragments in parts/ and the sweep files in sweeps/ are not included.
    """
    names = {
        path: path.relative_to(get_shipped_folder()).as_posix()
        for path in get_shipped_folder().rglob("*")
        if path.suffix in (".yaml", ".toml")
    }
    kept = sorted(
        (name.count("/"), name, path)
        for path, name in names.items()
        if not name.startswith(("parts/", "sweeps/"))
    )
    return [ShippedRecipe(name, path, read_recipe_header(path)) for _, name, path in kept]


def has_all_words(wanted: str, text: str) -> bool:
    """Return whether each word of `wanted` matches a word of `text`, in any case and order.

    Numbers match themselves, short words the beginning of a word, and longer ones any part of it:
    "llama" matches llama3, "lora" QLoRA, but "8" does not match 80.
    """
    words = WORD.findall(text.lower())
    return all(
        any(matches_word(word, found) for found in words) for word in WORD.findall(wanted.lower())
    )


def matches_word(wanted: str, found: str) -> bool:
    """Return whether a wanted word matches a word of a text."""
    if wanted.isdigit():
        return wanted == found
    return found.startswith(wanted) or (len(wanted) >= MIN_PART and wanted in found)


def get_recipe_schema_path() -> Path:
    """Return the path of the shipped JSON Schema of recipes."""
    return get_shipped_folder().parent / "schemas" / "recipe.schema.json"


def read_recipe_header(path: Path) -> dict[str, str]:
    """Return the `# key: text` lines at the top of a recipe."""
    found: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        match = HEADER.fullmatch(line)
        if match:
            found[match[1]] = match[2]
    return found


def get_shipped_recipe(name: str, *, suffix: str = ".yaml") -> ShippedRecipe:
    """Return the shipped recipe called `name`; `suffix` applies if the name has none.

    Raises:
        ProblemsFound: If there is no such recipe.
    """
    entries = list_shipped_recipes()
    for entry in entries:
        if {entry.name, entry.path.name} & {name, name + suffix} or name in entry.names[1:]:
            return entry
    meant = find_closest(name, [entry.path.stem for entry in entries])
    is_file = Path(name).is_file()
    listed = "titanrun ls recipes lists them" + (
        f"; {name} is a file: the cp of your shell copies it" if is_file else ""
    )
    hint = f"did you mean '{meant}'?" if meant and not is_file else listed
    raise problem_error("unknown-name", f"no shipped recipe '{name}'", hint=hint)


SCHEMA_LINE = re.compile(r"^(# yaml-language-server: \$schema=|#:schema )\S+", re.MULTILINE)


def format_portable_recipe(entry: ShippedRecipe, *, schema: str) -> str:
    """Return the text of a shipped recipe that works in any folder.

    `extends` entries become `shipped:` names, and the editor line names `schema`.
    """
    text = entry.path.read_text(encoding="utf-8")
    extends = find_node(read_source.read_source(str(entry.path)), ("extends",))
    lines = text.split("\n")
    items = (
        [] if extends is None else extends.value if isinstance(extends.value, list) else [extends]
    )
    for item in reversed(items):
        row, start, end = item.origin.line - 1, item.origin.column - 1, item.origin.end_column - 1
        on_shelf = posixpath.normpath(
            posixpath.join(posixpath.dirname(entry.name), str(item.value))
        )
        named = lines[row][start:end].replace(str(item.value), f"{SHIPPED}:{on_shelf}")
        lines[row] = lines[row][:start] + named + lines[row][end:]
    return SCHEMA_LINE.sub(lambda found: found[1] + schema, "\n".join(lines))
