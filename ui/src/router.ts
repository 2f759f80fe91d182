// The address holds the state of a page, so that a reload or a link shows the same.
import { signal } from "@preact/signals";

export interface Place {
  path: string;
  query: Record<string, string>;
}

const read = (): Place => ({
  path: location.pathname,
  query: Object.fromEntries(new URLSearchParams(location.search)),
});

export const place = signal<Place>(read());

export function toUrl(path: string, query: Record<string, string | undefined> = {}): string {
  const found = Object.entries(query).filter((pair): pair is [string, string] => !!pair[1]);
  const text = new URLSearchParams(found).toString();
  return text ? `${path}?${text}` : path;
}

export function go(path: string, query: Record<string, string | undefined> = {}, replace = false): void {
  const isOther = path !== place.value.path;
  history[replace ? "replaceState" : "pushState"](null, "", toUrl(path, query));
  place.value = read();
  if (isOther) {
    scrollTo(0, 0);
    requestAnimationFrame(() => document.querySelector<HTMLElement>("h1")?.focus());
  }
}

/** Change some of the query, without a step in the history. */
export const setQuery = (changes: Record<string, string | undefined>) =>
  go(place.value.path, { ...place.value.query, ...changes }, true);

export function startRouter(): void {
  place.value = read();
  addEventListener("popstate", () => (place.value = read()));
  document.addEventListener("click", (event) => {
    const link = (event.target as Element).closest?.("a");
    if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
    const url = new URL(link.href);
    if (url.origin !== location.origin || link.target || link.hash || url.pathname.startsWith("/static")) return;
    event.preventDefault();
    go(url.pathname, Object.fromEntries(url.searchParams));
  });
}
