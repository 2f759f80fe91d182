"""Recipes of a workspace: list, read and save them, with the bytes that an editor does not show."""

import codecs
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from titanrun.cli.new_file import get_schema_path
from titanrun.config.checksum import get_checksum_state
from titanrun.config.limits import MAX_BYTES
from titanrun.config.read_source import FORMATS
from titanrun.recipe.recipe import FILE_ONLY_KEYS, Recipe
from titanrun.recipe.reference.shipped_recipes import (
    SCHEMA_LINE,
    SHIPPED,
    ShippedRecipe,
    format_portable_recipe,
    get_shipped_folder,
    list_shipped_recipes,
)
from titanrun.recipe.resolving.multi_stage import STAGES
from titanrun.recipe.rundir.run_files import RUN_JSON
from titanrun.ui.folder_walk import read_below, replace_below
from titanrun.ui.refusal import Refusal

FileKind = Literal["recipe", "part", "sweep", "shipped"]
TOP_KEY = re.compile(r"^\[{0,2}([A-Za-z_]\w*)\+?(?:[ \t]*[:=\]]|\.)", re.MULTILINE)
PURPOSE = re.compile(r"^#[ ]*purpose:[ ]*(.+)$", re.MULTILINE)
SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__", "site-packages"})
# the folder that the page proposes for copies of shipped recipes
COPIES = "recipes"
MAX_DEPTH = 5
MAX_FILES = 2000
MAX_FOLDERS = 5000
NEW_FILE_MODE = 0o644


@dataclass(frozen=True, slots=True)
class RecipeText:
    """Text of a file with line feeds, and what to restore when it is saved."""

    text: str
    sha256: str
    newline: Literal["lf", "crlf"]
    has_mark: bool
    mode: int
    is_writable: bool
    reason: str | None = None

    def encode(self, text: str) -> bytes:
        """Return the bytes of a new text of this file."""
        mark = codecs.BOM_UTF8 if self.has_mark else b""
        ended = text.replace("\n", "\r\n") if self.newline == "crlf" else text
        return mark + ended.encode("utf-8", "surrogatepass")


@dataclass(slots=True)
class Workspace:
    """A folder of recipes.

    Args:
        root: The folder, without links.
        runs: The folder of its runs, without links.
        followed: Files elsewhere that recipes extend, which may be read but not written.
    """

    root: Path
    runs: Path
    followed: set[str] = field(default_factory=set)

    def list_files(self) -> list[dict[str, Any]]:
        """Return the recipes, parts and sweeps below the folder, and the shipped recipes."""
        found = [entry for name in self.iter_names() if (entry := self.describe_file(name))]
        shipped = [
            {
                "path": f"{SHIPPED}:{entry.name}",
                "kind": "shipped",
                "title": entry.header.get("purpose", ""),
            }
            for entry in list_shipped_recipes()
        ]
        return [*found, *shipped]

    def iter_names(self) -> Iterator[str]:
        """Yield the names of the files that may be recipes; no run directory is entered."""
        waiting, count, seen = [("", 0)], 0, 0
        while waiting and seen < MAX_FOLDERS:
            place, depth = waiting.pop()
            seen += 1
            try:
                with os.scandir(self.root / place) as items:
                    entries = sorted(items, key=lambda item: item.name)
            except OSError:
                continue
            names = {entry.name for entry in entries}
            if RUN_JSON in names or "pyvenv.cfg" in names:
                continue
            below = []
            for entry in entries:
                name = f"{place}/{entry.name}".lstrip("/")
                if entry.name.startswith(".") or entry.name in SKIPPED_FOLDERS:
                    continue
                if entry.is_dir(follow_symlinks=False) and depth < MAX_DEPTH:
                    below.append((name, depth + 1))
                elif entry.is_file() and Path(name).suffix.lower() in FORMATS:
                    count += 1
                    yield name
                if count >= MAX_FILES:
                    return
            waiting += reversed(below)

    def describe_file(self, name: str) -> dict[str, Any] | None:
        """Return what a file is, or None if it has nothing to do with recipes."""
        try:
            data, _ = read_below(self.root, name, MAX_BYTES)
        except Refusal:
            return None
        text = data.decode("utf-8", "replace")
        kind = find_kind(text)
        if kind is None:
            return None
        purpose = PURPOSE.search(text[:2000])
        return {"path": name, "kind": kind, "title": purpose[1].strip() if purpose else ""}

    def read(self, name: str) -> RecipeText:
        """Return a recipe, a shipped one, or a file elsewhere that a recipe extends.

        Raises:
            Refusal: It is none of these.
        """
        self.check_suffix(name)
        if name.startswith(f"{SHIPPED}:"):
            return self.read_shipped(name.partition(":")[2])
        if name in self.followed:
            path = Path(name)
            data, about = read_below(path.parent.resolve(), path.name, MAX_BYTES)
            return decode_text(data, about.st_mode, "outside of the workspace")
        data, about = read_below(self.root, name, MAX_BYTES)
        return decode_text(data, about.st_mode, self.find_obstacle(name))

    def read_shipped(self, name: str) -> RecipeText:
        """Return a shipped recipe as a copy in the workspace would be: it extends shipped parts.

        Raises:
            Refusal: There is none.
        """
        folder = get_shipped_folder().resolve()
        data, about = read_below(folder, name, MAX_BYTES)
        found = decode_text(data, about.st_mode, "a shipped recipe: start from a copy of it")
        copy = self.root / COPIES / Path(name).name
        schema = get_schema_path(copy)
        text = format_portable_recipe(ShippedRecipe(name, folder / name, {}), schema=schema)
        if not (copy.parent / schema).is_file():
            text = SCHEMA_LINE.sub("", text, count=1).removeprefix("\n")
        return replace(found, text=text)

    def find_obstacle(self, name: str) -> str | None:
        """Return why a file in the workspace is not written, or None."""
        place = self.root / name
        for folder in place.parents:
            if not folder.is_relative_to(self.root):
                break
            if (folder / RUN_JSON).is_file():
                return "the record of a run"
        return None

    def check_suffix(self, name: str) -> None:
        """Raise Refusal for a file that is not in a format of recipes."""
        if Path(name).suffix.lower() not in FORMATS:
            raise Refusal(403, "path", "only .yaml, .yml and .toml files are accessible")

    def save(self, name: str, text: str, expected: str | None) -> str:
        """Write a file and return the hash of its new bytes.

        Args:
            name: The file.
            text: Its new text, with line feeds.
            expected: Hash of the bytes that the text was made from; None for a new file.

        Raises:
            Refusal: 412 with the text on disk if that is no longer what the text was made from.
        """
        self.check_suffix(name)
        if expected is None:
            before = RecipeText("", "", "lf", has_mark=False, mode=NEW_FILE_MODE, is_writable=True)
            obstacle = self.find_obstacle(name)
        else:
            before = self.read(name)
            obstacle = before.reason
        if obstacle is not None or name.startswith(f"{SHIPPED}:"):
            raise Refusal(403, "file", f"the file is not written: {obstacle}")
        if expected is not None and before.sha256 != expected:
            on_disk = {"text": before.text, "sha256": before.sha256}
            raise Refusal(412, "changed", "the file has changed since it was read", on_disk)
        data = before.encode(text)
        if len(data) > MAX_BYTES:
            raise Refusal(413, "size", f"a recipe has at most {MAX_BYTES:,} bytes")
        replace_below(self.root, name, data, before.mode, is_new=expected is None)
        return hashlib.sha256(data).hexdigest()


def find_kind(text: str) -> FileKind | None:
    """Return what kind of file of titanrun a text is, judged by its top-level keys, or None."""
    keys = set(TOP_KEY.findall(text))
    if "recipe" in keys and not keys & {"model", "training"}:
        return "sweep"
    known = {*Recipe.model_fields, *FILE_ONLY_KEYS, STAGES}
    if not keys or len(keys & known) < len(keys) / 2:
        return None
    return "recipe" if keys & {"model", "extends", STAGES} else "part"


def decode_text(data: bytes, mode: int, reason: str | None) -> RecipeText:
    """Return the text of a file. One that could not be restored byte by byte is not writable."""
    body = data.removeprefix(codecs.BOM_UTF8)
    text = body.decode("utf-8", "replace")
    breaks, pairs = text.count("\n"), text.count("\r\n")
    if "\r" in text.replace("\r\n", "") or pairs not in (0, breaks):
        reason = reason or "its lines end in different ways"
    if body.decode("utf-8", "replace").encode() != body:
        reason = reason or "it is not UTF-8"
    if get_checksum_state(text) == "good":
        reason = reason or "a resolved recipe, the record of a run"
    return RecipeText(
        text.replace("\r\n", "\n"),
        hashlib.sha256(data).hexdigest(),
        "crlf" if pairs else "lf",
        has_mark=len(body) < len(data),
        mode=mode & 0o777,
        is_writable=reason is None,
        reason=reason,
    )
