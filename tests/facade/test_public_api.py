"""The public surface is the recorded one: what changes in it is changed on purpose."""

import difflib

import public_api


def test_the_public_surface_is_the_recorded_one():
    """`python tests/public_api.py --write` renews the record; docs/stability.md has the rules."""
    recorded = public_api.RECORD.read_text(encoding="utf-8").splitlines()
    changed = list(difflib.unified_diff(recorded, public_api.lines(), lineterm="", n=0))
    assert not changed, "\n".join(changed)


def test_the_record_tells_arguments_and_defaults():
    def function(texts, batch_size: int | None = None, *, verbose="auto"): ...

    assert public_api.arguments_of(function) == "(texts, batch_size=None, *, verbose='auto')"


def test_a_removed_argument_of_from_preset_is_seen():
    [line] = [each for each in public_api.lines() if each.startswith("SequenceClassifier.from_p")]
    named = line.removeprefix("SequenceClassifier.from_preset(source, **{").removesuffix("})")
    assert {"labels", "sequence_length", "dtype"} <= set(named.split(", "))
