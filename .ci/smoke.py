"""Try an installed package: the README's example, each way to answer, saving, export.

`.ci/matrix` runs it outside the repository, with the Python of an environment that has only the
wheel and its dependencies.
"""

import pathlib
import tempfile

import tensorflow as tf

import encoder_zoo as ez

TEXTS = ["I loved it.", "A waste of time.", "What a film!", "Dull and too long."]
LABELS = ["good", "bad", "good", "bad"]


def main() -> None:
    folder = pathlib.Path(tempfile.mkdtemp())
    classifier = ez.Classifier.from_preset("bert_nano_en_uncased")
    classifier.fit(TEXTS, LABELS, epochs=10, verbose=0)
    answer = classifier.classify("I loved this film!")
    assert answer["label"] == "good", answer
    classifier.save_to_preset(folder / "preset")
    again = ez.Classifier.from_preset(folder / "preset").classify("I loved this film!")
    assert abs(again["score"] - answer["score"]) < 1e-5, (again, answer)
    classifier.save(folder / "model.keras")
    classifier.export(folder / "served")
    served = tf.saved_model.load(str(folder / "served")).signatures["serving_default"]
    assert served(text=tf.constant(TEXTS)), served

    [entity] = ez.TokenClassifier.from_preset("bert_nano_en_uncased_ner").extract_entities(
        "She moved to London."
    )
    assert entity["text"] == "London", entity
    index = ez.TextEmbedder.from_preset("bert_nano_en_uncased_embedder").index(
        ["The cat sleeps.", "Shares fell on Monday."]
    )
    [hit] = index.search("a pet", top_k=1)
    assert hit["index"] == 0, hit
    print(f"encoder_zoo {ez.__version__}, {len(ez.list_presets())} presets: all right")


if __name__ == "__main__":
    main()
