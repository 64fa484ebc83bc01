"""Texts of these tests are tokenized by the graph, which is compared with others; see also
test_library.py."""

import pytest

from encoder_zoo.encoders.tokenizers import tokenizer


def pytest_ignore_collect(config):
    """Skip this folder where none of its tests would run: it imports many libraries."""
    return True if "not peers" in config.option.markexpr else None


@pytest.fixture(autouse=True, scope="session")
def by_the_graph():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "LIBRARY_BYTES", -1)
        yield
