"""Texts without secrets: the values that are known, those of variables named as secrets, and what looks like one."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

MASK = "***"
# words in the name of an environment variable that holds a secret
SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASS|CREDENTIALS?|AUTH|(API|ACCESS|PRIVATE|SECRET)?_?KEY)$",
    re.IGNORECASE,
)
# a shorter value is too common a word to be replaced wherever it stands
SHORTEST_LIKELY = 8
# tokens by the prefix that their issuer gives them, the password in a URL, and what is assigned to a name of a secret: long, with a digit
TOKEN = re.compile(
    r"\b(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA|AIza|ya29\.|nvapi-)[A-Za-z0-9_\-.]{8,}"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
)
ASSIGNED = re.compile(
    r"""((?:token|secret|passw(?:or)?d|api[_-]?key|access[_-]?key|private[_-]?key|credentials?)["']?\s*[:=]\s*["']?)"""
    r"""(?=[^\s"']*[0-9])(?=[^\s"']*[A-Za-z])[A-Za-z0-9+/=_.\-]{16,}""",
    re.IGNORECASE,
)
# of an address what says who asks, and what a signed one ends with; a path has made one slash of two
WHO = re.compile(r"""([A-Za-z][A-Za-z0-9+.-]+:/{1,2})([^/\s@'"]+)(?=@)""")
SIGNED = re.compile(r"""([A-Za-z][A-Za-z0-9+.-]+://[^\s?#'"]*[?#])([^\s'"]+)""")
PRIVATE_KEY = re.compile(
    r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)


def masked(text: str, values: Collection[str]) -> str:
    """The text without the values of secrets, the longest first, since one may be part of another."""
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, MASK)
    return text


def masked_data(data: Any, values: Collection[str]) -> Any:
    """Plain data with the texts in it masked."""
    if isinstance(data, str):
        return masked(data, values)
    if isinstance(data, Mapping):
        return {key: masked_data(value, values) for key, value in data.items()}
    return [masked_data(item, values) for item in data] if isinstance(data, list) else data


def masked_addresses(text: str) -> str:
    """A text in which no address says who asks: `s3://***@bucket/run`, `s3://bucket/run?***`."""
    return SIGNED.sub(rf"\g<1>{MASK}", WHO.sub(rf"\g<1>{MASK}", text)) if ":/" in text else text


def starred_addresses(line: str) -> str:
    """The same for a line below which carets point at columns: a star for each character."""
    if ":/" not in line:
        return line
    for pattern in (WHO, SIGNED):
        line = pattern.sub(lambda found: found[1] + "*" * len(found[2]), line)
    return line


def likely_secrets(environment: Mapping[str, str]) -> frozenset[str]:
    """The values of variables whose name says that they hold a secret."""
    found = {
        value
        for name, value in environment.items()
        if SECRET_NAME.search(name) and len(value) >= SHORTEST_LIKELY
    }
    return frozenset(found) | long_lines(found)


def long_lines(values: Iterable[str]) -> frozenset[str]:
    """The long lines of values, each a secret too: in a diff every line has a mark of its own."""
    lines = {line.strip() for value in values for line in value.splitlines()}
    return frozenset(line for line in lines if len(line) >= SHORTEST_LIKELY)


def without_tokens(text: str) -> str:
    """A text of unknown origin, such as a diff, without what looks like a token, a password or a private key."""
    return PRIVATE_KEY.sub(rf"\1 {MASK} \2", ASSIGNED.sub(rf"\g<1>{MASK}", TOKEN.sub(MASK, text)))
