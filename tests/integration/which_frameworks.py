"""Which tests of whole jobs run for each framework: every file of this folder is in the list."""

from tests.frameworks import FIRST_IN_CI, FIRST_SOON, FRAMEWORKS, QUICKEST_IN_CI

__all__ = ["CORE", "EACH", "EACH_TESTS", "LONG", "ONCE", "frameworks_for"]

EACH = {
    "test_chaos",
    "test_elastic",
    "test_hangs",
    "test_same_curve",
}
"""What may happen to a ring within a step, whose code is the framework's: CI runs it for each."""
CORE = {
    "test_membership",
    "test_report",
    "test_scale",
    "test_spares",
    "test_streamed_joins",
}
"""What may happen to a ring between steps, where the code is the same for all.

Of each framework's part of it are the tests of rings in tests/parallel. CI runs these for one
framework, as those of LONG.
"""
EACH_TESTS = {
    "test_elastic.test_kill_9_shrinks_the_ring_and_the_slot_comes_back",
    "test_elastic.test_the_hosts_file_grows_and_shrinks_the_ring",
    "test_federated.test_parties_train_one_model_and_keep_their_records_and_paths_to_themselves",
    "test_hangs.test_a_worker_lost_between_two_buckets_costs_the_step_in_flight_alone",
    "test_results.test_evaluate_equals_the_framework_alone",
}
"""Those that CI, too, runs for every framework: each has its own collectives and sums."""
LONG = {
    "test_autoscale",
    "test_bad_moments",
    "test_carried_zoo",
    "test_federated",
    "test_formats",
    "test_horovodrun",
    "test_launches",
    "test_python_api",
    "test_results",
    "test_resume",
    "test_slurm",
    "test_sources",
    "test_stop",
    "test_stop_in_cluster",
    "test_sweep",
}
"""For one framework in CI and for the others at night, as most of the way is the same code.

That one is the first that is set up, and for long tests that whose ranks start soonest.
"""
ONCE = {
    "test_adapted": "layers that adapt to data are Keras'",
    "test_compiling": "Keras' steps are graphs anyway",
    "test_decoding": "the processes are PyTorch's",
    "test_doctor": "it looks at each framework that is set up",
    "test_elasticdl_zoo": "the released models are written in Keras",
    "test_extensions": "it brings its own framework",
    "test_keras_on_torch": "it is both at once",
    "test_launches.test_a_mistake_is_one_message": "it is told before there is a framework",
    "test_live_page": "a page shows events, which are the same for all",
    "test_model_kinds": "the kinds are Keras' own; it has a test of PyTorch's kind beside them",
    "test_model_specs": "each of its cases names its own framework",
    "test_notebooks": "its models are written in Keras",
    "test_own_experiments": "a tutorial, whose model is written in Keras",
    "test_pages": "each page says the framework of its model",
    "test_prepare": "no framework prepares data",
    "test_setup_horovod": "what it builds is for a framework that is only named",
    "test_sql_classes": "it names the framework of each case itself",
    "test_sql_defaults": "the schedule and its account are the same for all",
    "test_sql_engines": "rows of an engine become files as those of any other",
    "test_sql_service": "it is about the end of a job, which is the same for all",
    "test_sql_statements": "what a statement becomes is a job as any other",
    "test_tables": "it names the framework of each case itself",
    "test_templates": "each project names its own framework",
    "test_wheel": "it trains with the first framework that is set up",
    "test_zoo_trains": "models of the zoo; it has a test of PyTorch's beside them",
}
"""Not for each framework, and why."""


def frameworks_for(module, test, *, is_long=False):
    """The parameters of a test's fixture `framework`; none for what runs once.

    Raises:
        KeyError: A file of tests is in none of the lists.
    """
    if module in ONCE or f"{module}.{test}" in ONCE:
        return []
    if module not in EACH | CORE | LONG:
        raise KeyError(f"{module} is in no list of {__name__}")
    if f"{module}.{test}" in EACH_TESTS:
        return FRAMEWORKS
    if module in EACH:
        return FIRST_SOON
    return QUICKEST_IN_CI if is_long else FIRST_IN_CI
