"""`validate --fix`: apply the certain edits of problems to the files the user named."""

import codecs
import os
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from titanrun.config.checksum import get_checksum_state
from titanrun.config.encoding import decode_source
from titanrun.config.problems import Fix, Origin, Problem, ProblemsFound, SourceText, problem_error
from titanrun.config.read_source import FORMATS, read_source_text
from titanrun.config.text_edits import apply_text_edits, find_text_at
from titanrun.config.tree import Node, PartialReadError

# a fixed section reveals the mistakes inside it, so one round is not enough
MOST_ROUNDS = 20


@dataclass(slots=True)
class FixResult:
    """Applied edits, and skipped edits with the reason."""

    applied_fixes: list[Fix] = field(default_factory=list)
    skipped_fixes: dict[Fix, str] = field(default_factory=dict)


def fix_files(
    file_names: Sequence[str], find_problems: Callable[[str], Sequence[Problem]]
) -> FixResult:
    """Fix the files in `file_names` until no certain edit remains.

    A file that a named one extends is only written if it is named too.

    Args:
        file_names: Files that may be written.
        find_problems: Function that returns the problems of one of them.
    """
    done = FixResult()
    files = {Path(name).resolve() for name in file_names}
    for name in file_names:
        for _ in range(MOST_ROUNDS):
            fixes = [problem.fix for problem in find_problems(name) if problem.fix is not None]
            left: dict[Fix, str] = {}
            if not sum(
                [
                    fix_source(source, fixes, files, done.applied_fixes, left)
                    for source in get_source_texts(fixes)
                ]
            ):
                done.skipped_fixes |= left
                break
    return done


def get_source_texts(fixes: Sequence[Fix]) -> list[SourceText]:
    """Return the texts that edits refer to, each once."""
    return list({id(fix.origin.source): fix.origin.source for fix in fixes}.values())


def fix_source(
    source: SourceText,
    fixes: Sequence[Fix],
    writable_paths: Collection[Path],
    applied_fixes: list[Fix],
    skipped_fixes: dict[Fix, str],
) -> bool:
    """Apply the edits of one text and record them; return whether its file was written."""
    own = [fix for fix in fixes if fix.origin.source is source]
    target = Path(source.name).resolve()
    reason = (
        f"{source.name} was not named on the command line" if target not in writable_paths else None
    )
    if get_checksum_state(source.text) == "good":
        reason = "a resolved recipe is never edited"
    text, done = try_apply_fixes(source, own) if reason is None else None, own
    if reason is None and text is None:
        done = [fix for fix in own if try_apply_fixes(source, [fix])]
        text = try_apply_fixes(source, done) if done else None
    if text == source.text:  # the edits change nothing: a next round would find them again
        return False
    if text is None:
        skipped_fixes |= dict.fromkeys(
            own, reason or "the edited file could not be read, or would change other values"
        )
        return False
    write_fixed_file(target, source, text)
    applied_fixes += done
    return True


def try_apply_fixes(source: SourceText, fixes: Sequence[Fix]) -> str | None:
    """Return the edited text, or None unless it can be read and nothing else changed."""
    before = try_parse_source(source)
    new = replace_source_text(source, apply_text_edits(source.text, fixes))
    if before is not None:
        after = try_parse_source(new)
        same = after is not None and is_same_except(before, after, {fix.origin for fix in fixes})
        return new.text if same else None
    return None if try_parse_source(new) is None else new.text


def replace_source_text(source: SourceText, text: str) -> SourceText:
    """Return the same file with different text."""
    return SourceText(source.name, text, source.kind, source.included_from)


def try_parse_source(source: SourceText) -> Node | None:
    """Return the tree of a text, or of its valid part; None if it cannot be read."""
    try:
        return parse_source(source)
    except PartialReadError as part:
        return part.root
    except ProblemsFound:
        return None


def parse_source(source: SourceText) -> Node:
    """Return the tree of a text in the format of the file name's suffix."""
    return read_source_text(source, FORMATS[Path(source.name).suffix.lower()])


def is_same_except(before: Node, after: Node, touched: Collection[Origin]) -> bool:
    """Return whether two trees are equal except for keys and values at `touched`."""
    if isinstance(before.value, dict) and isinstance(after.value, dict):
        pairs = list(zip(before.value.items(), after.value.items(), strict=False))
        return len(before.value) == len(after.value) and all(
            (name == new_name or old.key in touched) and is_same_except(old, new, touched)
            for (name, old), (new_name, new) in pairs
        )
    if isinstance(before.value, list) and isinstance(after.value, list):
        pairs_of_items = zip(before.value, after.value, strict=False)
        return len(before.value) == len(after.value) and all(
            is_same_except(old, new, touched) for old, new in pairs_of_items
        )
    return before.origin in touched or (
        before.value == after.value and type(before.value) is type(after.value)
    )


def write_fixed_file(target: Path, source: SourceText, text: str) -> None:
    """Replace the file atomically, keeping its byte order mark and mode.

    Raises:
        ProblemsFound: If it changed since it was read.
    """
    data = target.read_bytes()
    if decode_source(data, source.name).text != source.text:
        raise problem_error(
            "file",
            f"{source.name} was changed by another program while it was being fixed",
            hint="run the command again",
        )
    mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    part = target.with_name(f".{target.name}.tmp-{os.getpid()}")
    try:
        part.write_bytes(mark + text.encode())
        shutil.copymode(target, part)
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise problem_error(
            "file", f"cannot write {source.name}: {(error.strerror or str(error)).lower()}"
        ) from None


def format_fix(fix: Fix) -> str:
    """Format an edit as `mine.yaml:3:5: Steps -> steps`."""
    return f"{fix.origin}: {find_text_at(fix.origin)} -> {fix.replacement}"
