"""The CI gate: what a run is, whether two runs can be compared, what changed, and whether that is a regression.

`record` holds one run as small numbers (a baseline is such a record in a file), `comparable` says whether two records
may be held against each other, `verdict` does it metric by metric, `attribution` divides the difference up.
"""
