"""The kinds of data sets that are read: one file each, all giving a Table."""
