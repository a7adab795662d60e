"""Five kinds of parallelism, each in its smallest form, on four CPU processes.

The experiments are those of the article on which the ledger rests: what one process computes alone, four compute
together, and the two results are compared. Each can be traced, so that one sees in the analyzer what one has just read.
"""
