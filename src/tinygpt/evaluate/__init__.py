"""What a cache costs and saves: measured through the same cached path that `sample` runs."""
