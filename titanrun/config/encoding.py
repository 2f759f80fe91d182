"""From the bytes of a file to text: UTF-8 without characters that nobody can see."""

import codecs
import re
import unicodedata

from titanrun.config.places import Places
from titanrun.config.problems import Origin, Problem, ProblemsFound, SourceText, fail

# ruamel takes U+0085, U+2028 and U+2029 for line breaks, which YAML 1.2 does not, and counts no column for U+FEFF
UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]"
)
WIDE_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)
SAVE_AS = "save the file as UTF-8"


def decode(data: bytes, name: str, *, included_from: Origin | None = None) -> SourceText:
    """The text of a file, its byte order mark dropped; raises ProblemsFound (encoding) for all but UTF-8."""
    data = data.removeprefix(codecs.BOM_UTF8)
    if data.startswith(WIDE_MARKS) or b"\0" in data[:2]:
        start = SourceText(name, "", included_from=included_from)
        raise fail(
            "encoding", "UTF-16 or binary, not UTF-8", origin=Origin(start, 1, 1, 1), help=SAVE_AS
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        source = SourceText(name, data.decode(errors="replace"), included_from=included_from)
        origin = Places(source).point(len(data[: error.start].decode()))
        raise fail(
            "encoding", f"byte 0x{data[error.start]:02x} is not UTF-8", origin=origin, help=SAVE_AS
        ) from None
    return SourceText(name, text, included_from=included_from)


def check_characters(source: SourceText) -> None:
    """Raises ProblemsFound (encoding) at the first character that cannot be seen or is no character."""
    found = UNSEEN.search(source.text)
    if found is not None:
        raise ProblemsFound([unseen(found.group(), Places(source).point(found.start()))])


def on_one_line(text: str) -> str:
    """The text with an escape in the place of each character that nobody can see, line breaks included."""
    return re.sub(rf"{UNSEEN.pattern}|[\t\r\n]", lambda found: f"\\u{ord(found[0]):04x}", text)


def unseen(character: str, origin: Origin) -> Problem:
    """The problem of an invisible character."""
    number = ord(character)
    if (
        0xDC80 <= number <= 0xDCFF
    ):  # how Python passes on a byte of the command line that is not UTF-8
        return Problem("encoding", f"byte 0x{number - 0xDC00:02x} is not UTF-8", origin=origin)
    if 0xD800 <= number <= 0xDFFF:
        return lone_surrogate(number, origin)
    name = unicodedata.name(character, "control character").lower()
    escape = f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"
    return Problem(
        "encoding",
        f"invisible {name} U+{number:04X}",
        origin=origin,
        help=f'delete it, or write "{escape}" in double quotes',
    )


def lone_surrogate(number: int, origin: Origin) -> Problem:
    """The problem of half a character, as left by a broken pair of JSON escapes."""
    return Problem(
        "encoding", f"U+{number:04X} is half of a surrogate pair, not a character", origin=origin
    )
