// The pool's health in a word.
import type { Health, Pool } from "./types";
import type { Tone } from "./ui";

export const HEALTH: Record<Health, [word: string, tone: Tone]> = {
  healthy: ["Healthy", "good"],
  no_redundancy: ["No redundancy", "warn"],
  degraded: ["Degraded", "bad"],
  failed: ["Failed", "bad"],
};

/** What may be lost now, after "any": disks, or the drives that several of them share; undefined: nothing. */
export function survived({ disk_failures_tolerated, devices, device_failures_tolerated }: Pool, disks: number): string | undefined {
  if (devices != null) {
    return device_failures_tolerated ? `${device_failures_tolerated} of the ${devices} devices that bear ${disks} folders` : undefined;
  }
  return disk_failures_tolerated === 0 ? undefined : `${disk_failures_tolerated} of the ${disks} disks`;
}

// Each warning says what to do next. This is said where there is none.
export const NOTHING_TO_DO = "Nothing needs to be done.";
