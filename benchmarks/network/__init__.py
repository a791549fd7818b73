"""Measures training over networks of several rates, with models large enough to feel them."""
