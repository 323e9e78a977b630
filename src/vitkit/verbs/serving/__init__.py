"""Verbs that serve a model, over HTTP or as a page."""

from vitkit.serving import open_browser
from vitkit.system.console.messages import announce, say


def announce_page(address: str, asked: int, port: int, how_it_ends: str, open_it: bool) -> None:
    """Say where a page is, and that its port is not the one that was asked for; open it if that is
    wanted."""
    if port != asked:
        say(f"port {asked} is taken, so the page is at {port}")
    announce(f"open {address}   ({how_it_ends})")
    if open_it:
        open_browser(address)
