"""Recovery, reads without disks, rebuild and scrub."""
