"""The ledger's one error."""


class LedgerError(ValueError):
    """A model, layout or profile that cannot be computed with.

    Args:
        message: what is wrong, as a sentence without a full stop.
        key: the field, config key or name at fault, where there is one.
    """

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.key = key
