"""The private names of TensorFlow in `common/tensorflow_private.py`."""

import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from encoder_zoo.common import tensorflow_private


def test_separate_collectives():
    strategies = [tf.distribute.MirroredStrategy(["CPU:0"]) for _ in range(2)]
    for strategy in strategies:
        tensorflow_private.set_unique_group_keys(strategy)
    first, second = (s.extended._collective_ops._launchers[0]._group_key for s in strategies)
    assert first != second


@pytest.fixture
def rewriting():
    """Graphs are rewritten, as by default; in the quick run of the tests they are not."""
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    yield
    tf.config.optimizer.set_experimental_options(before)


@pytest.mark.usefixtures("rewriting")
def test_graphs_as_traced():
    """TensorFlow does not rewrite graphs that are called inside, and does again afterwards."""

    def rewrites():
        config = tf.compat.v1.ConfigProto.FromString(
            context.context().function_call_options.config_proto_serialized
        )
        return not config.graph_options.rewrite_options.disable_meta_optimizer

    double = tf.function(lambda x: x + x)
    with tensorflow_private.disable_graph_rewriting(True):
        assert not rewrites() and float(double(tf.constant(2.0))) == 4
    assert rewrites()
    with tensorflow_private.disable_graph_rewriting(False):
        assert rewrites()
