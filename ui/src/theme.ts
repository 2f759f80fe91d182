// Light, dark, or as the system: kept for the next visit.
import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
const KEY = "titanrun-theme";
const stored = localStorage.getItem(KEY);
export const theme = signal<Theme>(stored === "light" || stored === "dark" ? stored : "system");
const system = matchMedia("(prefers-color-scheme: dark)");
const systemIsDark = signal(system.matches);
system.addEventListener("change", () => (systemIsDark.value = system.matches));

export const isDark = signal(false);
effect(() => {
  isDark.value = theme.value === "dark" || (theme.value === "system" && systemIsDark.value);
  if (theme.value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
  localStorage.setItem(KEY, theme.value);
});

export const getColor = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
