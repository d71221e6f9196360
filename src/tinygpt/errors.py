"""The errors a user can cause. Each message says what was given, what is allowed, how to fix it."""

from __future__ import annotations


class TinyGPTError(Exception):
    """Base of every error that tinygpt raises for something a user did."""


class ConfigError(TinyGPTError):
    """Options, or a model configuration, that are wrong or cannot be right together."""


class CheckpointError(TinyGPTError):
    """A model file or directory that is missing, damaged, or says things that are not true."""


class UnsupportedError(TinyGPTError):
    """A model or a file of a kind that this version does not read, refused by its name."""


class CacheError(TinyGPTError):
    """A KV cache used in a way that cannot give the right answer."""


class GenerationError(TinyGPTError):
    """A generation that failed while it ran, for instance on logits that are not finite."""
