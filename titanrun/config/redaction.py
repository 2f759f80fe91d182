"""Redaction of secrets in texts: known values, values of secret variables, likely tokens."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

MASK = "***"
# words in the name of an environment variable that holds a secret
SECRET_NAME = re.compile(
    r"((^|_)(TOKEN|SECRET|PASS|CREDENTIALS?|AUTH|(API|ACCESS|PRIVATE|SECRET)?_?KEY)"
    r"|PASSW(OR)?D|PASSPHRASE|_PAT|_PWD)_?[0-9]*$",
    re.IGNORECASE,
)
# tokens of a vocabulary, which are no secrets
SPECIAL_TOKEN = re.compile(
    r"(^|_)(bos|eos|pad|unk|sep|cls|mask|image|special|start|end|stop)_token$", re.IGNORECASE
)
# without backtracking, since a line may be long:
# `key: value`, `key=value` and `"key": "value"`, but not a value that is a reference
ASSIGNMENT = re.compile(
    r"""(?<![\w-])(?P<key>[A-Za-z_][\w-]*+)(?P<gap>["']?+\s*+[:=]\s*+(?:![\w!]*+\s++)?+)"""
    r"""(?P<value>(?!["']?\$\{env:)(?:"(?:[^"\\]|\\.)*+"?|'[^']*+'?|[^\s,{}\[\]#'"][^\s,}\]]*))"""
)
# the same without the value, however that begins
ASSIGNED_KEY = re.compile(r"""(?<![\w-])(?P<key>[A-Za-z_][\w-]*+)["']?+\s*+[:=]\s*+""")
REFERENCE_VALUE = re.compile(r"""["']?\$\{env:""")
# what begins no plain text in YAML, but may begin a password
INDICATORS = "*&!@`%|>?-:{}[],#"
# parts of a value that a message may quote
VALUE_PART = re.compile(r"""[^\s"'{}\[\],:&*!]{4,}""")
# sockets of agents that act with the keys of the user
AGENT_VARIABLES = ("SSH_AUTH_SOCK", "SSH_AGENT_PID", "GPG_AGENT_INFO")
# a shorter value is too common a word to be replaced everywhere
MIN_SECRET_LENGTH = 8
# tokens by the prefix of their issuer, the password in a URL, and values assigned to the name of a
# secret: long, with a digit
TOKEN = re.compile(
    r"\bhf_[A-Za-z0-9]{8,}(?![A-Za-z0-9_])"
    r"|\b(?:sk-|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA|AIza|ya29\.|nvapi-)[A-Za-z0-9_\-.]{8,}"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
)
# the same where names such as hf_assets_path are common: Hugging Face's tokens are 34 letters or
# digits, others have a digit
CERTAIN_TOKEN = re.compile(
    r"\bhf_[A-Za-z0-9]{30,}\b"
    r"|\b(?:sk-|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA|AIza|ya29\.|nvapi-)"
    r"(?=[A-Za-z_\-.]{0,200}[0-9])[A-Za-z0-9_\-.]{16,}"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
)
ASSIGNED_SECRET = re.compile(
    r"""((?:token|secret|passw(?:or)?d|api[_-]?key|access[_-]?key|private[_-]?key|credentials?)["']?\s*[:=]\s*["']?)"""
    r"""(?=[^\s"']*[0-9])(?=[^\s"']*[A-Za-z])[A-Za-z0-9+/=_.\-]{16,}""",
    re.IGNORECASE,
)
# the credentials of a URL, and the query of a signed one; pathlib turns two slashes into one
URL_USER_INFO = re.compile(r"""([A-Za-z][A-Za-z0-9+.-]+:/{1,2})([^/\s@'"]+)(?=@)""")
URL_QUERY = re.compile(r"""([A-Za-z][A-Za-z0-9+.-]+://[^\s?#'"]*[?#])([^\s'"]+)""")
PRIVATE_KEY = re.compile(
    r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)


def redact(text: str, values: Collection[str]) -> str:
    """Return the text without the values of secrets.

    The longest value is replaced first, since one may be part of another.
    """
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, MASK)
    return text


def redact_data(data: Any, values: Collection[str]) -> Any:
    """Return plain data with its texts redacted."""
    if isinstance(data, str):
        return redact(data, values)
    if isinstance(data, Mapping):
        return {key: redact_data(value, values) for key, value in data.items()}
    return [redact_data(item, values) for item in data] if isinstance(data, list) else data


def redact_url_credentials(text: str) -> str:
    """Remove credentials from URLs in a text: `s3://***@bucket/run`, `s3://bucket/run?***`."""
    return (
        URL_QUERY.sub(rf"\g<1>{MASK}", URL_USER_INFO.sub(rf"\g<1>{MASK}", text))
        if ":/" in text
        else text
    )


def star_out_url_credentials(line: str) -> str:
    """Replace each character of URL credentials by a star, so that caret columns stay valid."""
    if ":/" not in line:
        return line
    for pattern in (URL_USER_INFO, URL_QUERY):
        line = pattern.sub(lambda found: found[1] + "*" * len(found[2]), line)
    return line


def is_secret_variable(name: str, value: str = "") -> bool:
    """Return whether an environment variable holds a secret, by its name or its value."""
    return (
        SECRET_NAME.search(name) is not None
        or name in AGENT_VARIABLES
        or CERTAIN_TOKEN.search(value) is not None
        or PRIVATE_KEY.search(value) is not None
    )


def is_secret_key(key: str) -> bool:
    """Return whether a key of a recipe, in any spelling, is about a secret."""
    spelled = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).replace("-", "_")
    return SECRET_NAME.search(spelled) is not None and not SPECIAL_TOKEN.search(spelled)


def star_out_assigned_secrets(line: str) -> str:
    """Replace each character of a value by a star if its key is about a secret.

    Tokens are replaced whatever their key is. References to variables stay.
    """

    def star(found: re.Match[str]) -> str:
        value = found["value"]
        return (
            found["key"] + found["gap"] + "*" * len(value)
            if is_secret_key(found["key"])
            else found[0]
        )

    starred = ASSIGNMENT.sub(star, star_out_rest(line))
    return CERTAIN_TOKEN.sub(lambda found: "*" * len(found[0]), starred)


def star_out_rest(line: str) -> str:
    """Replace the rest of a line by stars where it may be the value of a secret.

    Not so in a flow mapping, where the value ends before the line, unless it begins with a
    character that has a meaning in YAML.
    """
    for found in ASSIGNED_KEY.finditer(line):
        rest = line[found.end() :]
        if not is_secret_key(found["key"]) or REFERENCE_VALUE.match(rest):
            continue
        if rest[:1] in INDICATORS or "{" not in line[: found.start()]:
            return line[: found.end()] + "*" * len(rest)
    return line


def find_assigned_secret(line: str, column: int) -> list[str]:
    """Return the parts of the secret at a column of a line, empty if it holds none there."""
    starred = star_out_assigned_secrets(line)
    if starred == line:
        return []
    start = end = column - 1
    while start > 0 and starred[start - 1] == "*":
        start -= 1
    while starred[end : end + 1] == "*":
        end += 1
    return VALUE_PART.findall(line[start:end])


def get_likely_secrets(environment: Mapping[str, str]) -> frozenset[str]:
    """Return the values of variables whose names suggest a secret."""
    found = {
        value
        for name, value in environment.items()
        if SECRET_NAME.search(name) and len(value) >= MIN_SECRET_LENGTH
    }
    return frozenset(found) | get_long_lines(found)


def get_long_lines(values: Iterable[str]) -> frozenset[str]:
    """Return the long lines of values, each a secret of its own.

    In a diff every line has its own prefix, so a value of several lines would not match as a whole.
    """
    lines = {line.strip() for value in values for line in value.splitlines()}
    return frozenset(line for line in lines if len(line) >= MIN_SECRET_LENGTH)


def redact_tokens(text: str) -> str:
    """Return text of unknown origin, such as a diff, without likely secrets.

    These are tokens, passwords and private keys.
    """
    return PRIVATE_KEY.sub(
        rf"\1 {MASK} \2", ASSIGNED_SECRET.sub(rf"\g<1>{MASK}", TOKEN.sub(MASK, text))
    )
