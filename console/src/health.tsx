// The pool's health in a word.
import type { Health } from "./types";
import type { Tone } from "./ui";

export const HEALTH: Record<Health, [word: string, tone: Tone]> = {
  healthy: ["Healthy", "good"],
  no_redundancy: ["No redundancy", "warn"],
  degraded: ["Degraded", "bad"],
  failed: ["Failed", "bad"],
};

// Each warning says what to do next. This is said where there is none.
export const NOTHING_TO_DO = "Nothing needs to be done.";
