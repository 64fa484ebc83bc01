"""A trie over sequences of symbols, searched from many positions at once."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text.hash_table import HashTable
from encoder_zoo.encoders.tokenizers.text.packed_words import PackedWords

SYMBOL_BITS = 16
NOWHERE = 0  # the node without edges


class Trie(tf.Module):
    """Maps sequences of symbols to values, by one hash table from (node, symbol) to node.

    Args:
        roots: (W,), the root of each sequence, from 1. With several roots a trie holds several
            sets of sequences.
        words: the sequences; symbols count from 1 and are below 2**16.
        values: (W,), from 0; the last value of equal sequences counts.
        num_roots: number of roots.

    Example:
        >>> trie = Trie([1], PackedWords.from_symbols([[7, 8]]), [42])
        >>> one = tf.constant([1, 1], tf.int64)
        >>> node = trie.step(trie.step(one, tf.constant([7, 9])), tf.constant(8))
        >>> node.numpy().tolist(), trie.value(node).numpy().tolist()
        ([3, 0], [42, -1])
    """

    def __init__(
        self,
        roots: Sequence[int],
        words: PackedWords,
        values: Sequence[int],
        num_roots: int = 1,
    ):
        super().__init__()
        starts, nodes = words.starts, np.array(roots, np.int64)  # the current node of each word
        edges, num_nodes = [np.zeros(0, np.int64)], 1 + num_roots
        for depth in range(words.lengths.max(initial=0)):  # one more symbol of all words
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
        """Return the nodes behind the edges of `nodes` (int64) with `symbols`, or NOWHERE."""
        shifted = tf.bitwise.left_shift(nodes, SYMBOL_BITS)
        return self._edges.lookup(shifted + tf.cast(symbols, tf.int64))

    def value(self, nodes: tf.Tensor) -> tf.Tensor:
        """Return the values (int32) of the sequences that end at `nodes`; -1 for none."""
        return tf.gather(self._values, nodes)

    def longest_matches(
        self, roots: tf.Tensor, symbol_at: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Find the longest sequence that matches from each of many positions.

        Args:
            roots: int64 (K,), the root for each position.
            symbol_at: returns the symbols (A,) at an offset from some of the positions, given
                their indices (A,) and the offset; 0 ends a search.

        Returns:
            values and lengths: int32 (K,); 0 and 0 where nothing matches.
        """

        def step(length, searching, node, values, lengths):
            node = self.step(node, symbol_at(searching, length))
            alive = tf.where(node != NOWHERE)[:, 0]
            searching, node = tf.gather(searching, alive), tf.gather(node, alive)
            length += 1
            value = self.value(node)
            matching = tf.where(value >= 0)[:, 0]
            index = tf.gather(searching, matching)[:, None]
            values = tf.tensor_scatter_nd_update(values, index, tf.gather(value, matching))
            longest = tf.fill(tf.shape(matching), length)
            lengths = tf.tensor_scatter_nd_update(lengths, index, longest)
            return length, searching, node, values, lengths

        nothing = tf.zeros_like(roots, tf.int32)
        *_, values, lengths = tf.while_loop(
            lambda length, searching, *_: tf.size(searching) > 0,
            step,
            [0, tf.range(tf.size(roots)), roots, nothing, nothing],
            shape_invariants=[tf.TensorShape([]), *[tf.TensorShape([None])] * 4],
            parallel_iterations=1,
        )
        return values, lengths
