"""Which messages a language server answers before `initialize` and after `shutdown`."""

from typing import Any

from lsprotocol import types
from pygls.exceptions import (
    JsonRpcException,
    JsonRpcInvalidRequest,
    JsonRpcServerNotInitialized,
)
from pygls.protocol import LanguageServerProtocol


class LifecycleProtocol(LanguageServerProtocol):
    """Protocol that answers requests outside of a session with the error that LSP names.

    pygls drops requests after `shutdown`, so that a client waits for ever, and reports a request
    before `initialize` as an error of the server.
    """

    def handle_message(self, message: Any) -> None:
        """Handle a message, or refuse it if the session has not begun or is over."""
        method = getattr(message, "method", None)
        if method is None or method == types.EXIT:
            super().handle_message(message)
            return
        refusal = self.find_refusal(method)
        if refusal is None:
            super().handle_message(message)
        elif (number := getattr(message, "id", None)) is not None:
            self._send_response(number, error=refusal.to_response_error())

    def find_refusal(self, method: str) -> JsonRpcException | None:
        """Return the error for a request that comes too early or too late, or None."""
        if self._shutdown:
            return JsonRpcInvalidRequest(f"{method} after shutdown")
        if self._workspace is None and method != types.INITIALIZE:
            return JsonRpcServerNotInitialized(f"{method} before initialize")
        if self._workspace is not None and method == types.INITIALIZE:
            return JsonRpcInvalidRequest("initialize twice")
        return None
