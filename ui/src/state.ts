// What every page knows about the server.
import { signal } from "@preact/signals";

export interface About {
  version: string;
  workspace: string;
  path: string;
  read_only: boolean;
  runs: string;
}
export const about = signal<About | null>(null);
export const numActive = signal(0);
export const numQueued = signal(0);
