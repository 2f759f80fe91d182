"""Which messages a language server refuses, and with which error of the protocol."""

import json
from dataclasses import dataclass
from typing import Any

from lsprotocol import types
from pygls.exceptions import (
    JsonRpcException,
    JsonRpcInvalidParams,
    JsonRpcInvalidRequest,
    JsonRpcParseError,
    JsonRpcServerNotInitialized,
)
from pygls.protocol import LanguageServerProtocol


@dataclass(frozen=True, slots=True)
class UnreadableRequest:
    """A request whose parameters are not those of its method."""

    id: int | str
    method: str


class LifecycleProtocol(LanguageServerProtocol):
    """Protocol that answers every request, with the error that LSP names where it must be refused.

    pygls drops requests after `shutdown` and requests that it cannot read, so that a client waits
    for ever, and reports a request before `initialize` as an error of the server.
    """

    def structure_message(self, data: dict[str, Any]) -> Any:
        """Convert a message; a request that cannot be converted is kept, to be refused."""
        if "method" not in data or "id" not in data:
            return super().structure_message(data)
        number, method = data["id"], data["method"]
        is_request = isinstance(method, str) and is_request_id(number)
        if not is_request or data.get("jsonrpc") != self.VERSION:
            return data
        # parameters may be left out, which pygls knows only of the methods of LSP
        if "params" not in data and self.get_message_type(method) is None:
            data = {**data, "params": None}
        try:
            return super().structure_message(data)
        except JsonRpcException:
            return UnreadableRequest(number, method)

    def handle_message(self, message: Any) -> None:
        """Handle a message, or refuse it if it is unreadable or outside of the session."""
        if isinstance(message, (dict, list, str, int, float, bool, type(None))):
            number = message.get("id") if isinstance(message, dict) else None
            self.refuse(number, JsonRpcInvalidRequest("not a message of JSON-RPC 2.0"))
            return
        method = getattr(message, "method", None)
        if method is None or method == types.EXIT:
            super().handle_message(message)
            return
        refusal = self.find_refusal(method)
        if refusal is None and isinstance(message, UnreadableRequest):
            refusal = JsonRpcInvalidParams(f"these are no parameters of {method}")
        if refusal is None:
            super().handle_message(message)
        elif (number := getattr(message, "id", None)) is not None:
            self.refuse(number, refusal)

    def find_refusal(self, method: str) -> JsonRpcException | None:
        """Return the error for a request that comes too early or too late, or None."""
        if self._shutdown:
            return JsonRpcInvalidRequest(f"{method} after shutdown")
        if self._workspace is None and method != types.INITIALIZE:
            return JsonRpcServerNotInitialized(f"{method} before initialize")
        if self._workspace is not None and method == types.INITIALIZE:
            return JsonRpcInvalidRequest("initialize twice")
        return None

    def refuse(self, number: Any, error: JsonRpcException) -> None:
        """Answer with an error; the id is null if the message has none that can be repeated."""
        if is_request_id(number):
            self._send_response(number, error=error.to_response_error())
        else:
            # the types of pygls leave out a null id, which JSON-RPC requires
            about = {"code": error.code, "message": error.message}
            self._send_data({"jsonrpc": self.VERSION, "id": None, "error": about})

    def refuse_unparsed(self, error: Exception) -> bool:
        """Answer text that is not JSON. Return whether `error` says that it was such text."""
        if not isinstance(error, (json.JSONDecodeError, UnicodeDecodeError, RecursionError)):
            return False
        self.refuse(None, JsonRpcParseError("the message is not JSON"))
        return True


def is_request_id(number: Any) -> bool:
    """Return whether a value is the id of a request: text or a whole number."""
    return isinstance(number, (str, int)) and not isinstance(number, bool)
