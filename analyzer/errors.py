"""Errors of the analyzer, beside `parsers.errors.InputError`."""


class InconclusiveError(Exception):
    """The input was read but is not enough for an answer; exit code 3.

    Args:
        message: why, in one line.
    """
