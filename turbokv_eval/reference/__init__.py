"""NumPy reference of the turbo cache types: the codec and the rotation, written from docs/FORMAT.md alone.

It mirrors that text step by step, to be read beside it, and shares no code with the C reference; JSON vectors pin both.
"""
