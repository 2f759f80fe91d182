// Starts `titanrun lsp` for the recipes of the workspace.
const vscode = require("vscode");
const { LanguageClient, TransportKind } = require("vscode-languageclient/node");

let client;

function activate() {
  const settings = vscode.workspace.getConfiguration("titanrun");
  const [command, ...args] = settings.get("command");
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri.fsPath;
  client = new LanguageClient(
    "titanrun",
    "titanrun",
    { command, args, transport: TransportKind.stdio, options: { cwd: folder } },
    {
      documentSelector: ["yaml", "toml"].map((language) => ({ scheme: "file", language })),
      initializationOptions: {
        recipes: settings.get("recipes"),
        inlayHints: settings.get("inlayHints"),
      },
    },
  );
  return client.start();
}

function deactivate() {
  return client?.stop();
}

module.exports = { activate, deactivate };
