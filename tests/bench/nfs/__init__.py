"""Cairn beside NFS-Ganesha."""
