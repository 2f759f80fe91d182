"""Handshake of a trainer and a generator: each proves that it has the secret, without sending it.

Each sends a random challenge and answers that of the other with an HMAC of both challenges. What
follows is neither encrypted nor signed.
"""

import hashlib
import hmac
import secrets
from typing import Any, Literal

from titanrun.config.version import VERSION
from titanrun.rl.fleet.frames import FrameConnection, FrameError

PROTOCOL = 1
CHALLENGE_BYTES = 32
Role = Literal["generator", "trainer"]


class RefusedError(Exception):
    """The two do not belong together, and another attempt would not change it.

    Args:
        reason: what is wrong, in the words of a message after the name of the other side.
        hint: what to do.
    """

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.reason, self.hint = reason, hint


def welcome_trainer(connection: FrameConnection, secret: bytes | None) -> None:
    """Do the generator's part.

    Raises:
        RefusedError: the trainer has another secret, or another version.
        OSError: the connection has ended, or what comes is no greeting.
    """
    own = secrets.token_hex(CHALLENGE_BYTES)
    connection.send({**build_greeting(own), "has_secret": secret is not None})
    greeting, _ = connection.receive()
    check_same_version(greeting)
    other = get_greeting_text(greeting, "challenge")
    if secret is not None and not is_proof(greeting, secret, "trainer", own, other):
        connection.send({"refused": "secret"})
        raise RefusedError("has another secret, or none", "give both the same rl.fleet.secret_file")
    proof = None if secret is None else build_proof(secret, "generator", own, other)
    connection.send({"proof": proof})


def greet_generator(connection: FrameConnection, secret: bytes | None) -> None:
    """Do the trainer's part.

    Raises:
        RefusedError: the generator has another secret, or another version.
        OSError: the connection has ended, or what comes is no greeting.
    """
    greeting, _ = connection.receive()
    check_same_version(greeting)
    if secret is None and greeting.get("has_secret"):
        raise RefusedError("asks for a secret", "set rl.fleet.secret_file")
    if secret is not None and not greeting.get("has_secret"):
        raise RefusedError("has no secret", "give it the same rl.fleet.secret_file")
    own, other = secrets.token_hex(CHALLENGE_BYTES), get_greeting_text(greeting, "challenge")
    proof = None if secret is None else build_proof(secret, "trainer", other, own)
    connection.send({**build_greeting(own), "proof": proof})
    answer, _ = connection.receive()
    is_proved = secret is None or is_proof(answer, secret, "generator", other, own)
    if "refused" in answer or not is_proved:
        raise RefusedError("has another secret", "copy rl.fleet.secret_file from its machine")


def build_greeting(challenge: str) -> dict[str, Any]:
    """Build what both sides say first."""
    return {"titanrun": VERSION, "protocol": PROTOCOL, "challenge": challenge}


def check_same_version(greeting: dict[str, Any]) -> None:
    """Raise RefusedError for another version, and FrameError for another program."""
    version = get_greeting_text(greeting, "titanrun")
    if (version, greeting.get("protocol")) != (VERSION, PROTOCOL):
        raise RefusedError(f"runs titanrun {version!r}, not {VERSION}", "install the same version")


def get_greeting_text(greeting: dict[str, Any], name: str) -> str:
    """Return a text of a greeting.

    Raises:
        FrameError: it has none.
    """
    found = greeting.get(name)
    if not isinstance(found, str):
        raise FrameError("it is not a titanrun of a fleet")
    return found


def build_proof(secret: bytes, role: Role, generator: str, trainer: str) -> str:
    """Build the proof of a role, from the challenges of both."""
    message = f"titanrun {role} {generator} {trainer}".encode()
    return hmac.new(secret, message, hashlib.sha256).hexdigest()


def is_proof(
    message: dict[str, Any], secret: bytes, role: Role, generator: str, trainer: str
) -> bool:
    """Return whether a message proves that its sender has the secret."""
    given = message.get("proof")
    expected = build_proof(secret, role, generator, trainer)
    return isinstance(given, str) and hmac.compare_digest(given.encode(), expected.encode())
