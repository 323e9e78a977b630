"""Verbs that serve a model: over HTTP, and as a page."""


def address_of(host: str, port: int) -> str:
    """What to type in a browser of this machine."""
    if host in ("0.0.0.0", "::"):
        host = "localhost"
    if ":" in host:
        host = f"[{host}]"
    return f"http://{host}:{port}"
