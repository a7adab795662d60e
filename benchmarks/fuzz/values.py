"""Values that a parser does not expect."""

from __future__ import annotations

STRANGE_TEXT = (
    *("", "\x00", "\x1b[2J\x1b]0;owned\x07", "<script>alert(1)</script>", "=cmd|' /C calc'!A0", "../../etc/passwd"),
    *("\ud800", "NaN", "-1", "18446744073709551616", "9" * 400, "[" * 200, "a" * 5000, "::error::x%0A", "\u202eabc"),
    *("[0, 1, ...]", "[1, 2", "nccl:" * 300, "ncclDevKernel_" + "<" * 400, "None", "{}", "1e999", "0x7f", "\n\n"),
    *("0-4294967295", "9" * 5000, "²", "--5", "١٢", "1e" + "9" * 5000, "0x" + "f" * 5000, "TP" + "9" * 5000),
)
STRANGE_NUMBERS = (
    *(0, -1, 1, 0.5, -0.0, 2**31 - 1, 2**31, 2**32, 2**53 - 1, 2**53 + 1, 2**62, 2**63 - 1, 2**63, -(2**63), 2**64),
    *(2**70, 10**30, 1e18, 1e22, 1e300, -1e300, 1e-300, float("inf"), float("-inf"), float("nan")),
)
