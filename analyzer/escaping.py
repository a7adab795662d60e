"""What names from a trace must not do to whoever reads a result: one place for each kind of reader."""

from __future__ import annotations

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def printable(text: str) -> str:
    """For terminals and logs: no cursor is moved, nothing is coloured, no line is broken, no text runs backwards.

    Control characters, the C1 codes, separators of lines and the marks that turn the direction of text become U+FFFD.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else "�" for c in text)


def spreadsheet(text: str) -> str:
    """For a cell of a CSV file: a spreadsheet takes it for text, never for a formula.

    The rule is OWASP's ("CSV injection"): what begins with one of ``= + - @``, a tab or a line end gets an apostrophe
    in front. Numbers must not go through here: ``-1`` would become text.
    """
    return f"'{text}" if text.startswith(_FORMULA) else text
