"""Runs small real training jobs with a known parallel layout and keeps their traces.

Needs PyTorch (``pip install 'commlens[capture]'``) and, for traces with process-group metadata, a C++ compiler.
Nothing in the product imports this package: it is how the files in ``sample_traces/`` were made.
"""
