"""The functions of `vitkit serve` and `vitkit app`: a server, and its page in the browser."""
