"""The suites of `cairn bench` on Cairn and its peers."""
