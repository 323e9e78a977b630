from .functions.app import ClosedPage as ClosedPage
from .functions.app import app as app
from .functions.serve import Ended as Ended
from .functions.serve import serve as serve
