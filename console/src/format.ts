// Numbers and times for people.
const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

function three(value: number): string {
  if (value >= 100) return value.toFixed(0);
  if (value >= 10) return value.toFixed(1).replace(/\.0$/, "");
  return value.toFixed(2).replace(/\.?0+$/, "");
}

export function bytes(value: number): string {
  let unit = 0;
  while (value >= 1023.5 && unit < BINARY.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value.toFixed(0) : three(value)} ${BINARY[unit]}`;
}

export const bytesPerSecond = (value: number): string => `${bytes(value)}/s`;

export function count(value: number): string {
  if (value < 10_000) return value < 100 && value % 1 !== 0 ? three(value) : value.toFixed(0);
  if (value < 1e6) return `${three(value / 1e3)} k`;
  if (value < 1e9) return `${three(value / 1e6)} M`;
  return `${three(value / 1e9)} G`;
}

/** A place in a list, to the last digit. */
export const exactly = (value: number): string => value.toLocaleString("en");

export const perSecond = (value: number): string => `${count(value)}/s`;

export function microseconds(value: number): string {
  if (value < 1000) return `${three(value)} µs`;
  if (value < 1e6) return `${three(value / 1000)} ms`;
  return `${three(value / 1e6)} s`;
}

export const percent = (value: number): string => `${three(value)} %`;

/** `1 disk`, `2 disks`. */
export const counted = (value: number, noun: string, nouns = `${noun}s`): string => `${count(value)} ${value === 1 ? noun : nouns}`;

/** How long, in its two largest units. */
export function duration(seconds: number): string {
  const units: [string, number][] = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const parts: string[] = [];
  let rest = Math.max(0, Math.round(seconds));
  for (const [unit, length] of units) {
    if (rest >= length || (unit === "s" && parts.length === 0)) {
      parts.push(`${Math.floor(rest / length)} ${unit}`);
      rest %= length;
    } else if (parts.length > 0) break;
    if (parts.length === 2) break;
  }
  return parts.join(" ");
}

const DATE = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

export const date = (seconds: number): string => DATE.format(new Date(seconds * 1000));

/** Reads a size such as `500 GiB`, `1.5TiB`; undefined if it is none. */
export function parseSize(text: string): number | undefined {
  const match = /^\s*(\d+(?:\.\d+)?)\s*([KMGTPE]i?B?|B)?\s*$/i.exec(text);
  if (!match) return undefined;
  const power = match[2] ? "BKMGTPE".indexOf(match[2][0]!.toUpperCase()) : 0;
  const base = /i/i.test(match[2] ?? "") ? 1024 : 1000;
  const value = Number(match[1]) * base ** power;
  return Number.isSafeInteger(Math.round(value)) ? Math.round(value) : undefined;
}

/** The same for a rate, which may end in `/s`. */
export const parseRate = (text: string): number | undefined => parseSize(text.replace(/\/s\s*$/, ""));

/** A size as commands take it, to the byte. */
export function exactSize(value: number): string {
  let unit = 0;
  while (value > 0 && value % 1024 === 0 && unit < BINARY.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return unit === 0 ? String(value) : `${value}${BINARY[unit]}`;
}
