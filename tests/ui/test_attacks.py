"""What a browser can be made to do against the server, in Chromium, and what files survive."""

import codecs
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.ui.conftest import STRANGER, UiProcess
from tests.ui.test_examination import plugin as plugin  # a fixture
from tests.ui.watched_page import Watched, wait_until

pytestmark = pytest.mark.browser
RECIPE = "/api/file?path=recipes/mine.yaml"
EDIT = "/edit?file=recipes/mine.yaml"
# what the page itself would send, with some of it left out; the status of each answer
ASK = """async ([tries, secret]) => {
  const found = {};
  for (const [name, path, options] of tries) {
    const headers = options.isBare ? {} : {'X-Titanrun': secret};
    const {isBare, more, ...rest} = options;
    const response = await fetch(path, {...rest, headers: {...headers, ...more}});
    found[name] = [response.status, path.includes('events') ? '' : await response.text()];
    if (response.body && path.includes('events')) await response.body.cancel();
  }
  return found;
}"""


class Site(BaseHTTPRequestHandler):
    """A page of somebody else."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<h1>another site</h1>")

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@pytest.fixture
def other_port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        yield site.server_address[1]
        site.shutdown()


@pytest.fixture
def attacked(watched: Watched) -> Watched:
    """An open page whose refused requests the browser reports."""
    watched.allowed = ("Failed to load resource",)
    watched.open(EDIT).wait_for_selector(".cm-line")
    return watched


def get_secret(page: Any) -> str:
    secret: str = page.evaluate("localStorage.getItem('titanrun-secret')")
    assert len(secret) > 20
    return secret


def test_neither_secret_of_the_browser_opens_anything_alone(attacked: Watched) -> None:
    page = attacked.page
    secret = get_secret(page)
    for path in ("/api/about", "/api/events?topics=runs", RECIPE):
        tries = [
            ("both", path, {}),
            ("cookie alone", path, {"isBare": True}),
            ("wrong header", path, {"isBare": True, "more": {"X-Titanrun": secret[:-1]}}),
            ("header alone", path, {"credentials": "omit"}),
            ("neither", path, {"isBare": True, "credentials": "omit"}),
        ]
        found = page.evaluate(ASK, [tries, secret])
        statuses = {name: status for name, (status, _) in found.items()}
        assert statuses == {name: 200 if name == "both" else 403 for name, _, _ in tries}, path
    # another window of the browser without the page's secret, then one without the cookie
    page.evaluate("localStorage.clear()")
    page.reload()
    assert "prints a new link" in page.inner_text("body")
    attacked.context.clear_cookies()
    assert page.goto(attacked.ui.origin + "/runs").status == 403
    assert "prints a new link" in page.inner_text("body")


def forward(port: int, target: int) -> socket.socket:
    """Pass on every connection to a port, as `ssh -L` does."""
    listener = socket.create_server(("127.0.0.1", port))

    def pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        finally:
            sink.close()

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", target))
            for pair in ((client, server), (server, client)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener


def test_a_name_that_leads_here_and_another_port_are_refused(attacked: Watched) -> None:
    page, server = attacked.page, attacked.ui
    secret = get_secret(page)
    path = server.link.removeprefix(server.origin)
    with forward(0, server.port) as listener:
        for origin in (
            f"http://{STRANGER}:{server.port}",
            f"http://127.0.0.1:{listener.getsockname()[1]}",
        ):
            answer = page.goto(origin + path)
            assert answer is not None and answer.status == 421, origin
            # the refusal is a page of that name: what it asks is of the same origin
            tries = [(one, one, {}) for one in ("/api/about", "/api/events?topics=runs", RECIPE)]
            found = page.evaluate(ASK, [tries, secret])
            assert [status for status, _ in found.values()] == [421] * 3, origin
    attacked.faults.clear()
    page.goto(server.origin + "/runs")
    page.wait_for_selector("h1:has-text('Runs')")


def listen(page: Any) -> list[tuple[str, str, int]]:
    """Method, address and status of every answer, also of those that the page may not see."""
    client = page.context.new_cdp_session(page)
    asked: dict[str, tuple[str, str]] = {}
    statuses: dict[str, int] = {}
    answers: list[tuple[str, str, int]] = []

    def pair(number: str) -> None:
        if number in asked and number in statuses:
            answers.append((*asked[number], statuses[number]))

    def note_request(event: Any) -> None:
        asked[event["requestId"]] = (event["request"]["method"], event["request"]["url"])
        pair(event["requestId"])

    def note_status(event: Any) -> None:
        statuses[event["requestId"]] = event["statusCode"]
        pair(event["requestId"])

    client.on("Network.requestWillBeSent", note_request)
    client.on("Network.responseReceivedExtraInfo", note_status)
    client.send("Network.enable")
    return answers


def test_pages_of_other_sites_are_refused_whatever_they_send(
    attacked: Watched, other_port: int
) -> None:
    page, origin = attacked.page, attacked.ui.origin
    secret = get_secret(page)
    before = (attacked.ui.workspace / "recipes" / "mine.yaml").read_bytes()
    answers = listen(page)
    script = """async ([origin, secret]) => {
      const ask = (method, path, options) => fetch(origin + path, {method, credentials: 'include',
        ...options}).then((x) => x.type, () => 'refused');
      const header = {headers: {'X-Titanrun': secret}};
      const found = [];
      for (const method of ['POST', 'PUT', 'DELETE']) {
        found.push(await ask(method, '/api/file?path=recipes/mine.yaml', header));
        found.push(await ask(method, '/api/jobs', header));
      }
      found.push(await ask('GET', '/api/events?topics=runs', header));
      found.push(await ask('GET', '/api/events?topics=runs', {}));
      for (const [method, path] of [['GET', '/api/events?topics=runs'], ['GET', '/static/icon.svg'],
          ['POST', '/api/examine'], ['POST', '/api/jobs'], ['POST', '/link']]) {
        await ask(method, path, {mode: 'no-cors', body: method === 'GET' ? undefined : '{}'});
      }
      return found;
    }"""
    # another port of the same name is the same site, which gets the cookie; localhost is not
    for host in ("127.0.0.1", "localhost"):
        page.goto(f"http://{host}:{other_port}/")
        answers.clear()
        assert set(page.evaluate(script, [origin, secret])) == {"refused"}, host
        page.wait_for_timeout(300)
        # the browser asks for the icon of the page that it left, late and of its own accord
        own = [
            one
            for one in answers
            if one[1].startswith(origin) and not one[1].endswith("/favicon.ico")
        ]
        plain = {(method, url.removeprefix(origin)) for method, url, _ in own}
        assert ("POST", "/api/jobs") in plain and ("GET", "/static/icon.svg") in plain, plain
        assert ("OPTIONS", "/api/jobs") in plain and len(own) >= 13, plain
        assert {status for _, _, status in own} == {403}, own
        # a form leaves the other site, and is refused as well
        with page.expect_navigation() as sent:
            page.evaluate(
                """(target) => {
                  const form = Object.assign(document.createElement('form'),
                    {method: 'POST', action: target, enctype: 'text/plain'});
                  document.body.append(form);
                  form.submit();
                }""",
                f"{origin}/api/examine",
            )
        assert sent.value.status == 403
    # the other name of the same server is another site, too
    page.goto(f"http://localhost:{attacked.ui.port}/")
    assert set(page.evaluate(script, [origin, secret])) == {"refused"}
    assert (attacked.ui.workspace / "recipes" / "mine.yaml").read_bytes() == before
    # the browser reports each refusal, and each visit of the other site was wanted
    attacked.faults.clear()


def test_addresses_that_lead_out_show_nothing(attacked: Watched, tmp_path: Path) -> None:
    page, workspace = attacked.page, attacked.ui.workspace
    outside = tmp_path / "outside.yaml"
    outside.write_text("version: 1\nname: outside-4711\n")
    (workspace / "recipes" / "link.yaml").symlink_to(outside)
    (workspace / "linked").symlink_to(tmp_path)
    names = (
        "../outside.yaml",
        "../../../../etc/passwd",
        str(outside),
        "%2e%2e/outside.yaml",
        "recipes/link.yaml",
        "linked/outside.yaml",
        "recipes\\..\\..\\outside.yaml",
        "recipes/mine.yaml\0.yaml",
    )
    secret = get_secret(page)
    for name in names:
        page.evaluate("(name) => { history.replaceState(null, '', '/edit?' + name) }", "x=1")
        query = page.evaluate("(file) => new URLSearchParams({file}).toString()", name)
        attacked.open(f"/edit?{query}")
        page.wait_for_selector(".editor [role=alert]")
        assert "4711" not in page.content() and "root:" not in page.content(), name
        path = page.evaluate("(path) => '/api/file?' + new URLSearchParams({path})", name)
        new = {"method": "PUT", "body": '{"text": "version: 2"}', "more": {"If-None-Match": "*"}}
        tries = [("read", path, {}), ("write", path, new)]
        for status, body in page.evaluate(ASK, [tries, secret]).values():
            assert status in (403, 404, 412) and "4711" not in body, (name, body)
    assert outside.read_text() == "version: 1\nname: outside-4711\n"


def test_a_link_that_is_swapped_in_meanwhile_is_never_followed(
    attacked: Watched, tmp_path: Path
) -> None:
    page, folder = attacked.page, attacked.ui.workspace / "recipes"
    outside = tmp_path / "outside.yaml"
    outside.write_text("version: 1\nname: outside-4711\n")
    inside, link, file = folder / "inside.yaml", folder / "link.yaml", folder / "swapped.yaml"
    is_over = threading.Event()

    def swap() -> None:
        while not is_over.is_set():
            inside.write_text("version: 1\nname: inside\n")
            inside.replace(file)
            link.symlink_to(outside)
            link.replace(file)

    thread = threading.Thread(target=swap, daemon=True)
    thread.start()
    path = "/api/file?path=recipes/swapped.yaml"
    force = {"method": "PUT", "body": '{"text": "version: 2"}', "more": {"If-None-Match": "*"}}
    tries = [(f"{at}", path, force if at % 2 else {}) for at in range(400)]
    found = page.evaluate(ASK, [tries, get_secret(page)])
    is_over.set()
    thread.join()
    reads = [answer for at, answer in found.items() if int(at) % 2 == 0]
    # both states were met, so that the name did change between requests
    assert {200} < {status for status, _ in reads}, {status for status, _ in reads}
    assert all("inside" in body for status, body in reads if status == 200)
    assert all("4711" not in body for _, body in found.values())
    assert outside.read_text() == "version: 1\nname: outside-4711\n"


def test_saving_keeps_line_ends_mark_mode_and_end(attacked: Watched) -> None:
    page = attacked.page
    file = attacked.ui.workspace / "recipes" / "windows.yaml"
    text = (attacked.ui.workspace / "recipes" / "mine.yaml").read_text().rstrip("\n")
    file.write_bytes(codecs.BOM_UTF8 + text.replace("\n", "\r\n").encode())
    file.chmod(0o640)
    attacked.open("/edit?file=recipes/windows.yaml")
    page.wait_for_selector(".status-bar:has-text('CRLF')")
    page.click(".cm-line:has-text('steps: 80')")
    page.keyboard.press("End")
    page.keyboard.press("Backspace")
    page.keyboard.type("1")
    page.keyboard.press("Enter")
    page.keyboard.type("seq_len: 128  # 🦙")
    page.keyboard.press("Control+s")
    wait_until(page, "!TITLE.includes('●')")
    new = file.read_bytes()
    assert new.startswith(codecs.BOM_UTF8) and not new.endswith(b"\n")
    plain = new.removeprefix(codecs.BOM_UTF8).decode()
    assert plain.count("\r\n") == plain.count("\n") == text.count("\n") + 1
    assert plain.replace("\r\n", "\n") == text.replace(
        "steps: 80", "steps: 81\n  seq_len: 128  # 🦙"
    )
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_preview_starts_one_command_and_none_after_a_change(attacked: Watched) -> None:
    page = attacked.page
    file = attacked.ui.workspace / "recipes" / "mine.yaml"
    before = file.read_text()
    page.click("button:has-text('Run …')")
    page.wait_for_selector("dialog .command:has-text('mine.yaml')")
    file.write_text(before.replace("steps: 80", "steps: 70"))
    with page.expect_response("**/api/jobs") as answer:
        page.click("dialog button:text-is('Start')")
    assert answer.value.status == 409
    page.wait_for_selector("dialog [role=alert]")
    assert not (attacked.ui.workspace / "runs").exists()
    # words that would be options have no preview at all
    for words in ("--trust", "training.steps=5\n-q", " --x=1"):
        page.fill("dialog textarea", words)
        page.wait_for_selector("dialog [role=alert]:has-text('an override is path=value')")
        assert page.locator("dialog button:text-is('Start'):enabled").count() == 0
    # a command that ends at once: it finds a mistake that the preview does not look for
    page.fill("dialog textarea", "dump_folder=recipes/mine.yaml")
    page.wait_for_selector("dialog .command:has-text('dump_folder=recipes/mine.yaml')")
    with page.expect_request("**/api/jobs") as sent:
        page.click("dialog button:text-is('Start')")
    page.wait_for_selector("text=ended with exit code 2", timeout=90_000)
    # the digest is used up, and another one was never given out
    used, made_up = sent.value.post_data, '{"digest": "made up", "allows_code": true}'
    post = {"method": "POST", "more": {"Content-Type": "application/json"}}
    tries = [("used", "/api/jobs", {**post, "body": used})]
    tries += [("made up", "/api/jobs", {**post, "body": made_up})]
    found = page.evaluate(ASK, [tries, get_secret(page)])
    assert [status for status, _ in found.values()] == [409, 409]
    assert not (attacked.ui.workspace / "runs").exists()


def test_a_plugin_is_imported_once_the_user_allows_it(
    browser: Any, start_ui: Callable[..., UiProcess], plugin: Path, tmp_path: Path
) -> None:
    paths = f"{plugin}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    state = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "PYTHONPATH": paths}
    found = Watched(browser, start_ui(**state))
    # a recipe whose code is not allowed has no preview
    found.allowed = ("Failed to load resource",)
    recipe = found.ui.workspace / "recipes" / "mine.yaml"
    recipe.write_text(recipe.read_text() + "plugins: [tracer]\n")
    imported = tmp_path / "imported"
    page = found.open(EDIT + "&panel=values")
    page.wait_for_selector("text=The plug-ins of this recipe run installed code")
    page.hover(".cm-line:has-text('plugins') span")
    for path in ("/launch?file=recipes/mine.yaml", "/plan?file=recipes/mine.yaml", EDIT):
        found.open(path)
        page.wait_for_timeout(700)
    page.wait_for_selector(".problem:has-text('is not imported')")
    assert not imported.exists()
    page.click("button:text-is('Allow them in this workspace')")
    page.wait_for_selector("text=No problems")
    assert imported.exists()
    found.context.close()
    assert found.faults == []
