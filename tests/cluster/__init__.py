"""Tests of clusters on this machine."""
