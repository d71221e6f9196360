"""Pure functions on MLX arrays. Nothing here keeps state or knows a cache, a model or a file."""
