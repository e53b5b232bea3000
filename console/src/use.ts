// What pages have in common.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { Refusal, get } from "./api";

const AGAIN_MS = 10_000;

export interface Asked<T> {
  data: T | undefined;
  error: Refusal | undefined;
  /** Asks again, now. */
  again: () => Promise<void>;
}

/** What a path of the API has, asked for again every ten seconds while the page is seen. */
export function useApi<T>(path: string | undefined, everyMs = AGAIN_MS): Asked<T> {
  const [data, setData] = useState<{ path: string; data: T }>();
  const [error, setError] = useState<Refusal>();
  const asked = useRef(0);
  const again = useCallback(async () => {
    if (path === undefined) return;
    const number = ++asked.current;
    try {
      const found = await get<T>(path);
      // An answer that a later one overtook is old.
      if (number !== asked.current) return;
      setData({ path, data: found });
      setError(undefined);
    } catch (failure) {
      const refusal = asRefusal(failure);
      // That the server does not answer, the whole page says once; what was shown stays.
      if (number === asked.current && refusal.kind !== "unreachable") setError(refusal);
    }
  }, [path]);
  useEffect(() => {
    void again();
    const timer = setInterval(() => {
      if (!document.hidden) void again();
    }, everyMs);
    return () => {
      asked.current++;
      clearInterval(timer);
    };
  }, [again, everyMs]);
  return { data: data && data.path === path ? data.data : undefined, error, again };
}

/** What was there last, as long as there is nothing: a list stays until the next one comes. */
export function useLast<T>(value: T | undefined): T | undefined {
  const last = useRef<T | undefined>(undefined);
  if (value !== undefined) last.current = value;
  return value ?? last.current;
}

export function asRefusal(failure: unknown): Refusal {
  return failure instanceof Refusal ? failure : new Refusal("internal", String(failure));
}
