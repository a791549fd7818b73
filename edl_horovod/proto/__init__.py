"""The messages of the files that we write, and what is generated from them."""
