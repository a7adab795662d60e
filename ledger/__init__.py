"""The forward model: what a layout should send, hold and wait for, from arithmetic alone.

Nothing here reads a trace. Formulas carry their source; `docs/ledger.md` sets them side by side.
"""
