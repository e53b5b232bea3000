// Addresses of pages.
//
// Owns: the part of the address below /console, and what a click on a link does. Must not know: which pages there are.
import { createContext } from "preact";
import type { ComponentChildren, JSX } from "preact";
import { useContext, useEffect, useState } from "preact/hooks";

const ROOT = "/console";

interface Place {
  /** The parts of the path, decoded. */
  parts: string[];
  query: URLSearchParams;
}

function here(): Place {
  const parts = location.pathname.slice(ROOT.length).split("/").filter(Boolean);
  return { parts: parts.map(decoded), query: new URLSearchParams(location.search) };
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

const PlaceContext = createContext<Place>({ parts: [], query: new URLSearchParams() });

export const usePlace = (): Place => useContext(PlaceContext);

/** The address of a page by the parts of its path. */
export const to = (...parts: string[]): string => `${ROOT}/${parts.map(encodeURIComponent).join("/")}`;

/** Goes to another page. */
export function go(href: string, isReplaced = false): void {
  if (isReplaced) history.replaceState(null, "", href);
  else history.pushState(null, "", href);
  dispatchEvent(new PopStateEvent("popstate"));
}

export function Router({ children }: { children: ComponentChildren }): JSX.Element {
  const [place, setPlace] = useState(here);
  useEffect(() => {
    const moved = () => setPlace(here());
    const clicked = (event: MouseEvent) => {
      const link = event.target instanceof Element ? event.target.closest("a") : null;
      const isOurs = link && link.origin === location.origin && link.pathname.startsWith(`${ROOT}/`) && !link.target;
      // What opens another tab, or a menu, is the browser's.
      if (!isOurs || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
      event.preventDefault();
      if (link.href === location.href) return;
      go(link.href);
      scrollTo(0, 0);
    };
    addEventListener("popstate", moved);
    addEventListener("click", clicked);
    return () => {
      removeEventListener("popstate", moved);
      removeEventListener("click", clicked);
    };
  }, []);
  return <PlaceContext.Provider value={place}>{children}</PlaceContext.Provider>;
}
