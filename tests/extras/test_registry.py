"""What the package uses of the extras is found by its name."""

import inspect

import pytest

from encoder_zoo.common.extras import EXTRAS, load_extra


@pytest.mark.parametrize("name", EXTRAS)
def test_an_extra_is_where_the_registry_says(name):
    assert inspect.getmodule(load_extra(name)).__name__.startswith("encoder_zoo.extras.")
