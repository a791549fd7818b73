"""Files that appear complete or not at all, and markers of the folders that edl_horovod writes."""
