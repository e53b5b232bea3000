"""End-to-end tests: the real program, libnfs and our own client."""
