"""Long generations with a KV cache that is quantised and bounded at once."""

__version__ = "0.1.0"
