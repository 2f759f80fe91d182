"""Language server of recipes: what `titanrun validate` finds, while a recipe is edited.

Messages go over stdin and stdout; nothing else may write to them.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from titanrun.config.problems import Problem
from titanrun.lsp.convert import (
    TextLines,
    to_completion_item,
    to_diagnostic,
    to_hover,
    to_location,
    to_origin_range,
    to_path,
    to_uri,
)
from titanrun.lsp.lifecycle import LifecycleProtocol
from titanrun.lsp.recipe_detection import is_recipe
from titanrun.lsp.symbols import list_document_symbols, list_inlay_hints
from titanrun.recipe.editing.code_actions import fix_text, list_code_actions
from titanrun.recipe.editing.completions import complete
from titanrun.recipe.editing.definitions import find_definition, iter_extended_files
from titanrun.recipe.editing.examiner import Document, Examiner
from titanrun.recipe.editing.hover import describe_position
from titanrun.recipe.reference.documentation_site import find_documentation_site

# pause after the last key before a recipe is examined
DELAY_SECONDS = 0.12
FIX_ALL = "source.fixAll.titanrun"
Answer = TypeVar("Answer")


class RecipeServer(LanguageServer):
    """State of one session: open recipes, their diagnostics, and the settings of the client."""

    def __init__(self, version: str, environment: Mapping[str, str]) -> None:
        """Start without any open recipe."""
        # whole texts: recipes are small, and pygls splits lines at more characters than the client
        super().__init__(
            "titanrun",
            version,
            text_document_sync_kind=types.TextDocumentSyncKind.Full,
            protocol_cls=LifecycleProtocol,
        )
        self.examiner = Examiner(environment)
        self.site = find_documentation_site()
        self.lock = threading.Lock()
        self.versions: dict[str, int] = {}
        self.published: dict[str, dict[str, list[types.Diagnostic]]] = {}
        self.recipe_folders: list[str] = []
        self.should_show_auto = False
        self.is_shut_down = False
        self.pending_tasks: set[asyncio.Task[None]] = set()

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Answer text that is not JSON; show other errors in the editor, as pygls does."""
        protocol = self.protocol
        assert isinstance(protocol, LifecycleProtocol)
        if not protocol.refuse_unparsed(error):
            super().report_server_error(error, source)

    @property
    def encoding(self) -> str:
        """Unit of columns that client and server agreed on."""
        return str(
            getattr(self.workspace.position_encoding, "value", self.workspace.position_encoding)
        )

    def find_document(self, uri: str) -> Document | None:
        """Return an open recipe, or None for other files."""
        return self.examiner.documents.get(to_path(uri) or "")

    def set_text(self, uri: str, text: str, version: int) -> None:
        """Take over the text of an open file, and examine it after a pause if it is a recipe."""
        path = to_path(uri)
        if path is None:
            return
        if not is_recipe(path, text, self.recipe_folders):
            self.forget(uri)
            return
        with self.lock:
            self.examiner.open(path, text)
        self.versions[path] = version
        task = asyncio.ensure_future(self.examine_later(path, version))
        # the event loop keeps only a weak reference
        self.pending_tasks.add(task)
        task.add_done_callback(self.pending_tasks.discard)

    async def examine_later(self, path: str, version: int) -> None:
        """Examine a recipe unless it changes again within the pause."""
        await asyncio.sleep(DELAY_SECONDS)
        if self.versions.get(path) != version:
            return
        problems = await self.ask(lambda: self.examine(path))
        if problems is not None and self.versions.get(path) == version:
            self.publish(path, problems, version)

    def examine(self, path: str) -> tuple[Problem, ...] | None:
        """Return the problems of an open recipe, None if it was closed."""
        document = self.examiner.documents.get(path)
        return None if document is None else self.examiner.examine(document)

    async def ask(self, answer: Callable[[], Answer]) -> Answer:
        """Return an answer of the examiner, which works in one thread at a time."""

        def answer_alone() -> Answer:
            with self.lock:
                return answer()

        return await asyncio.get_running_loop().run_in_executor(None, answer_alone)

    def publish(self, path: str, problems: tuple[Problem, ...], version: int) -> None:
        """Publish the problems of a recipe, those in the files that it extends included."""
        document = self.examiner.documents.get(path)
        if document is None:
            return
        found: dict[str, list[types.Diagnostic]] = {path: []}
        for problem in problems:
            file, diagnostic = to_diagnostic(problem, document, self.encoding, self.site)
            found.setdefault(file, []).append(diagnostic)
        files = dict.fromkeys([*self.published.get(path, {}), *found])
        self.published[path] = found
        # the recipe itself last: when it arrives, the client knows everything
        for file in sorted(files, key=lambda file: file == path):
            self.publish_file(file, version if file == path else None)

    def publish_file(self, file: str, version: int | None) -> None:
        """Publish what all open recipes say about one file, each diagnostic once."""
        merged: list[types.Diagnostic] = []
        for by_file in self.published.values():
            merged += [found for found in by_file.get(file, ()) if found not in merged]
        self.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(to_uri(file), merged, version=version)
        )

    def forget(self, uri: str) -> None:
        """Drop a file that was closed, and its diagnostics."""
        path = to_path(uri)
        if path is None:
            return
        with self.lock:
            self.examiner.close(path)
        self.versions.pop(path, None)
        for file in self.published.pop(path, {}):
            self.publish_file(file, None)


def build_server(version: str, environment: Mapping[str, str]) -> RecipeServer:
    """Return the server with all its features."""
    server = RecipeServer(version, environment)
    add_synchronization(server)
    add_answers(server)
    add_edits(server)
    add_structure(server)
    return server


def add_synchronization(server: RecipeServer) -> None:
    """Add the handlers that follow the texts of open files."""

    @server.feature(types.INITIALIZE)
    def read_settings(params: types.InitializeParams) -> None:
        options: Any = params.initialization_options
        options = options if isinstance(options, dict) else {}
        root = to_path(params.root_uri) if params.root_uri else None
        folders = options.get("recipes", ())
        server.recipe_folders = [str(Path(root or ".") / str(folder)) for folder in folders]
        server.should_show_auto = options.get("inlayHints") is True

    @server.feature(types.SHUTDOWN)
    def note_shutdown(_: None) -> None:
        server.is_shut_down = True

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    async def open_text(params: types.DidOpenTextDocumentParams) -> None:
        opened = params.text_document
        server.set_text(opened.uri, opened.text, opened.version)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    async def change_text(params: types.DidChangeTextDocumentParams) -> None:
        changed = params.text_document
        text = server.workspace.get_text_document(changed.uri).source
        server.set_text(changed.uri, text, changed.version)

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    async def examine_others(params: types.DidSaveTextDocumentParams) -> None:
        # other open recipes may extend the saved file
        for path, version in list(server.versions.items()):
            task = asyncio.ensure_future(server.examine_later(path, version))
            server.pending_tasks.add(task)
            task.add_done_callback(server.pending_tasks.discard)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    async def close_text(params: types.DidCloseTextDocumentParams) -> None:
        server.forget(params.text_document.uri)


def add_answers(server: RecipeServer) -> None:
    """Add hover, completion and go to definition."""

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    async def hover(params: types.HoverParams) -> types.Hover | None:
        document = server.find_document(params.text_document.uri)
        if document is None:
            return None
        lines = TextLines(document.text, server.encoding)
        line, column = lines.to_line_and_column(params.position)
        offset = lines.to_offset(params.position)
        found = await server.ask(lambda: describe_position(document, line, column, offset))
        return None if found is None else to_hover(found, server.encoding)

    @server.feature(
        types.TEXT_DOCUMENT_COMPLETION,
        types.CompletionOptions(trigger_characters=[":", " ", ".", "{", '"', "="]),
    )
    async def list_completions(params: types.CompletionParams) -> types.CompletionList:
        document = server.find_document(params.text_document.uri)
        if document is None:
            return types.CompletionList(is_incomplete=False, items=[])
        lines = TextLines(document.text, server.encoding)
        offset = lines.to_offset(params.position)
        found = await server.ask(lambda: complete(document, offset))
        items = [
            to_completion_item(completion, number, lines, offset)
            for number, completion in enumerate(found)
        ]
        return types.CompletionList(is_incomplete=False, items=items)

    @server.feature(types.TEXT_DOCUMENT_DEFINITION)
    async def define(params: types.DefinitionParams) -> types.Location | None:
        document = server.find_document(params.text_document.uri)
        if document is None:
            return None
        lines = TextLines(document.text, server.encoding)
        line, column = lines.to_line_and_column(params.position)
        target = await server.ask(lambda: find_definition(document, line, column))
        if target is None:
            return None
        opened = server.examiner.documents.get(target.path)
        text = opened.text if opened else Path(target.path).read_text("utf-8", "replace")
        return to_location(target, text, server.encoding)


def add_edits(server: RecipeServer) -> None:
    """Add quick fixes and the correction of everything that is certain."""
    options = types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix, FIX_ALL])

    @server.feature(types.TEXT_DOCUMENT_CODE_ACTION, options)
    async def list_actions(params: types.CodeActionParams) -> list[types.CodeAction]:
        document = server.find_document(params.text_document.uri)
        if document is None:
            return []
        wanted = params.context.only
        found: list[types.CodeAction] = []
        if wanted is None or is_wanted(types.CodeActionKind.QuickFix, wanted):
            found += list_quick_fixes(server, document, params.range)
        if wanted is not None and is_wanted(FIX_ALL, wanted):
            found += await list_fix_all(server, document)
        return found


def is_wanted(kind: str, wanted: Any) -> bool:
    """Return whether a client that wants some kinds of actions wants this one."""
    return any(f"{kind}.".startswith(f"{getattr(item, 'value', item)}.") for item in wanted)


def list_quick_fixes(
    server: RecipeServer, document: Document, where: types.Range
) -> list[types.CodeAction]:
    """Return the edits for the problems whose lines a range touches."""
    found = []
    for action in list_code_actions(document.problems):
        path, diagnostic = to_diagnostic(action.problem, document, server.encoding, server.site)
        here = diagnostic.range
        if path != document.path or here.end.line < where.start.line:
            continue
        if here.start.line > where.end.line:
            continue
        file = action.fix.origin.source.name
        edit = types.TextEdit(
            to_origin_range(action.fix.origin, server.encoding), action.fix.replacement
        )
        title = action.title if file == document.path else f"{action.title} in {file}"
        found.append(
            types.CodeAction(
                title=title,
                kind=types.CodeActionKind.QuickFix,
                diagnostics=[diagnostic],
                is_preferred=action.is_preferred,
                edit=types.WorkspaceEdit(changes={to_uri(file): [edit]}),
            )
        )
    return found


async def list_fix_all(server: RecipeServer, document: Document) -> list[types.CodeAction]:
    """Return the edit that makes all certain corrections, or an empty list."""

    def fix() -> str:
        before = document.text
        try:
            return fix_text(
                document,
                lambda text: server.examiner.examine(server.examiner.open(document.path, text)),
            )
        finally:
            server.examiner.examine(server.examiner.open(document.path, before))

    before = document.text
    text = await server.ask(fix)
    if text == before:
        return []
    lines = TextLines(before, server.encoding)
    whole = types.Range(types.Position(0, 0), lines.to_position_at(len(before)))
    edit = types.WorkspaceEdit(changes={to_uri(document.path): [types.TextEdit(whole, text)]})
    title = "Fix all problems that have one certain correction"
    return [types.CodeAction(title=title, kind=FIX_ALL, edit=edit)]


def add_structure(server: RecipeServer) -> None:
    """Add symbols, links to extended files, and hints with the values of `auto`."""

    @server.feature(types.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
    async def list_symbols(params: types.DocumentSymbolParams) -> list[types.DocumentSymbol]:
        document = server.find_document(params.text_document.uri)
        return [] if document is None else list_document_symbols(document, server.encoding)

    @server.feature(types.TEXT_DOCUMENT_DOCUMENT_LINK)
    async def list_links(params: types.DocumentLinkParams) -> list[types.DocumentLink]:
        document = server.find_document(params.text_document.uri)
        if document is None:
            return []
        lines = TextLines(document.text, server.encoding)
        named = await server.ask(lambda: list(iter_extended_files(document)))
        return [
            types.DocumentLink(
                lines.to_range(file.line, file.column, file.end_column), target=to_uri(file.path)
            )
            for file in named
        ]

    @server.feature(types.TEXT_DOCUMENT_INLAY_HINT)
    async def list_hints(params: types.InlayHintParams) -> list[types.InlayHint]:
        document = server.find_document(params.text_document.uri)
        if document is None or not server.should_show_auto:
            return []
        return list_inlay_hints(document, server.encoding)
