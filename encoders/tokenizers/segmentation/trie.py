"""A trie over sequences of numbers, stepped through by many walkers at once in TensorFlow."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text.hash_table import HashTable
from encoder_zoo.encoders.tokenizers.text.sequences import Spellings

SYMBOL_BITS = 16
NOWHERE = 0  # the node that no step leaves


class Trie(tf.Module):
    """Sequences of symbols with a value each, as one hash table from (node, symbol) to node.

    Args:
        roots: (W,), the node where each word starts, from 1. Several roots tell apart words that
            may start another from those that continue one.
        words: their symbols are below 2**16.
        values: (W,), from 0. A later value replaces an earlier.
        num_roots: how many roots there are.

    Example:
        >>> trie = Trie([1], Spellings.of([[7, 8]]), [42])
        >>> one = tf.constant([1, 1], tf.int64)
        >>> node = trie.step(trie.step(one, tf.constant([7, 9])), tf.constant(8))
        >>> node.numpy().tolist(), trie.value(node).numpy().tolist()
        ([3, 0], [42, -1])
    """

    def __init__(
        self, roots: Sequence[int], words: Spellings, values: Sequence[int], num_roots: int = 1
    ):
        super().__init__()
        starts, nodes = words.starts, np.array(roots, np.int64)  # where each word has got to
        edges, num_nodes = [np.zeros(0, np.int64)], 1 + num_roots
        for depth in range(words.lengths.max(initial=0)):  # all words go one symbol on
            walks = words.lengths > depth
            edge = nodes[walks] << SYMBOL_BITS | words.symbols[starts[walks] + depth]
            new, number = np.unique(edge, return_inverse=True)
            nodes[walks] = num_nodes + number
            edges.append(new)
            num_nodes += len(new)
        of_nodes = np.full(num_nodes, -1, np.int32)
        of_nodes[nodes] = values  # NumPy keeps the last of several
        keys = np.concatenate(edges)
        reached = np.arange(1 + num_roots, num_nodes)
        self._edges = HashTable(keys, reached, default_value=NOWHERE)
        self._values = tf.constant(of_nodes)

    def step(self, nodes: tf.Tensor, symbols: tf.Tensor) -> tf.Tensor:
        """The nodes reached from `nodes` (int64) over `symbols`; NOWHERE if there are none."""
        shifted = tf.bitwise.left_shift(nodes, SYMBOL_BITS)
        return self._edges.lookup(shifted + tf.cast(symbols, tf.int64))

    def value(self, nodes: tf.Tensor) -> tf.Tensor:
        """The values (int32) of the sequences that end at `nodes`; -1 where none ends."""
        return tf.gather(self._values, nodes)
