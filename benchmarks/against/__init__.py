"""Compare this checkout with another: its trained weights to the last bit, and its speed.

Run `python -m benchmarks.against BASE`, where BASE is the root of the other checkout with its own
environment in `.venv`. Both sides are driven by nothing but their own `edl` and read by nothing but
the files of a trained model and the events of a job, so they may differ in everything else.
"""
