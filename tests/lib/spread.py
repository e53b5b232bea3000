"""What tests need that look at how full disks are, and at data that moves to the emptier ones."""

import json

EVEN_PERMILLE = 50
DISK_MIB = 768
# A third of the room of a disk is enough for logs and metadata to be small beside it.
FILE_BYTES = 8 << 20
FILES = 36
SIZE_FLAGS = ("--disk-size-limit", f"{DISK_MIB}MiB")
SPREAD_SECONDS_MAX = 180


def shown(cairn):
    """`cairn disk spread`, by whatever runs commands."""
    return json.loads(cairn("disk", "spread", "--json").stdout)


def shards(cairn):
    """Shards by disk."""
    return {disk["id"]: disk["shards"] for disk in json.loads(cairn("disk", "list", "--json").stdout)["disks"]}


def is_even(cairn):
    spread = shown(cairn)
    gap = spread["most_permille"] - spread["least_permille"]
    return spread["stage"] == "even" and gap <= EVEN_PERMILLE
