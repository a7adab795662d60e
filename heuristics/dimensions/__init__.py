"""Per dimension: the evidence for and against a process group playing that role."""
