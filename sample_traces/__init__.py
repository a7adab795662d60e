"""Small captures of real jobs with their true layout beside them, and the programs that made them."""
