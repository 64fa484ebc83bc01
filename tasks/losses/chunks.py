"""Gradients of a large batch in the memory of a small one."""

from __future__ import annotations


def recomputed_in_chunks(model, call, inputs, chunk_size):
    """Draft; the owner of tasks/losses writes it."""
    return call(inputs, True)
