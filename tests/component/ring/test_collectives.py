"""What is a broken ring, and what is only an error of the user's own ops."""

import pytest
import tensorflow as tf

from edl_horovod.frameworks.keras.collectives import CollectiveFailed, catch_failures

OURS = 'File "/site-packages/edl_horovod/frameworks/keras/step.py", line 1, in _step'


def test_what_horovod_reports_is_a_broken_ring():
    with pytest.raises(CollectiveFailed, match="shut down"), catch_failures():
        raise tf.errors.UnknownError(None, None, f"{OURS}\nHorovod has been shut down.")


def test_a_broken_ring_is_told_without_places_in_source_files():
    place = "[/tmp/horovod-0.28.1/gloo/gloo/transport/tcp/pair.cc:589] "
    told = "Read error [127.0.0.1]:28825: Connection reset by peer"
    with pytest.raises(CollectiveFailed) as caught, catch_failures():
        raise tf.errors.UnknownError(None, None, f"{OURS}\n{place}{told}")
    assert str(caught.value) == told


def test_a_broken_ring_is_told_without_the_graph_and_without_guesses():
    said = "{{function_node __f_1}} Horovod has been shut down. This was caused by an exception"
    with pytest.raises(CollectiveFailed) as caught, catch_failures():
        raise tf.errors.UnknownError(None, None, said)
    assert str(caught.value) == "Horovod has been shut down."


def test_an_error_of_the_users_ops_is_not_although_our_files_stand_in_it():
    with pytest.raises(tf.errors.InvalidArgumentError), catch_failures():
        raise tf.errors.InvalidArgumentError(None, None, f"{OURS}\nindices[0] = 7 is not in [0, 5)")
