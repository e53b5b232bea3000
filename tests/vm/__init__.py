"""Tests with the NFS client of a stock Linux kernel, in a VM."""
