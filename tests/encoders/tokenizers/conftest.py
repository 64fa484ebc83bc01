"""Tokenize the texts of these tests in graphs, to compare the graphs with other libraries.

See also test_library.py.
"""

import pytest

from encoder_zoo.encoders.tokenizers import tokenizer


# With the scope "session", the tests of other folders that run later would also use the graphs,
# and trace one for each vocabulary.
@pytest.fixture(autouse=True, scope="module")
def by_the_graph():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "LIBRARY_BYTES", -1)
        yield
