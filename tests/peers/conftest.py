"""Tokenize the texts of these tests in graphs, to compare the graphs with other libraries.

See also test_library.py.
"""

import pytest

from encoder_zoo.encoders.tokenizers import tokenizer


def pytest_ignore_collect(config):
    """Skip this folder if none of its tests would run, because it imports many libraries."""
    return True if "not peers" in config.option.markexpr else None


@pytest.fixture(autouse=True, scope="module")
def by_the_graph():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "LIBRARY_BYTES", -1)
        yield
