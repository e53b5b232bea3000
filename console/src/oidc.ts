// Log-in by an OpenID provider: there, and back.
//
// Owns: where the browser goes, what it comes back with, which page it comes back to. Must not know: how pages look.
import type { Refusal } from "./api";
import { call } from "./api";
import type { OidcBegun, OidcReturn, SessionOpen } from "./types";
import { asRefusal } from "./use";

// The page that the provider sends people back to: see docs/design/console.md.
const PAGE = "/console/login";
// Where somebody was before, for this tab alone.
const BEFORE = "cairn-before-login";

/** Goes to the provider. Does not come back unless that fails. */
export async function leave(): Promise<void> {
  const { address } = await call<OidcBegun>({ method: "POST", path: "/session/oidc/begin" });
  try {
    if (location.pathname !== PAGE) sessionStorage.setItem(BEFORE, location.pathname + location.search);
  } catch {
    // A browser that keeps nothing comes back to the overview.
  }
  location.assign(address);
}

export type Back = { session: SessionOpen; before: string } | { refusal: Refusal };

/** What came of a log-in, if the browser has just come back from one. */
export async function comeBack(): Promise<Back | undefined> {
  const query = new URLSearchParams(location.search);
  const state = query.get("state");
  if (location.pathname !== PAGE || state === null) return undefined;
  // The code is good for once: it is not for the history of the browser.
  history.replaceState(null, "", PAGE);
  const given = (name: "code" | "error" | "error_description") => {
    const value = query.get(name);
    return value === null ? {} : { [name]: value };
  };
  const body: OidcReturn = { state, ...given("code"), ...given("error"), ...given("error_description") };
  try {
    const session = await call<SessionOpen>({ method: "POST", path: "/session/oidc/finish", body });
    return { session, before: before() };
  } catch (failure) {
    return { refusal: asRefusal(failure) };
  }
}

/** The page that somebody left to log in; the overview if there was none. */
function before(): string {
  try {
    const kept = sessionStorage.getItem(BEFORE);
    sessionStorage.removeItem(BEFORE);
    if (kept?.startsWith("/console/")) return kept;
  } catch {
    // As above.
  }
  return "/console/";
}
