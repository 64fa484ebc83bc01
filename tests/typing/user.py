"""User code without errors in the strict mode of type checkers."""

import encoder_zoo as ez

texts, labels = ["A fine film.", "Never again."], ["good", "bad"]

classifier = ez.SequenceClassifier.from_preset("bert_nano_en_uncased", labels=["bad", "good"])
classifier.compile(learning_rate=1e-4)
history = classifier.fit(texts, labels, epochs=1, batch_size=2, verbose=0)
scores = classifier.evaluate(texts, labels, return_dict=True, verbose=0)
print(scores["loss"] + 1.0, history.history["accuracy"])
print(classifier.classify("A fine film.")["label"].upper())
print([answer["score"] for answer in classifier.classify(texts)])
print([each["label"] for each in classifier.classify("Fine.", top_k=2)])
print(classifier.predict_proba(texts).shape, classifier.predict(texts, verbose=0))
classifier.save_to_preset("films")

tagger = ez.TokenClassifier.from_preset("bert_nano_en_uncased", labels=["O", "B-PER", "I-PER"])


def lengths(entities: list[ez.typing.Entity]) -> list[int]:
    return [entity["end"] - entity["start"] for entity in entities]


print(lengths(tagger.extract_entities("Ada met Grace.")))


qa = ez.SpanQA.from_preset("bert_nano_en_uncased")
print(qa.answer(question="Who met Grace?", context="Ada met Grace.")["text"])

filler = ez.MaskedLM.from_preset("bert_nano_en_uncased")
print(filler.fill_mask("A [MASK] film.", top_k=2)[0]["token"])

embedder = ez.TextEmbedder.from_preset("bert_nano_en_uncased")
index = embedder.index(texts, precision="int8")
print([hit["index"] for hit in index.search("A film?", top_k=1)])
reranker = ez.Reranker.from_preset("bert_nano_en_uncased")
print(reranker.rank("A film?", texts)[0]["text"], reranker.score("A film?", texts[0]))
