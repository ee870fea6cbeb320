"""The laboratory: the quantisers of the field in NumPy, behind one interface, to be measured on the same rows.

Start at `method.py` (the interface) and `registry.py` (every method by name). Nothing here is fast; it is to be read
beside the papers, and it is the oracle of the kernels.
"""
