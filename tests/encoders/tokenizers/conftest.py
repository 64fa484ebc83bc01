"""Tokenize the texts of these tests in graphs, to compare the graphs with other libraries.

See also test_library.py.
"""

import pytest

from encoder_zoo.encoders.tokenizers import tokenizer


@pytest.fixture(autouse=True, scope="session")
def by_the_graph():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "LIBRARY_BYTES", -1)
        yield
