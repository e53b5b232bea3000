"""Tests of what users install: the .deb, and the container image that is made from it."""
