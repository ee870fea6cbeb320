"""Lloyd-Max codebooks for one coordinate of a random unit vector: solve, verify, emit.

The format that uses them is docs/FORMAT.md, section 3.
"""

from codebook_gen.lloyd_max import Codebook, ConvergenceError, solve
from codebook_gen.verify import Report, verify

__all__ = ["Codebook", "ConvergenceError", "Report", "solve", "verify"]
