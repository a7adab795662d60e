"""The layout from kernel names, streams and times alone: no sizes, no groups, no peers."""
