"""Neovim's own client of language servers, with `titanrun lsp`."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.editors
SCRIPT = """
local function wait(check) vim.wait(60000, check, 50) end
vim.cmd('edit {file}')
local id = vim.lsp.start_client({{cmd = {{'{python}', '-m', 'titanrun', 'lsp'}}}})
wait(function()
  local client = vim.lsp.get_client_by_id(id)
  return client ~= nil and client.initialized
end)
vim.lsp.buf_attach_client(0, id)
wait(function() return #vim.diagnostic.get(0) > 0 end)
local before = vim.diagnostic.get(0)
local function ask(method, line, character, more)
  local params = {{textDocument = vim.lsp.util.make_text_document_params(),
                   position = {{line = line, character = character}}}}
  local asked = vim.tbl_extend('force', params, more or {{}})
  local answers = vim.lsp.buf_request_sync(0, method, asked, 60000)
  return answers[id].result
end
local hover = ask('textDocument/hover', 3, 4)
local items = ask('textDocument/completion', 4, 12)
local where = {{start = {{line = 2, character = 0}}, ['end'] = {{line = 2, character = 9}}}}
local actions = ask('textDocument/codeAction', 2, 0,
                    {{range = where, context = {{diagnostics = {{}}}}}})
vim.lsp.util.apply_workspace_edit(actions[1].edit, 'utf-16')
wait(function() return #vim.diagnostic.get(0) == 0 end)
local result = {{before = before, after = vim.diagnostic.get(0), hover = hover.contents.value,
                 items = items.items, text = vim.api.nvim_buf_get_lines(0, 0, -1, false)}}
vim.fn.writefile({{vim.fn.json_encode(result)}}, '{out}')
vim.cmd('qall!')
"""
RECIPE = """version: 1
extends: shipped:llama3_debug.yaml
debug: {seed: "7"}
training: {steps: 20}
optimizer: {name: adamw}
"""


def test_neovim_shows_completes_and_corrects(tmp_path: Path) -> None:
    editor = shutil.which("nvim")
    if editor is None:
        pytest.skip("nvim is not installed")
    file, out, script = (tmp_path / name for name in ("mine.yaml", "out.json", "session.lua"))
    file.write_text(RECIPE)
    script.write_text(SCRIPT.format(file=file, python=sys.executable, out=out))
    subprocess.run(
        [editor, "--headless", "--clean", "-n", "-c", f"luafile {script}"],
        check=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    found: dict[str, Any] = json.loads(out.read_text())
    assert [(problem["lnum"], problem["col"]) for problem in found["before"]] == [(2, 14)]
    assert found["before"][0]["source"] == "titanrun"
    assert "training" in found["hover"]
    assert {"adamw", "lr"} & {item["label"] for item in found["items"]}
    assert found["text"][2] == "debug: {seed: 7}"
    assert found["after"] == []
