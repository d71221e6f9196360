"""Decoders. This package knows nothing of files, text or the command line."""
