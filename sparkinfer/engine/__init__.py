"""The worker loop: chunks of rows in, chunks of predictions out. No Spark and no framework is imported here."""
