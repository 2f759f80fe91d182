"""`validate --fix`: makes the certain edits that problems carry, in the files that the user named, and in no other."""

import codecs
import os
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from titanrun.config.encoding import decode
from titanrun.config.fixes import edited, text_at
from titanrun.config.problems import Fix, Origin, Problem, ProblemsFound, SourceText, fail
from titanrun.config.signature import check_signature
from titanrun.config.source import FORMATS, read_text
from titanrun.config.tree import Node, ReadInPart

# a mended section shows the mistakes inside it, so that one round is not enough
MOST_ROUNDS = 20


@dataclass(slots=True)
class Fixing:
    """What was done: edits that were made, and edits that were left with the reason."""

    made: list[Fix] = field(default_factory=list)
    left: dict[Fix, str] = field(default_factory=dict)


def fix_files(named: Sequence[str], find: Callable[[str], Sequence[Problem]]) -> Fixing:
    """Mend the files in `named` until nothing certain is left to do. `find` lists the problems of one of them.

    A file that a named one extends is not written to unless it is named too.
    """
    done = Fixing()
    files = {Path(name).resolve() for name in named}
    for name in named:
        for _ in range(MOST_ROUNDS):
            fixes = [problem.fix for problem in find(name) if problem.fix is not None]
            left: dict[Fix, str] = {}
            if not sum(
                [fix_source(source, fixes, files, done.made, left) for source in sources_of(fixes)]
            ):
                done.left |= left
                break
    return done


def sources_of(fixes: Sequence[Fix]) -> list[SourceText]:
    """The texts that edits are about, each once."""
    return list({id(fix.origin.source): fix.origin.source for fix in fixes}.values())


def fix_source(
    source: SourceText,
    fixes: Sequence[Fix],
    named: Collection[Path],
    made: list[Fix],
    left: dict[Fix, str],
) -> bool:
    """Make the edits of one text and write its file, noting those that were made and left. Whether it was written."""
    own = [fix for fix in fixes if fix.origin.source is source]
    target = Path(source.name).resolve()
    reason = f"{source.name} was not named on the command line" if target not in named else None
    if check_signature(source.text) == "good":
        reason = "a resolved recipe stays as it was written"
    text, done = mend(source, own) if reason is None else None, own
    if reason is None and text is None:
        done = [fix for fix in own if mend(source, [fix])]
        text = mend(source, done) if done else None
    if text is None:
        left |= dict.fromkeys(
            own, reason or "the file cannot be read, or would change its meaning elsewhere"
        )
        return False
    write_back(target, source, text)
    made += done
    return True


def mend(source: SourceText, fixes: Sequence[Fix]) -> str | None:
    """The text with the edits made; None unless it can be read and nothing else changed."""
    before = readable(source)
    new = renewed(source, edited(source.text, fixes))
    if before is not None:
        after = readable(new)
        same = after is not None and same_but_for(before, after, {fix.origin for fix in fixes})
        return new.text if same else None
    return None if readable(new) is None else new.text


def renewed(source: SourceText, text: str) -> SourceText:
    """The same file with another text."""
    return SourceText(source.name, text, source.kind, source.included_from)


def readable(source: SourceText) -> Node | None:
    """The tree of a text, or of the sound part of it; None where it cannot be read."""
    try:
        return read(source)
    except ReadInPart as part:
        return part.root
    except ProblemsFound:
        return None


def read(source: SourceText) -> Node:
    """The tree of a text in the format that the file's name tells."""
    return read_text(source, FORMATS[Path(source.name).suffix.lower()])


def same_but_for(before: Node, after: Node, touched: Collection[Origin]) -> bool:
    """Whether two trees are the same but for keys and values that stood at `touched`."""
    if isinstance(before.value, dict) and isinstance(after.value, dict):
        pairs = list(zip(before.value.items(), after.value.items(), strict=False))
        return len(before.value) == len(after.value) and all(
            (name == new_name or old.key in touched) and same_but_for(old, new, touched)
            for (name, old), (new_name, new) in pairs
        )
    if isinstance(before.value, list) and isinstance(after.value, list):
        pairs_of_items = zip(before.value, after.value, strict=False)
        return len(before.value) == len(after.value) and all(
            same_but_for(old, new, touched) for old, new in pairs_of_items
        )
    return before.origin in touched or (
        before.value == after.value and type(before.value) is type(after.value)
    )


def write_back(target: Path, source: SourceText, text: str) -> None:
    """Replace the file in one move, its byte order mark and mode kept. Raises ProblemsFound where it changed since it was read."""
    data = target.read_bytes()
    if decode(data, source.name).text != source.text:
        raise fail(
            "file",
            f"{source.name} was changed by someone else while it was being mended",
            help="start the command again",
        )
    mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    part = target.with_name(f".{target.name}.tmp-{os.getpid()}")
    try:
        part.write_bytes(mark + text.encode())
        shutil.copymode(target, part)
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise fail(
            "file", f"cannot write {source.name}: {(error.strerror or str(error)).lower()}"
        ) from None


def fix_text(fix: Fix) -> str:
    """`mine.yaml:3:5: Steps -> steps`."""
    return f"{fix.origin}: {text_at(fix.origin)} -> {fix.replacement}"
