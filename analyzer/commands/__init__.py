"""One thin module per command: options in, library calls, text out. Nothing heavy is imported before it runs."""
