"""Applications: each is a package of its own with its logic, function, page and texts. The core imports none of them,
and none imports another."""
