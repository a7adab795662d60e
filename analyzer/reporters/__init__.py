"""One module per output. A reporter formats an `Analysis`; it computes nothing."""
