"""The one error type that users see."""

LONGEST_MESSAGE = 1000
"""Characters of a message: what a library says of a value may quote it, whatever its length."""


class InputError(Exception):
    """An input that cannot be used, said in one line: what, where in which file, and the way out.

    Args:
        message: what is wrong, as a sentence without a full stop.
        path: the file or directory, as the user named it.
        place: the place inside the file, such as ``byte 1024`` or ``event 17``.
        hint: what the user can do about it.
    """

    def __init__(
        self, message: str, *, path: str | None = None, place: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = _one_line(message)
        self.path = path
        self.place = place
        self.hint = hint

    def __str__(self) -> str:
        where = ", ".join(part for part in (self.path, self.place) if part)
        line = f"{where}: {self.message}" if where else self.message
        return f"{line}; {self.hint}" if self.hint else line


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_MESSAGE else line[: LONGEST_MESSAGE - 1] + "…"
