// What the server is like now.
//
// Owns: the stream of events and what takes its place, how long ago the server was heard of.
import { createContext } from "preact";
import type { ComponentChildren, JSX } from "preact";
import { useContext, useEffect, useRef, useState } from "preact/hooks";
import { API, get } from "./api";
import type { Live } from "./types";

// A stream that says nothing for so long is dead, whatever the browser believes.
const SILENCE_MS = 10_000;
const ASK_MS = 5_000;

export interface Heard {
  live: Live | undefined;
  /** Whether the server answers. */
  isConnected: boolean;
  /** It was started anew since the page was opened. */
  isRestarted: boolean;
  /** Of the events of the last minutes: what a number was, for the small charts. */
  number(name: string): number | undefined;
}

const LiveContext = createContext<Heard>({
  live: undefined,
  isConnected: true,
  isRestarted: false,
  number: () => undefined,
});

export const useLive = (): Heard => useContext(LiveContext);

export function LiveProvider({ children }: { children: ComponentChildren }): JSX.Element {
  const [live, setLive] = useState<Live>();
  const [isConnected, setConnected] = useState(true);
  const [isRestarted, setRestarted] = useState(false);
  const pid = useRef<number | undefined>(undefined);
  const version = useRef<string | undefined>(undefined);

  useEffect(() => {
    let stream: EventSource | undefined;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let isEnded = false;

    const take = (seen: Live) => {
      if (pid.current !== undefined && pid.current !== seen.pid) setRestarted(true);
      // Another version has another console.
      if (version.current !== undefined && version.current !== seen.version) location.reload();
      pid.current = seen.pid;
      version.current = seen.version;
      setLive(seen);
      setConnected(true);
    };
    const close = () => {
      stream?.close();
      stream = undefined;
      clearTimeout(timer);
    };
    // Where there is no stream to be had, the page asks.
    const ask = async () => {
      try {
        const seen = await get<Live>("/live");
        if (!isEnded) take(seen);
      } catch {
        if (!isEnded) setConnected(false);
      }
      if (!isEnded && !document.hidden) timer = setTimeout(open, ASK_MS);
    };
    const failed = () => {
      close();
      if (!isEnded) void ask();
    };
    const listen = () => {
      clearTimeout(timer);
      timer = setTimeout(failed, SILENCE_MS);
    };
    // Browsers have few connections to one server: a page that nobody sees keeps none.
    const open = () => {
      close();
      if (document.hidden || isEnded) return;
      stream = new EventSource(`${API}/live/events`);
      stream.addEventListener("live", (event) => {
        listen();
        take(JSON.parse((event as MessageEvent<string>).data) as Live);
      });
      stream.onerror = failed;
      listen();
    };
    open();
    document.addEventListener("visibilitychange", open);
    return () => {
      isEnded = true;
      close();
      document.removeEventListener("visibilitychange", open);
    };
  }, []);

  const number = (name: string) => live?.numbers.find((one) => one.name === name)?.value;
  return <LiveContext.Provider value={{ live, isConnected, isRestarted, number }}>{children}</LiveContext.Provider>;
}
