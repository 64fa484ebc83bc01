"""User code for the remaining parts of the package, without errors in strict mode."""

import encoder_zoo as ez

for row in ez.list_presets():
    print(row.name, row.parameters)
backbone = ez.BertBackbone.from_preset("bert_nano_en_uncased", dropout=0.2)
tokenizer = ez.Tokenizer.from_preset("bert_nano_en_uncased", added_tokens=["<url>"])
print(tokenizer.vocabulary_size, tokenizer.token_to_id("film"), tokenizer("A film."))
preprocessor = ez.SequenceClassifierPreprocessor(tokenizer, sequence_length=64)
classifier = ez.SequenceClassifier(backbone, preprocessor, labels=["bad", "good"])
classifier.fit(
    ["A film."],
    ["good"],
    validation_data=(["A film."], ["good"]),
    callbacks=[ez.BackupAndRestore("backup")],
    class_weight="balanced",
)
classifier.export("served/1")
classifier.push_to_hub("me/films", private=True)
classifier.enable_lora(rank=8)
classifier.save_adapters("adapters")
teacher = ez.SequenceClassifier.from_preset("hf://org/name", labels=["bad", "good"])
ez.Distillation(teacher, classifier, temperature=3.0).fit(["A film."])

embedder = ez.TextEmbedder(backbone, pooling="mean")
embedder.compile(loss=ez.losses.InfoNCE(), chunk_size=8, learning_rate=1e-4)
questions, passages, negatives = embedder.mine_negatives(["Who?"], ["Ada."], num_negatives=1)
print(questions, passages, negatives, embedder.embed("A film.").shape)
print(embedder.evaluate_retrieval(["Who?"], ["Ada."], cutoffs=[1])["ndcg@10"])
index = ez.VectorIndex.load("index", embedder, engine="faiss")
for hits in index.search(["A film?"], reranker=ez.Reranker(backbone), candidates=20):
    print([hit["text"] for hit in hits])

few = ez.FewShotClassifier.from_preset("bert_nano_en_uncased_embedder", labels=["bad", "good"])
few.fit(["A fine film.", "Dull."], ["good", "bad"])
print(few.classify("Fine.")["label"])
sentences, tags = ez.read_conll("train.conll")
tagger = ez.TokenClassifier(backbone, labels=["O", "B-PER", "I-PER"])
tagger.fit(sentences, tags)
print(tagger.predict_tags(sentences)[0], tagger.evaluate_entities(sentences, tags)["f1"])
qa = ez.SpanQA(backbone)
print(qa.evaluate_answers(ez.read_squad("dev.json"))["f1"])
corpus = ez.PretrainingCorpus.from_files("corpus", ["text.txt"], tokenizer)
ez.MaskedLM(backbone).fit(corpus, steps_per_epoch=100)
print(ez.display.learning_curves({"loss": [1.0, 0.5]}).shape)
ez.display.entities("Ada.", tagger.extract_entities("Ada.")).save("entities.html")
print(ez.train_vocabulary(["A film."], 100, family="bert").vocabulary_size)

found = classifier.explain("A film.", label="good")
print(found["words"][0]["attribution"], classifier.for_cpu().classify("A film.")["label"])
ez.display.errors(classifier, ["A film."], ["good"]).show()
print(qa.answer("Who?", ["Ada.", "Grace."])["passage"])
estimator = ez.sklearn.TextClassifier("bert_nano_en_uncased", epochs=1).fit(["A film."], ["good"])
print(estimator.predict(["A film."]), estimator.predict_proba(["A film."]).shape)
