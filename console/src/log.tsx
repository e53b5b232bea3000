// Logs that come page by page: events, and the audit log.
//
// Owns: which pages are asked for, how all of them are saved. Must not know: what is in an entry.
import { useState } from "preact/hooks";
import type { Refusal } from "./api";
import { get } from "./api";
import { counted } from "./format";
import { useSay } from "./ui";
import { asRefusal, useApi } from "./use";

const EXPORT_LIMIT = 1000;

export const SPANS: [value: string, text: string][] = [
  ["", "All entries"],
  ["1h", "The last hour"],
  ["1d", "The last day"],
  ["7d", "The last week"],
  ["30d", "The last 30 days"],
];
const SECONDS: Record<string, number> = { "1h": 3600, "1d": 86_400, "7d": 604_800, "30d": 2_592_000 };

/** The `from` of a span, relative to now; empty for all. */
export const secondsAgo = (span: string): string => (span in SECONDS ? `-${SECONDS[span]}` : "");

/** A path with the values that are not empty. */
export function logPath(path: string, values: Record<string, string>): string {
  // Spaces as %20: the API takes no plus for one.
  const query = Object.entries(values).filter(([, value]) => value).map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join("&");
  return `${path}${query && `?${query}`}`;
}

interface Entry {
  id: number;
  /** In a cluster ids are of one node alone. */
  node?: string | null;
  nodes?: string[];
}

export const entryKey = (entry: Entry): string => `${entry.id} ${entry.node ?? entry.nodes?.[0] ?? ""}`;
interface EntryPage<E> {
  entries: E[];
  next_before?: number | null;
}

export interface Log<E, P> {
  /** The first page; undefined until it is there. */
  page: P | undefined;
  rows: E[];
  error: Refusal | undefined;
  isBusy: boolean;
  /** Undefined when all are shown. */
  showOlder: (() => Promise<void>) | undefined;
  save: (name: string, noun: string, text: (all: E[]) => string) => Promise<void>;
}

/** A log with a filter, which has this address. `path` is that of the API, with these values besides. */
export function useLog<E extends Entry, P extends EntryPage<E>>(address: string, path: (more?: Record<string, string>) => string): Log<E, P> {
  const newest = useApi<P>(path());
  const [older, setOlder] = useState<{ address: string; entries: E[]; next: number | null }>();
  const [error, setError] = useState<Refusal>();
  const [isBusy, setBusy] = useState(false);
  const say = useSay();
  // The first page comes anew every ten seconds; entries between it and the older ones move there with it.
  const extra = older?.address === address ? older : undefined;
  const first = newest.data?.entries ?? [];
  const seen = new Set(first.map(entryKey));
  const rows = [...first, ...(extra?.entries ?? []).filter((entry) => !seen.has(entryKey(entry)))];
  const next = extra ? extra.next : (newest.data?.next_before ?? null);

  const busily = async (work: () => Promise<void>) => {
    setBusy(true);
    try {
      await work();
      setError(undefined);
    } catch (failure) {
      setError(asRefusal(failure));
    }
    setBusy(false);
  };
  const showOlder = () => busily(async () => {
    const page = await get<P>(path({ before: String(next) }));
    // Those of the first page as it is now: it moves on.
    setOlder({ address, entries: [...rows, ...page.entries], next: page.next_before ?? null });
  });
  const save = (name: string, noun: string, text: (all: E[]) => string) => busily(async () => {
    const all: E[] = [];
    let before: number | null | undefined;
    do {
      const page: P = await get<P>(path({ limit: String(EXPORT_LIMIT), ...(before ? { before: String(before) } : {}) }));
      all.push(...page.entries);
      before = page.next_before;
    } while (before);
    download(name, text(all));
    say(`${counted(all.length, noun)} ${all.length === 1 ? "is" : "are"} saved.`);
  });
  return { page: newest.data, rows, error: error ?? newest.error, isBusy, showOlder: next === null ? undefined : showOlder, save };
}

/** A text, a number, a time, or a word that is none of somebody's own. */
type Cell = string | number | Date | { bare: string };

/** Control characters, and those that separate lines or change directions, written out: as the command line does. */
export function onOneLine(text: string): string {
  const notPlain = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g;
  const short: Record<string, string> = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };
  return text.replace(notPlain, (letter) => short[letter] ?? `\\u{${letter.charCodeAt(0).toString(16)}}`);
}

/** Rows as CSV (RFC 4180): texts are quoted, and times are in UTC. */
export function asCsv(names: string[], rows: Cell[][]): string {
  // What a spreadsheet would take for a formula gets a mark: as the command line does.
  const isFormula = (text: string) => /^(\s|\\[nrt]|\\u\{[0-9a-f]+\})*[=+\-@\uff1d\uff0b\uff0d\uff20]/.test(text);
  const quoted = (text: string) => {
    const line = onOneLine(text);
    return `"${isFormula(line) ? "'" : ""}${line.replaceAll('"', '""')}"`;
  };
  const cell = (value: Cell) => {
    if (value instanceof Date) return value.toISOString().replace(".000Z", "Z");
    if (typeof value === "object") return value.bare;
    return typeof value === "number" ? String(value) : quoted(value);
  };
  return [names.join(","), ...rows.map((row) => row.map(cell).join(",")), ""].join("\r\n");
}

export function download(name: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text]));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  // The browser has begun to read it by then.
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
