"""Decoding of source files: UTF-8 text without invisible characters."""

import codecs
import re
import unicodedata

from titanrun.config.problems import Origin, Problem, ProblemsFound, SourceText, problem_error
from titanrun.config.text_positions import TextPositions

# ruamel treats U+0085, U+2028 and U+2029 as line breaks, unlike YAML 1.2, and counts no column
# for U+FEFF
INVISIBLE_CHARACTER = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]"
)
WIDE_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)
SAVE_AS = "save the file as UTF-8"


def decode_source(data: bytes, name: str, *, included_from: Origin | None = None) -> SourceText:
    """Decode a file without its byte order mark. Raise ProblemsFound unless it is UTF-8.

    The problem code is `encoding`.
    """
    data = data.removeprefix(codecs.BOM_UTF8)
    if data.startswith(WIDE_MARKS) or b"\0" in data[:2]:
        start = SourceText(name, "", included_from=included_from)
        raise problem_error(
            "encoding", "UTF-16 or binary, not UTF-8", origin=Origin(start, 1, 1, 1), hint=SAVE_AS
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        source = SourceText(name, data.decode(errors="replace"), included_from=included_from)
        origin = TextPositions(source).to_point_origin(len(data[: error.start].decode()))
        raise problem_error(
            "encoding", f"byte 0x{data[error.start]:02x} is not UTF-8", origin=origin, hint=SAVE_AS
        ) from None
    return SourceText(name, text, included_from=included_from)


def check_characters(source: SourceText) -> None:
    """Raise ProblemsFound (encoding) at the first invisible character or non-character."""
    found = INVISIBLE_CHARACTER.search(source.text)
    if found is not None:
        raise ProblemsFound(
            [
                build_invisible_character_problem(
                    found.group(), TextPositions(source).to_point_origin(found.start())
                )
            ]
        )


def escape_to_one_line(text: str) -> str:
    """Return the text with invisible characters and line breaks replaced by escapes."""
    return re.sub(
        rf"{INVISIBLE_CHARACTER.pattern}|[\t\r\n]", lambda found: f"\\u{ord(found[0]):04x}", text
    )


def build_invisible_character_problem(character: str, origin: Origin) -> Problem:
    """Build the problem of an invisible character."""
    number = ord(character)
    if (
        0xDC80 <= number <= 0xDCFF
    ):  # how Python passes on a byte of the command line that is not UTF-8
        return Problem("encoding", f"byte 0x{number - 0xDC00:02x} is not UTF-8", origin=origin)
    if 0xD800 <= number <= 0xDFFF:
        return build_lone_surrogate_problem(number, origin)
    name = unicodedata.name(character, "control character").lower()
    escape = f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"
    return Problem(
        "encoding",
        f"invisible {name} U+{number:04X}",
        origin=origin,
        hint=f'delete it, or write "{escape}" in double quotes',
    )


def build_lone_surrogate_problem(number: int, origin: Origin) -> Problem:
    """Build the problem of a lone surrogate, as left by a broken pair of JSON escapes."""
    return Problem(
        "encoding", f"U+{number:04X} is half of a surrogate pair, not a character", origin=origin
    )
