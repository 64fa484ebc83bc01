"""Mistakes that type checkers find. The comments contain a word from the error message."""

import encoder_zoo as ez

ez.SequenceClassifier.from_preset("bert_nano_en_uncased", lables=["bad", "good"])  # lables
classifier = ez.SequenceClassifier.from_preset("bert_nano_en_uncased")
ez.MaskedLM.from_preset("roberta_nano_en", seed="1")  # seed
classifier.compile(lr=1e-4)  # lr
classifier.fit(["A film."], [0], epoch=1)  # epoch
classifier.evaluate(["A film."], [0], batchsize=8)  # evaluate
classifier.predict(["A film."], verbos=0)  # verbos
classifier.classify("A film.")["lable"]  # lable
classifier.clasify("A film.")  # clasify
classifier.save_pretrained("films")  # save_pretrained
ez.TextEmbedder.from_preset("bert_nano_en_uncased", pooling_mode="cls")  # pooling_mode
ez.TokenClassifier.from_preset("bert_nano_en_uncased").extract_entities("Ada.")[0]["word"]  # word
ez.SpanQA.from_preset("bert_nano_en_uncased").answer("Who?", "Ada.")["answer"]  # answer
ez.Reranker.from_preset("bert_nano_en_uncased").rank("Who?", ["Ada."], topk=1)  # topk
ez.pipeline("text-classification")  # pipeline
ez.SequenceClassifier(ez.Backbone.from_preset("bert_nano_en_uncased"), lables=["a"])  # lables
