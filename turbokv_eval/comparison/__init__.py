"""The making of a comparison: what is asked for, the steps, what is kept of a run that was stopped."""
