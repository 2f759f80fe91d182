"""A page of the server in Chromium, and everything that it must not do."""

from typing import Any

from tests.ui.conftest import ROOT, UiProcess

AXE = ROOT / "ui" / "node_modules" / "axe-core" / "axe.min.js"
WIDTHS = (1280, 390)
# only their layout differs
OTHER_WIDTHS = (320, 768, 1920)
SMALL = (
    "model.n_layers=1",
    "model.dim=64",
    "model.n_heads=4",
    "training.seq_len=32",
    "metrics.log_freq=1",
    "validation.enable=false",
)


class Watched:
    """A page of the server, and everything that it must not do."""

    def __init__(self, browser: Any, ui: UiProcess) -> None:
        self.ui = ui
        self.context = browser.new_context(viewport={"width": 1280, "height": 900})
        # half a minute is too short beside a training on two slow cores
        self.context.set_default_timeout(120_000)
        self.context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.faults: list[str] = []
        self.allowed: tuple[str, ...] = ()
        self.page = self.context.new_page()
        self.page.on("console", self.note_console)
        self.page.on("pageerror", lambda error: self.faults.append(str(error.stack)))
        self.page.on("request", self.note_request)

    def note_console(self, message: Any) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(
            self.allowed or "\0"
        ):
            self.faults.append(message.text)

    def note_request(self, request: Any) -> None:
        if not request.url.startswith((self.ui.origin, "data:", "blob:")):
            self.faults.append(f"asked {request.url}")

    def open(self, path: str = "") -> Any:
        """Open the link, and then a page."""
        if not self.page.url.startswith(self.ui.origin):
            self.page.goto(self.ui.link)
            self.page.wait_for_selector("h1")
        if path:
            self.page.goto(self.ui.origin + path)
        self.page.wait_for_selector("h1")
        return self.page

    def check_axe(self) -> None:
        """Fail for whatever axe finds."""
        found = self.page.evaluate(AXE.read_text() + "; axe.run(document)")
        faults = [
            (one["id"], [node["html"][:160] for node in one["nodes"][:3]])
            for one in found["violations"]
        ]
        assert faults == [], (self.page.url, faults)


def wait_until(page: Any, claim: str) -> None:
    """Wait until a claim about the page holds; TEXT is that of the editor, TITLE the heading."""
    for name, selector in {"TEXT": ".text", "TITLE": "h1"}.items():
        claim = claim.replace(name, f"document.querySelector('{selector}').innerText")
    page.wait_for_function(f"() => {claim}")


def set_text(page: Any, text: str) -> None:
    """Replace the text of the editor as a user does who pastes another one."""
    # the editor is empty, and takes no text, until the file has arrived
    wait_until(page, "document.querySelector('.text .cm-content').innerText.trim() !== ''")
    page.evaluate("(text) => navigator.clipboard.writeText(text)", text)
    page.click(".cm-content")
    page.keyboard.press("Control+a")
    page.keyboard.press("Control+v")


def get_text(page: Any) -> str:
    lines: list[str] = page.eval_on_selector_all(
        ".text .cm-line", "all => all.map(x => x.innerText)"
    )
    return "\n".join(line.replace("\n", "") for line in lines)


def check_everywhere(watched: Watched, paths: dict[str, str]) -> None:
    page = watched.open()
    page.emulate_media(reduced_motion="reduce")
    for width in (*WIDTHS, *OTHER_WIDTHS):
        page.set_viewport_size({"width": width, "height": 844})
        for path in paths.values():
            watched.open(path)
            page.wait_for_timeout(500)
            wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, (path, width, wide)
            if width in OTHER_WIDTHS:
                continue
            for theme in ("light", "dark"):
                page.evaluate("(t) => { document.documentElement.dataset.theme = t }", theme)
                page.wait_for_timeout(200)
                watched.check_axe()
