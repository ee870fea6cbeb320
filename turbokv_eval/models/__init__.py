"""What a model's file and a pair of cache types say without a run: layers, heads, the bytes of the cache."""
