// The editor: text, problems under the words, completion, descriptions, corrections.
import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap, type CompletionContext, type CompletionResult, startCompletion } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab, isolateHistory } from "@codemirror/commands";
import { yaml } from "@codemirror/lang-yaml";
import { HighlightStyle, StreamLanguage, bracketMatching, indentOnInput, syntaxHighlighting } from "@codemirror/language";
import { toml } from "@codemirror/legacy-modes/mode/toml";
import { type Diagnostic, forEachDiagnostic, lintGutter, lintKeymap, setDiagnostics } from "@codemirror/lint";
import { highlightSelectionMatches, searchKeymap } from "@codemirror/search";
import { Annotation, Compartment, EditorState, type Extension, StateEffect, StateField } from "@codemirror/state";
import { Decoration, type DecorationSet, EditorView, WidgetType, drawSelection, highlightActiveLine, highlightActiveLineGutter, hoverTooltip, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { nonce, post } from "./api";

export interface Action { title: string; preferred: boolean; from: number; to: number; text: string }
export interface Problem {
  label: string; code: string; severity: "error" | "warning"; message: string; help: string | null; path: string;
  file: string | null; line: number | null; col: number | null; from: number | null; to: number | null;
  included?: [number, number] | null; is_override?: boolean; actions: Action[]; related: { file: string | null; line: number | null; message: string }[];
}
export interface EditorEvents {
  change: (text: string) => void;
  save: () => void;
  launch: () => void;
  open: (path: string, line: number) => void;
  tabMode: (indents: boolean) => void;
}

/** What stands at the end of a line without being part of the text. */
export interface Note { line: number; text: string }

class NoteWidget extends WidgetType {
  constructor(readonly text: string) { super(); }
  override eq(other: NoteWidget) { return other.text === this.text; }
  toDOM() {
    const node = document.createElement("span");
    node.className = "line-note";
    node.textContent = this.text;
    return node;
  }
}
const setNotes = StateEffect.define<DecorationSet>();
const notesField = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update: (notes, change) => change.effects.find((one) => one.is(setNotes))?.value ?? notes.map(change.changes),
  provide: (field) => EditorView.decorations.from(field),
});

const isLoading = Annotation.define<boolean>();
const colors = HighlightStyle.define([
  { tag: [tags.propertyName, tags.definition(tags.propertyName), tags.atom], class: "tok-key" },
  { tag: [tags.string, tags.special(tags.string)], class: "tok-text" },
  { tag: [tags.number, tags.bool, tags.null, tags.keyword], class: "tok-number" },
  { tag: [tags.comment, tags.meta], class: "tok-comment" },
]);

export class RecipeEditor {
  readonly view: EditorView;
  private readonly editable = new Compartment();
  private readonly language = new Compartment();
  private readonly tabs = new Compartment();
  private indents = false;
  path = "";

  constructor(parent: HTMLElement, private readonly events: EditorEvents) {
    this.view = new EditorView({ parent, state: this.createState("", "", false) });
  }

  private createState(path: string, text: string, isWritable: boolean): EditorState {
    return EditorState.create({
      doc: text,
      extensions: [
        EditorView.cspNonce.of(nonce), notesField, lineNumbers(), lintGutter(), history(), drawSelection(), indentOnInput(), bracketMatching(), closeBrackets(),
        highlightActiveLine(), highlightActiveLineGutter(), highlightSelectionMatches(), syntaxHighlighting(colors),
        EditorState.tabSize.of(2), EditorView.contentAttributes.of({ "aria-label": `text of ${path}`, spellcheck: "false", tabindex: "0" }),
        autocompletion({ override: [(context) => this.complete(context)], icons: false }),
        hoverTooltip((_, at) => this.describe(at), { hoverTime: 250 }),
        this.editable.of(isWritable ? [] : [EditorState.readOnly.of(true)]),
        this.language.of(path.endsWith(".toml") ? StreamLanguage.define(toml) : yaml()),
        this.tabs.of(this.indents ? keymap.of([indentWithTab]) : []),
        keymap.of(this.keys()),
        EditorView.updateListener.of((update) => {
          if (update.docChanged && !update.transactions.some((one) => one.annotation(isLoading))) this.events.change(update.state.doc.toString());
        }),
        EditorView.domEventHandlers({ mousedown: (event, view) => {
          if (!(event.metaKey || event.ctrlKey)) return false;
          const at = view.posAtCoords({ x: event.clientX, y: event.clientY });
          if (at !== null) void this.define(at);
          return at !== null;
        } }),
      ] as Extension[],
    });
  }

  private keys() {
    const run = (action: () => void) => () => { action(); return true; };
    return [
      { key: "Mod-s", run: run(() => this.events.save()) },
      { key: "Mod-Enter", run: run(() => this.events.launch()) },
      { key: "F12", run: run(() => void this.define(this.view.state.selection.main.head)) },
      { key: "Mod-.", run: () => this.applyFixAtCursor() },
      { key: "Ctrl-m", run: run(() => this.toggleTab()) },
      ...closeBracketsKeymap, ...lintKeymap, ...completionKeymap, ...searchKeymap, ...historyKeymap, ...defaultKeymap,
    ];
  }

  /** Show another file; its undo history begins anew. */
  show(path: string, text: string, isWritable: boolean, kept?: EditorState): void {
    this.path = path;
    this.view.setState(kept ?? this.createState(path, text, isWritable));
  }

  /** Replace the text by what is on disk, as one step of the history. */
  replace(text: string): void {
    this.view.dispatch({ changes: { from: 0, to: this.view.state.doc.length, insert: text }, annotations: [isolateHistory.of("full")] });
  }

  setProblems(problems: Problem[]): void {
    const length = this.view.state.doc.length;
    const found = problems.flatMap((problem): Diagnostic[] => {
      if (problem.is_override) return [];
      const [from, to] = problem.from !== null ? [problem.from, problem.to!] : problem.included ?? [0, 0];
      if (from > length) return [];
      const end = Math.min(Math.max(to, from), length);
      return [{
        from, to: end === from ? Math.min(from + 1, length) : end, severity: problem.severity, source: problem.label,
        message: problem.from === null && problem.file && problem.included ? `${problem.file}:${problem.line}: ${problem.message}` : problem.message + (problem.help ? `\n${problem.help}` : ""),
        markClass: problem.code === "deprecated" ? "is-deprecated" : problem.code === "no-effect" ? "is-unused" : undefined,
        actions: problem.actions.map((action) => ({ name: action.title, apply: () => this.apply(action) })),
      }];
    });
    this.view.dispatch(setDiagnostics(this.view.state, found.sort((a, b) => a.from - b.from)));
  }

  setNotes(notes: Note[]): void {
    const { doc } = this.view.state;
    const found = notes.filter((one) => one.line <= doc.lines).sort((a, b) => a.line - b.line)
      .map((one) => Decoration.widget({ widget: new NoteWidget(one.text), side: 1 }).range(doc.line(one.line).to));
    this.view.dispatch({ effects: setNotes.of(Decoration.set(found)) });
  }

  apply(action: Action): void {
    this.view.dispatch({ changes: { from: action.from, to: action.to, insert: action.text }, annotations: [isolateHistory.of("full")] });
    this.view.focus();
  }

  private applyFixAtCursor(): boolean {
    const line = this.view.state.doc.lineAt(this.view.state.selection.main.head);
    let done = false;
    forEachDiagnostic(this.view.state, (found, from) => {
      const action = found.actions?.[0];
      if (done || !action || from < line.from || from > line.to) return;
      action.apply(this.view, found.from, found.to);
      done = true;
    });
    return done;
  }

  goTo(from: number, to = from): void {
    const length = this.view.state.doc.length;
    const anchor = Math.min(from, length);
    this.view.dispatch({ selection: { anchor, head: Math.min(to, length) }, effects: EditorView.scrollIntoView(anchor, { y: "center" }) });
    this.view.focus();
  }

  goToLine(line: number): void {
    const found = this.view.state.doc.line(Math.min(Math.max(line, 1), this.view.state.doc.lines));
    this.goTo(found.from);
  }

  private toggleTab(): void {
    this.indents = !this.indents;
    this.view.dispatch({ effects: this.tabs.reconfigure(this.indents ? keymap.of([indentWithTab]) : []) });
    this.events.tabMode(this.indents);
  }

  private request(offset: number) {
    return { path: this.path, text: this.view.state.doc.toString(), offset };
  }

  private async complete(context: CompletionContext): Promise<CompletionResult | null> {
    if (!context.explicit && !context.matchBefore(/[\w./:$-]+$/)) return null;
    const found = await post("/complete", this.request(context.pos)).catch(() => null);
    if (!found?.options.length) return null;
    return {
      from: found.from,
      validFor: /^[\w./:-]*$/,
      options: found.options.map((one: any, at: number) => ({
        label: one.label, detail: one.detail, type: one.kind, boost: -at / 100,
        info: one.info ? () => { const node = document.createElement("p"); node.textContent = one.info; return node; } : undefined,
        apply: (view: EditorView, _: unknown, from: number, to: number) => {
          view.dispatch({ changes: { from, to, insert: one.apply }, selection: { anchor: from + one.apply.length } });
          if (one.apply.endsWith(": ")) startCompletion(view);
        },
      })),
    };
  }

  private async describe(at: number) {
    const found = await post("/hover", this.request(at)).catch(() => null);
    if (!found) return null;
    return {
      pos: found.from, end: found.to, above: true,
      create: () => {
        const dom = document.createElement("div");
        dom.className = "hover";
        const add = (name: string, text: string, parent: HTMLElement = dom) => {
          const node = parent.appendChild(document.createElement(name));
          node.textContent = text;
          return node;
        };
        add("strong", found.title);
        if (found.body) add("p", found.body);
        const list = dom.appendChild(document.createElement("dl"));
        for (const [name, text] of found.facts) { add("dt", name, list); add("dd", text, list); }
        return { dom };
      },
    };
  }

  private async define(at: number): Promise<void> {
    const found = await post("/definition", this.request(at)).catch(() => null);
    if (found) this.events.open(found.path, found.line);
  }
}

/** Two texts side by side: on disk, and in the editor. */
export async function showDifference(parent: HTMLElement, left: string, right: string): Promise<() => void> {
  const { MergeView } = await import("@codemirror/merge");
  const extensions = [EditorView.cspNonce.of(nonce), lineNumbers(), EditorState.readOnly.of(true), yaml(), syntaxHighlighting(colors)];
  const view = new MergeView({ parent, a: { doc: left, extensions }, b: { doc: right, extensions }, collapseUnchanged: { margin: 3 } });
  return () => view.destroy();
}
