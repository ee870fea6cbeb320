"""Tiny GGUF models with random weights: one for each head dimension and each kind of attention.

`draw` makes the weights, `attention` the attention kinds, `catalogue` lists the models, `write` writes them as GGUF.
`python -m zoo DIR` (with tests/ on the path) writes all of them. The same source gives the same bytes.
"""
