"""What other programs open: an annotated trace for Perfetto, tables, and both without names that identify anybody."""
