"""Models by name: the catalogue, the cache, and getting a model there."""
