"""The address of a page on this machine, and how a person is told of it."""

import webbrowser

from vitkit.system.console.messages import announce, say


def address_of(host: str, port: int) -> str:
    """The address to type into a browser on this machine."""
    if host in ("0.0.0.0", "::"):
        host = "localhost"
    if ":" in host:
        host = f"[{host}]"
    return f"http://{host}:{port}"


def announce_page(address: str, asked: int, port: int, how_it_ends: str, open_it: bool) -> None:
    """Say where a page is, and that its port is not the one that was asked for; open it if that is
    wanted."""
    if port != asked:
        say(f"port {asked} is taken, so the page is at {port}")
    announce(f"open {address}   ({how_it_ends})")
    if open_it:
        webbrowser.open(address)
