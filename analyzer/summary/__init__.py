"""One rank as a small summary: what the map step of a large job makes, and all that the rest of the analysis sees."""
