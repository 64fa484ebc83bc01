"""Try an installed package with one backend: fit, the answers, saving, opening, export.

`.ci/matrix` runs it outside the repository, with the Python of an environment that has only the
wheel, its dependencies and the backend that is named.
"""

import importlib.metadata
import importlib.util
import pathlib
import sys
import tempfile

import encoder_zoo as ez

TEXTS = ["I loved it.", "A waste of time.", "What a film!", "Dull and too long."]
LABELS = ["good", "bad", "good", "bad"]
BACKENDS = ("tensorflow", "jax", "torch")


def main(backend: str) -> None:
    import keras  # after encoder_zoo, which chooses the backend

    assert keras.backend.backend() == backend, keras.backend.backend()
    installed = [name for name in BACKENDS if importlib.util.find_spec(name)]
    assert installed == [backend], installed
    check_files()

    folder = pathlib.Path(tempfile.mkdtemp())
    classifier = ez.Classifier.from_preset("bert_nano_en_uncased")
    classifier.fit(TEXTS, LABELS, epochs=10, verbose=0)
    answer = classifier.classify("I loved this film!")
    assert answer["label"] == "good", answer
    classifier.save_to_preset(folder / "preset")
    classifier.save(folder / "model.keras")
    for again in (
        ez.Classifier.from_preset(folder / "preset"),
        keras.models.load_model(folder / "model.keras"),
    ):
        score = again.classify("I loved this film!")["score"]
        assert abs(score - answer["score"]) < 1e-5, (score, answer)
    exported = export(classifier, folder / "served", backend)

    [entity] = ez.TokenClassifier.from_preset("bert_nano_en_uncased_ner").extract_entities(
        "She moved to London."
    )
    assert entity["text"] == "London", entity
    index = ez.TextEmbedder.from_preset("bert_nano_en_uncased_embedder").index(
        ["The cat sleeps.", "Shares fell on Monday."]
    )
    [hit] = index.search("a pet", top_k=1)
    assert hit["index"] == 0, hit
    print(f"encoder_zoo {ez.__version__}, {len(ez.list_presets())} presets, {exported}: all right")


def check_files() -> None:
    """The distribution has the package and nothing else: no tests, and a marker of types."""
    files = importlib.metadata.files("encoder-zoo")
    parts = [pathlib.PurePosixPath(file).parts for file in files]
    assert {part[0].split("-")[0] for part in parts} == {"encoder_zoo"}, {p[0] for p in parts}
    assert ("encoder_zoo", "py.typed") in parts
    assert not [part for part in parts if "tests" in part or part[-1].startswith("test_")]


def export(classifier, folder: pathlib.Path, backend: str) -> str:
    """Export where the backend alone can, else expect the sentence that says what is missing."""
    if backend == "tensorflow":
        import tensorflow as tf

        classifier.export(folder)
        served = tf.saved_model.load(str(folder)).signatures["serving_default"]
        best = [row[0].decode() for row in served(text=tf.constant(TEXTS))["label"].numpy()]
        assert best == [answer["label"] for answer in classifier.classify(TEXTS)], best
        return "a SavedModel answers"
    try:
        classifier.export(folder)
    except (ImportError, ValueError) as error:
        assert "pip install" in str(error), error
        return "export names what to install"
    raise AssertionError("export without TensorFlow")


if __name__ == "__main__":
    main(*sys.argv[1:])
