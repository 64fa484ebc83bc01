"""What the package uses of the extras is found by its name."""

import pytest

from encoder_zoo.common.extras import EXTRAS, extra


@pytest.mark.parametrize("name", EXTRAS)
def test_an_extra_is_where_the_registry_says(name):
    assert extra(name).__module__.startswith("encoder_zoo.extras.")
