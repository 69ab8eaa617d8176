"""Everything that imports pyspark: the two roads, shipping, and what a session can do."""
