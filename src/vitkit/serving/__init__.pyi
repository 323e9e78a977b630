"""Written by `cd tests && python -m stubs`: for type checkers and editors."""

from vitkit.serving.http.body import Limits as Limits
from vitkit.serving.http.connections import Listener as Listener
from vitkit.serving.http.connections import close_silent as close_silent
from vitkit.serving.http.connections import config_of as config_of
from vitkit.serving.http.connections import is_full as is_full
from vitkit.serving.http.guard import Guard as Guard
from vitkit.serving.http.server import Plan as Plan
from vitkit.serving.http.server import Server as Server
from vitkit.serving.http.server import bound_socket as bound_socket
from vitkit.serving.http.server import check_installed as check_installed
from vitkit.serving.http.server import prepare_process as prepare_process
from vitkit.serving.http.service import Settings as Settings
from vitkit.serving.http.workers import Workers as Workers
