// Requests to the server. Both secrets are needed: the cookie, and the one of this page.
import { signal } from "@preact/signals";

const KEY = "titanrun-secret";
const getMeta = (name: string) =>
  document.querySelector<HTMLMetaElement>(`meta[name="titanrun-${name}"]`)?.content ?? "";

export const nonce = getMeta("nonce");
/** Whether the server does not know this page (any more). */
export const isLost = signal(false);
/** Whether the server cannot be reached. */
export const isOffline = signal(false);

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly help: string | null,
    readonly data: any,
  ) {
    super(message);
  }
}

export function openSession(): void {
  const secret = getMeta("secret");
  const url = new URL(location.href);
  if (url.searchParams.has("token")) {
    url.searchParams.delete("token");
    history.replaceState(null, "", url);
  }
  if (secret) localStorage.setItem(KEY, secret);
  document.querySelector('meta[name="titanrun-secret"]')?.remove();
  isLost.value = localStorage.getItem(KEY) === null;
}

export const getHeaders = (): Record<string, string> => ({ "X-Titanrun": localStorage.getItem(KEY) ?? "" });

export async function send<T = any>(
  method: string,
  path: string,
  body?: unknown,
  options: { headers?: Record<string, string>; signal?: AbortSignal } = {},
): Promise<T> {
  let response: Response;
  try {
    response = await fetch(`/api${path}`, {
      method,
      headers: {
        ...getHeaders(),
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
        ...options.headers,
      },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: options.signal,
    });
  } catch (error) {
    if ((error as Error).name !== "AbortError") isOffline.value = true;
    throw error;
  }
  isOffline.value = false;
  if (response.ok) return response.json();
  const data = await response.json().catch(() => ({}));
  const { code = "", message = response.statusText, help = null } = data.error ?? {};
  if (response.status === 403 && code === "session") {
    localStorage.removeItem(KEY);
    isLost.value = true;
  }
  throw new ApiError(response.status, code, message, help, data);
}

export const get = <T = any>(path: string, query: Record<string, string | number | undefined> = {}, signal?: AbortSignal) => {
  const found = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const text = new URLSearchParams(found.map(([name, value]) => [name, String(value)])).toString();
  return send<T>("GET", text ? `${path}?${text}` : path, undefined, { signal });
};
export const remove = <T = any>(path: string) => send<T>("DELETE", path);
/** The path of a part of a run, whose id may hold slashes. */
export const toRun = (id: string, part = "") => `/runs/${encodeURIComponent(id)}${part}`;
export const post = <T = any>(path: string, body: unknown, signal?: AbortSignal) => send<T>("POST", path, body, { signal });

export function toMessage(error: unknown): string {
  if (error instanceof ApiError) return error.help ? `${error.message} (${error.help})` : error.message;
  return "the server does not answer";
}
