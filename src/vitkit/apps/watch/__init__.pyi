from .function import watch as watch
