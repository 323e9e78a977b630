"""Reports of runs, and comparisons of runs, as HTML pages."""
