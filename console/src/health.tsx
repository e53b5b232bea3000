// The pool's health in a line, and what to do about it.
import type { Health } from "./types";
import type { Tone } from "./ui";

export const HEALTH: Record<Health, [word: string, tone: Tone]> = {
  healthy: ["Healthy", "good"],
  no_redundancy: ["No redundancy", "warn"],
  degraded: ["Degraded", "bad"],
  failed: ["Failed", "bad"],
};

export const WHAT_TO_DO: Record<Health, string> = {
  healthy: "Nothing needs to be done.",
  no_redundancy: "Add disks on the Pool page: data that is written from then on survives the loss of one.",
  degraded: "Look at the Pool page: replace what is lost, or wait until the rebuild is done.",
  failed: "Look at the Pool and Volumes pages, and at the server's log: something cannot be served.",
};
