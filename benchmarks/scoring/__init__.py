"""Right, null or wrong: inferred layouts held against known ones, and against what a reader might guess."""
