from .function import ClosedPage as ClosedPage
from .function import app as app
