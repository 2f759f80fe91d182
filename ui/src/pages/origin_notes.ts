// Where values come from that a recipe does not write itself, beside the lines that they belong to.
import type { Note } from "../editor";
import { formatValue } from "../format";

interface Value { path: string; value: unknown; source?: string; file?: string; line?: number; shadowed?: string[] }

const MAX_SHOWN = 3;
const getName = (place: string) => place.split("/").at(-1)!;

/** Values of other files beside their section, or beside `extends`; and what a written line replaces. */
export function listOriginNotes(text: string, file: string, values: Value[]): Note[] {
  const lines = text.split("\n");
  const find = (word: string) => lines.findIndex((line) => line.replace(/^\[/, "").match(/^[\w-]+/)?.[0] === word) + 1;
  const parts = new Map<number, string[]>();
  const add = (line: number, part: string) => line > 0 && parts.set(line, [...(parts.get(line) ?? []), part]);
  for (const one of values) {
    if (!one.file || !one.line || one.source === "override") continue;
    if (one.file === file) {
      const [before] = one.shadowed ?? [];
      if (before) add(one.line, `instead of ${getName(before).replace(/:\d+$/, "")}`);
      continue;
    }
    const dot = one.path.indexOf(".");
    const section = dot < 0 ? 0 : find(one.path.slice(0, dot));
    const label = section ? one.path.slice(dot + 1) : one.path;
    add(section || find("extends"), `${label} ${formatValue(one.value)} from ${getName(one.file)}`);
  }
  return [...parts].map(([line, found]) => {
    const unique = [...new Set(found)];
    const rest = unique.length - MAX_SHOWN;
    return { line, text: unique.slice(0, MAX_SHOWN).join("; ") + (rest > 0 ? `; ${rest} more` : "") };
  });
}
