// Who is logged in.
import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { SessionOpen } from "./types";

export const SessionContext = createContext<SessionOpen>({ user: "token", by: "token", role: "admin", ends_seconds: 0, idle_ends_seconds: 0 });

export const useSession = (): SessionOpen => useContext(SessionContext);
