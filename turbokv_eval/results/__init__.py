"""A comparison's document: its form and versions, the one view of it, and what follows from it alone."""
