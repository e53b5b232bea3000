// The parts that pages are made of.
//
// Owns: how things look and are read out. Must not know: what they are about.
import type { ComponentChildren } from "preact";
import { createContext } from "preact";
import { useContext, useEffect, useId, useRef, useState } from "preact/hooks";
import type { Call } from "./api";
import { Refusal, asCurl, call } from "./api";
import { exactly } from "./format";
import { asRefusal } from "./use";

export type Tone = "good" | "warn" | "bad" | "calm";

export function Page({ title, actions, children }: { title: string; actions?: ComponentChildren; children: ComponentChildren }) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    document.title = `${title} · Cairn`;
    // Who goes on by keyboard, or hears the page, begins at its title.
    heading.current?.focus({ preventScroll: true });
  }, [title]);
  return (
    <main id="main">
      <header class="page-head">
        <h1 ref={heading} tabIndex={-1}>
          {title}
        </h1>
        {actions && <div class="actions">{actions}</div>}
      </header>
      {children}
    </main>
  );
}

export function Card({ title, extra, wide, children }: { title: string; extra?: ComponentChildren; wide?: boolean; children: ComponentChildren }) {
  const id = useId();
  return (
    <section class={wide ? "card wide" : "card"} aria-labelledby={id}>
      <div class="card-head">
        <h2 id={id}>{title}</h2>
        {extra}
      </div>
      {children}
    </section>
  );
}

export function Badge({ tone, children }: { tone: Tone; children: ComponentChildren }) {
  return <span class={`badge ${tone}`}>{children}</span>;
}

export function Notice({ tone, title, children }: { tone: Tone; title?: ComponentChildren; children?: ComponentChildren }) {
  return (
    <div class={`notice ${tone}`} role={tone === "bad" ? "alert" : "status"}>
      {title && <strong>{title}</strong>}
      {children && <div>{children}</div>}
    </div>
  );
}

/** A refusal in the words of the API, with what to try. */
export function Failure({ error }: { error: Refusal | undefined }) {
  if (!error) return null;
  return (
    <Notice tone="bad" title={error.message}>
      {error.hint}
    </Notice>
  );
}

export interface Column<T> {
  name: string;
  /** Numbers are aligned. */
  isNumber?: boolean;
  show: (row: T) => ComponentChildren;
}

// More rows make a page slow: they are shown when they are asked for.
const ROWS_SHOWN = 200;

export function Table<T>({ caption, columns, rows, rowKey, empty, first = ROWS_SHOWN }: {
  caption: string;
  columns: Column<T>[];
  rows: T[];
  rowKey: (row: T) => string;
  empty: ComponentChildren;
  /** How many are shown at first. */
  first?: number;
}) {
  const [shown, setShown] = useState(first);
  if (rows.length === 0) return <p class="empty">{empty}</p>;
  return (
    <>
      <div class="table-wrap" role="region" aria-label={`${caption}: table`} tabIndex={0}>
        <table>
          <caption class="unseen">{caption}</caption>
          <thead>
            <tr>
              {columns.map((column) => (
                <th key={column.name} scope="col" class={column.isNumber ? "number" : undefined}>
                  {column.name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.slice(0, shown).map((row) => (
              <tr key={rowKey(row)}>
                {columns.map((column, index) =>
                  index === 0 ? (
                    <th key={column.name} scope="row">
                      {column.show(row)}
                    </th>
                  ) : (
                    <td key={column.name} class={column.isNumber ? "number" : undefined} data-name={column.name}>
                      {column.show(row)}
                    </td>
                  ),
                )}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {rows.length > shown && (
        <p>
          <button type="button" onClick={() => setShown(shown + 5 * ROWS_SHOWN)}>
            Show more ({rows.length - shown} are not shown)
          </button>
        </p>
      )}
    </>
  );
}

/** Which part of a long list a table shows, and the ways to the parts beside it. It stays in sight while the table scrolls. */
export function Pages({ of, first, shown, total, onBefore, onNext }: {
  of: string;
  /** How many come before the part that is shown. */
  first: number;
  shown: number;
  total: number;
  /** Left out: there is none. */
  onBefore: (() => void) | undefined;
  onNext: (() => void) | undefined;
}) {
  const nav = useRef<HTMLElement>(null);
  const turn = (then: () => void) => () => {
    then();
    // The other part is read from its beginning; the focus stays, so that the next press of the key turns on.
    nav.current?.previousElementSibling?.scrollIntoView({ block: "start" });
  };
  return (
    <nav class="pages" aria-label={`Pages of ${of}`} ref={nav}>
      {/* Not disabled, which would take the focus from whoever came to an end. */}
      <button type="button" aria-disabled={!onBefore} onClick={onBefore && turn(onBefore)}>Previous</button>
      <span role="status">
        {shown === 0 ? "none" : `${exactly(first + 1)} to ${exactly(first + shown)}`} of {exactly(total)}
      </span>
      <button type="button" aria-disabled={!onNext} onClick={onNext && turn(onNext)}>Next</button>
    </nav>
  );
}

/** A part of a whole. */
export function Meter({ label, value, max, text }: { label: string; value: number; max: number; text: string }) {
  const share = max > 0 ? Math.min(1, value / max) : 0;
  const tone = share > 0.9 ? "bad" : share > 0.75 ? "warn" : "good";
  return (
    <div class="meter" role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={100}
      aria-valuenow={Math.round(100 * share)} aria-valuetext={text}>
      <span class={tone} style={{ width: `${100 * share}%` }} />
    </div>
  );
}

export function Progress({ label, value, max }: { label: string; value: number; max: number }) {
  return <progress aria-label={label} value={max > 0 ? value : 0} max={max > 0 ? max : 1} />;
}

/** Names and values. */
export function Facts({ facts }: { facts: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** A command to copy. */
export function Code({ text, label, isTitled }: { text: string; label: string; isTitled?: boolean }) {
  const [said, setSaid] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setSaid("Copied");
    } catch {
      // Only encrypted pages, and those of the machine itself, may use the clipboard.
      setSaid("Select and copy it");
    }
    setTimeout(() => setSaid(""), 2500);
  };
  const box = (
    <div class="code">
      <pre tabIndex={0} aria-label={label}>
        <code>{text}</code>
      </pre>
      <button type="button" class="quiet" onClick={copy} aria-label={`Copy: ${label}`}>
        {said || "Copy"}
      </button>
      <span class="unseen" role="status">
        {said}
      </span>
    </div>
  );
  if (!isTitled) return box;
  return (
    <div>
      <p class="code-title" aria-hidden="true">
        {label}
      </p>
      {box}
    </div>
  );
}

/** The same by the command line and by REST. */
export function Same({ command, request }: { command: string; request: Call }) {
  return (
    <details class="same">
      <summary>As a command or REST call</summary>
      <Code label="the command" text={command} />
      <Code label="the REST call" text={asCurl(request)} />
    </details>
  );
}

const Said = createContext<(text: string) => void>(() => {});
export const useSay = () => useContext(Said);

/** Where what was done is said, on the page and to who hears it. */
export function Sayings({ children }: { children: ComponentChildren }) {
  const [text, setText] = useState("");
  useEffect(() => {
    if (!text) return undefined;
    const timer = setTimeout(() => setText(""), 6000);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <Said.Provider value={setText}>
      {children}
      <div class="toast" role="status" aria-live="polite">
        {text && <span>{text}</span>}
      </div>
    </Said.Provider>
  );
}

/** A window on the page: the browser keeps the focus in it, and Escape closes it. */
export function Dialog({ title, onClose, children }: { title: string; onClose: () => void; children: ComponentChildren }) {
  const element = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const opener = document.activeElement;
    element.current?.showModal();
    // What is to be filled in comes first, not the button that closes.
    element.current?.querySelector<HTMLElement>(".field input, .field select")?.focus();
    return () => {
      if (opener instanceof HTMLElement) opener.focus();
    };
  }, []);
  return (
    <dialog ref={element} aria-labelledby={id} onClose={onClose} onCancel={onClose}>
      <div class="dialog-head">
        <h2 id={id}>{title}</h2>
        <button type="button" class="quiet" onClick={onClose} aria-label="Close">
          ✕
        </button>
      </div>
      {children}
    </dialog>
  );
}

/** A form for one call: it shows what it does, and the refusal if it is refused. */
export function ActionForm({ title, submit, look, request, shown, command, isDangerous, done, onClose, onDone, children }: {
  title: string;
  submit: string;
  /** What is asked for first and shown, to be confirmed; it changes nothing. Another path is another question. */
  look?: { path: string; shown: (answer: unknown) => ComponentChildren };
  request: Call;
  /** What is shown of the request, if it has a secret. */
  shown?: Call;
  command: string;
  isDangerous?: boolean;
  /** What is said when it is done. */
  done: string;
  onClose: () => void;
  onDone?: (answer: unknown) => void;
  children?: ComponentChildren;
}) {
  const [error, setError] = useState<Refusal>();
  const [isBusy, setBusy] = useState(false);
  const [looked, setLooked] = useState<{ path: string; answer: unknown }>();
  const say = useSay();
  const isToLook = look !== undefined && looked?.path !== look.path;
  const send = async (event: SubmitEvent) => {
    event.preventDefault();
    setBusy(true);
    setError(undefined);
    try {
      if (look && isToLook) {
        setLooked({ path: look.path, answer: await call<unknown>({ method: "GET", path: look.path }) });
        setBusy(false);
        return;
      }
      const answer = await call<unknown>(request);
      say(done);
      onClose();
      onDone?.(answer);
    } catch (failure) {
      setError(asRefusal(failure));
      setBusy(false);
    }
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <form onSubmit={send}>
        {children}
        {look && looked && !isToLook && <div role="status">{look.shown(looked.answer)}</div>}
        <Failure error={error} />
        <Same command={command} request={shown ?? request} />
        <div class="buttons">
          <button type="submit" class={isDangerous ? "danger" : "primary"} disabled={isBusy}>
            {isBusy ? "One moment…" : isToLook ? "Next" : submit}
          </button>
          <button type="button" onClick={onClose}>
            Cancel
          </button>
        </div>
      </form>
    </Dialog>
  );
}

interface InputProps {
  type?: "text" | "search" | "password";
  autocomplete?: "off" | "current-password" | "new-password";
  required?: boolean;
  placeholder?: string;
  pattern?: string;
  minLength?: number;
  maxLength?: number;
  inputMode?: "numeric" | "decimal";
}

export function Field({ label, hint, value, onValue, autocomplete = "off", ...rest }: {
  label: string;
  hint?: ComponentChildren;
  value: string;
  onValue: (value: string) => void;
} & InputProps) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <input {...(rest as object)} id={id} value={value} aria-describedby={hint ? `${id}-hint` : undefined}
        autocomplete={autocomplete} spellcheck={false}
        onInput={(event) => onValue(event.currentTarget.value)} />
      {hint && (
        <p class="hint" id={`${id}-hint`}>
          {hint}
        </p>
      )}
    </div>
  );
}

export function Choice({ label, hint, value, onValue, choices }: {
  label: string;
  hint?: ComponentChildren;
  value: string;
  onValue: (value: string) => void;
  choices: [value: string, text: string][];
}) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <select id={id} value={value} aria-describedby={hint ? `${id}-hint` : undefined}
        onChange={(event) => onValue(event.currentTarget.value)}>
        {choices.map(([name, text]) => (
          <option key={name} value={name} selected={name === value}>
            {text}
          </option>
        ))}
      </select>
      {hint && (
        <p class="hint" id={`${id}-hint`}>
          {hint}
        </p>
      )}
    </div>
  );
}

export function Check({ label, value, onValue }: { label: ComponentChildren; value: boolean; onValue: (value: boolean) => void }) {
  return (
    <label class="check">
      <input type="checkbox" checked={value} onChange={(event) => onValue(event.currentTarget.checked)} />
      <span>{label}</span>
    </label>
  );
}

export const Loading = () => <p class="empty" role="status">Loading…</p>;
