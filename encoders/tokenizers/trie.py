"""A trie over sequences of numbers, stepped through by many walkers at once in TensorFlow."""

from collections.abc import Iterable, Sequence

import tensorflow as tf

SYMBOL_BITS = 16
NOWHERE = 0  # the node that no step leaves


class Trie(tf.Module):
    """Sequences of symbols with a value each, as one hash table from (node, symbol) to node.

    Args:
        entries: (root, symbols, value) per sequence. Roots count from 1 and tell apart sequences
            that may start a word from those that continue one. A later value replaces an earlier.
            Symbols are below 2**16.
        num_roots: how many roots there are.

    Example:
        >>> trie = Trie([(1, [7, 8], 42)])
        >>> one = tf.constant([1, 1], tf.int64)
        >>> node = trie.step(trie.step(one, tf.constant([7, 9])), tf.constant(8))
        >>> node.numpy().tolist(), trie.value(node).numpy().tolist()
        ([3, 0], [42, -1])
    """

    def __init__(self, entries: Iterable[tuple[int, Sequence[int], int]], num_roots: int = 1):
        super().__init__()
        edges: dict[int, int] = {}
        values = [-1] * (1 + num_roots)
        for node, symbols, value in entries:
            for symbol in symbols:
                edge = node << SYMBOL_BITS | symbol
                node = edges.setdefault(edge, len(values))
                if node == len(values):
                    values.append(-1)
            values[node] = value
        keys = tf.constant(list(edges.keys()), tf.int64)
        nodes = tf.constant(list(edges.values()), tf.int64)
        self._edges = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(keys, nodes), default_value=NOWHERE
        )
        self._values = tf.constant(values, tf.int32)

    def step(self, nodes: tf.Tensor, symbols: tf.Tensor) -> tf.Tensor:
        """The nodes reached from `nodes` (int64) over `symbols`; NOWHERE if there are none."""
        shifted = tf.bitwise.left_shift(nodes, SYMBOL_BITS)
        return self._edges.lookup(shifted + tf.cast(symbols, tf.int64))

    def value(self, nodes: tf.Tensor) -> tf.Tensor:
        """The values (int32) of the sequences that end at `nodes`; -1 where none ends."""
        return tf.gather(self._values, nodes)
