"""Reports of evaluations, and reviews of data sets, as HTML pages."""
