"""What the functions of the commands have in common: how they are called, what their parameters are,
and how their results show themselves.
"""
