"""Parsers: bytes to tables. One file per format; a parser reports what a file says, never what it means."""
