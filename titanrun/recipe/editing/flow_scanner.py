"""Position of a cursor inside the brackets of YAML flow collections and TOML inline tables."""

from dataclasses import dataclass, field

from titanrun.config.problems import DataPath


@dataclass(frozen=True, slots=True)
class FlowPosition:
    """Path inside the outermost bracket, and whether a value belongs there.

    For a key, the path is that of the mapping it belongs to.
    """

    path: DataPath
    is_value: bool
    siblings: dict[str, str]


@dataclass(slots=True)
class OpenBracket:
    """One open bracket: the index of the current item, or the current key and earlier scalars."""

    is_list: bool
    index: int = 0
    key: str | None = None
    scalars: dict[str, str] = field(default_factory=dict)

    def finish_entry(self, word: str) -> None:
        """Close an entry that ends before a comma."""
        if self.is_list:
            self.index += 1
        elif self.key is not None:
            self.scalars[self.key] = word.strip(" \t\n\"'")
            self.key = None


def scan_flow(text: str, separator: str) -> FlowPosition | None:
    """Return the position at the end of `text`, which begins with a bracket, or None outside.

    Args:
        text: From the first bracket to the cursor.
        separator: Character between a key and its value.
    """
    brackets: list[OpenBracket] = []
    word, quote = "", ""
    for index, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
            word += character
        elif character in "\"'" and not word.strip():
            quote = character
            word += character
        elif character in "{[":
            brackets.append(OpenBracket(character == "["))
            word = ""
        elif character in "}]" and brackets:
            brackets.pop()
            word = ""
            if not brackets:
                return None
        elif character == "," and brackets:
            brackets[-1].finish_entry(word)
            word = ""
        elif is_separator(text, index, separator, brackets):
            brackets[-1].key, word = word.strip(" \t\n\"'"), ""
        else:
            word += character
    return build_position(brackets) if brackets else None


def is_separator(text: str, index: int, separator: str, brackets: list[OpenBracket]) -> bool:
    """Return whether the character at `index` ends a key."""
    if text[index] != separator or not brackets or brackets[-1].is_list:
        return False
    if brackets[-1].key is not None:
        return False
    following = text[index + 1 : index + 2]
    return separator == "=" or following in ("", " ", "\n", "\t")


def build_position(brackets: list[OpenBracket]) -> FlowPosition:
    """Return the position inside the innermost open bracket."""
    steps: list[str | int] = []
    for bracket in brackets[:-1]:
        step = bracket.index if bracket.is_list else bracket.key
        steps += [] if step is None else [step]
    last = brackets[-1]
    if last.is_list:
        return FlowPosition((*steps, last.index), is_value=True, siblings={})
    if last.key is None:
        return FlowPosition(tuple(steps), is_value=False, siblings=last.scalars)
    return FlowPosition((*steps, last.key), is_value=True, siblings=last.scalars)
