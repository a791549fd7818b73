"""Files of records, local and remote."""
