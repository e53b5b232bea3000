// Calls of the REST API.
//
// Owns: how a call is made, what its failure is. Must not know: pages.
import type { ErrorBody } from "./types";

export const API = "/api/v1";
// No answer after so long is a failure: the page says so instead of waiting for ever.
const TIMEOUT_MS = 30_000;

export type Method = "GET" | "POST" | "PUT" | "PATCH" | "DELETE";

/** A call as it is made, and as it is shown to copy. */
export interface Call {
  method: Method;
  path: string;
  body?: unknown;
}

/** Why a call failed, in the API's words where it answered. */
export class Refusal extends Error {
  constructor(
    readonly kind: string,
    message: string,
    readonly hint?: string,
  ) {
    super(message);
  }
}

// Somebody uses the page if they typed, clicked or scrolled in the last minute. Then the session goes on: what the page asks by
// itself does not prolong it.
const USED_MS = 60_000;
let used = Number.NEGATIVE_INFINITY;
for (const event of ["pointerdown", "keydown", "wheel", "touchstart"]) {
  addEventListener(event, () => (used = performance.now()), { capture: true, passive: true });
}

let onLoggedOut: () => void = () => {};

/** Is called when the server says that there is no session any more. */
export function whenLoggedOut(then: () => void): void {
  onLoggedOut = then;
}

export async function call<T>({ method, path, body }: Call): Promise<T> {
  let response: Response;
  try {
    response = await fetch(API + path, {
      method,
      credentials: "same-origin",
      cache: "no-store",
      signal: AbortSignal.timeout(TIMEOUT_MS),
      headers: {
        // No other site can send it: see docs/design/console.md.
        "x-cairn-console": performance.now() - used < USED_MS ? "active" : "1",
        ...(body === undefined ? {} : { "content-type": "application/json" }),
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
  } catch {
    throw new Refusal("unreachable", "The server does not answer.", "It may be starting, or be out of reach.");
  }
  if (response.status === 204) return undefined as T;
  const text = await response.text();
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch {
    throw new Refusal("internal", `The server answered with ${response.status} and no JSON.`);
  }
  if (response.ok) return json as T;
  const error = (json as ErrorBody).error;
  if (response.status === 401 && !path.startsWith("/session")) onLoggedOut();
  throw new Refusal(error?.kind ?? "internal", error?.message ?? `status ${response.status}`, error?.hint ?? undefined);
}

export const get = <T>(path: string): Promise<T> => call<T>({ method: "GET", path });

/** A part of a path. */
export const part = encodeURIComponent;

/** The call for a shell, with the token from a file. */
export function asCurl({ method, path, body }: Call): string {
  const lines = [`curl -X ${method} '${location.origin}${API}${path}'`, `-H "Authorization: Bearer $(cat admin-token)"`];
  if (body !== undefined) lines.push(`-H 'Content-Type: application/json'`, `-d ${quoted(JSON.stringify(body))}`);
  return lines.join(" \\\n  ");
}

/** A word of a shell's command line. */
export function quoted(word: string): string {
  return /^[A-Za-z0-9_./:=@%+,-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/** A command line of `cairn`. */
export function cairn(...words: (string | false | undefined)[]): string {
  return ["cairn", ...words.filter((word): word is string => typeof word === "string").map(quoted)].join(" ");
}
