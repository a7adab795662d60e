"""The one error type that users see."""


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
        self.message = message
        self.path = path
        self.place = place
        self.hint = hint

    def __str__(self) -> str:
        where = ", ".join(part for part in (self.path, self.place) if part)
        line = f"{where}: {self.message}" if where else self.message
        return f"{line}; {self.hint}" if self.hint else line
