// Lists that may be long, a page at a time: every list of the API takes `name`, `after` and `limit`.
//
// Owns: which page is asked for. Must not know: what is listed.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { part } from "./api";
import { Field, Pages } from "./ui";
import type { Asked } from "./use";
import { useApi, useLast } from "./use";

// Of thousands, so many at a time.
const ROWS_OF_A_PAGE = 200;
// Whoever types is not asked for at each letter.
const TYPED_MS = 200;
// Fewer are seen at a glance.
const FILTERED_FROM = 9;

interface PageAnswer {
  total?: number | null;
  next_after?: string | null;
}

export interface Paged<T> extends Asked<T> {
  /** What the list is cut by now; empty if it is not. */
  filtered: string;
  /** The field to find some by their names; nothing for a short list. */
  filter: ComponentChildren;
  /** The ways to the other pages; nothing if there is one. */
  pages: (shown: number) => ComponentChildren;
}

/** A list of the API. `of` is what it has, in the plural. */
export function usePaged<T>(path: string | undefined, of: string, everyMs?: number): Paged<T> {
  const [typed, setTyped] = useState("");
  // The last names of the pages before the one that is shown.
  const [place, setPlace] = useState<{ name: string; before: string[] }>({ name: "", before: [] });
  useEffect(() => {
    const name = typed.trim();
    if (name === place.name) return;
    const timer = setTimeout(() => setPlace({ name, before: [] }), TYPED_MS);
    return () => clearTimeout(timer);
  }, [typed, place.name]);
  const after = place.before.at(-1);
  const query = [`limit=${ROWS_OF_A_PAGE}`, ...(place.name ? [`name=${part(place.name)}`] : []), ...(after === undefined ? [] : [`after=${part(after)}`])];
  const asked = useApi<T & PageAnswer>(path === undefined ? undefined : `${path}${path.includes("?") ? "&" : "?"}${query.join("&")}`, everyMs);
  const data = useLast(asked.data);
  const total = data?.total ?? 0;
  const next = asked.data?.next_after;
  const isFiltered = place.name !== "" || typed !== "";
  return {
    ...asked,
    data,
    filtered: place.name,
    filter: (isFiltered || total >= FILTERED_FROM) && <Field label={`Filter ${of} by name`} value={typed} onValue={setTyped} type="search" />,
    pages: (shown) => total > ROWS_OF_A_PAGE && (
      <Pages of={of} first={place.before.length * ROWS_OF_A_PAGE} shown={shown} total={total}
        onBefore={place.before.length > 0 ? () => setPlace({ name: place.name, before: place.before.slice(0, -1) }) : undefined}
        onNext={next == null ? undefined : () => setPlace({ name: place.name, before: [...place.before, next] })} />
    ),
  };
}
