"""`tinygpt eval`: what a cache costs in quality and saves in bytes."""
