"""Assay: a service that tests embeddings before they are trusted."""

__version__ = "0.1.0"
