"""Late chunking beside thirty lines over sentence-transformers' vectors of tokens."""

import shutil

import numpy as np
import pytest
from paths import CHECKPOINTS

import encoder_zoo as ez

pytestmark = [
    pytest.mark.peers,
    pytest.mark.eager,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
TEXTS = ["the cat sat on the mat", "dogs and cats", "a very good"]
PROMPT = "query : "


def theirs(folder, chunks, prompt):
    """The mean of the vectors of each chunk's tokens, of texts that the model reads whole."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules.transformer import Transformer
    from sentence_transformers.sentence_transformer.modules.pooling import Pooling

    encoder = Transformer(str(folder), max_seq_length=32)
    model = SentenceTransformer(modules=[encoder, Pooling(8, "mean")], device="cpu").eval()
    model.save(str(folder / "theirs"))
    tokenizer, vectors = model.tokenizer, []
    given = [prompt + text for text in chunks.contexts.texts]
    states = model.encode(given, output_value="token_embeddings", batch_size=1)
    for document, (start, end) in zip(chunks.contexts.index, chunks.contexts.spans, strict=True):
        encoding = tokenizer(given[document], return_offsets_mapping=True)
        inside = [
            i
            for i, (begin, stop) in enumerate(encoding["offset_mapping"])
            if stop > begin and begin - len(prompt) < end and stop - len(prompt) > start
        ]
        mean = np.asarray(states[document])[inside].mean(axis=0)
        vectors.append(mean / np.linalg.norm(mean))
    return np.stack(vectors)


@pytest.mark.parametrize("prompt", ["", PROMPT])
@pytest.mark.parametrize("family", ["Bert", "Roberta", "XLMRoberta", "ModernBert"])
def test_the_same_vectors(family, prompt, tmp_path):
    folder = shutil.copytree(CHECKPOINTS / f"{family}_Model", tmp_path / "encoder")
    plain = ez.TextEmbedder.from_preset(folder, pooling="mean", max_length=32)
    chunks = plain.chunks(TEXTS, 3, overlap=1, late=True)
    assert len(chunks) > 6
    expected = theirs(folder, chunks, prompt)
    np.testing.assert_allclose(plain.embed(chunks, prompt or None), expected, atol=1e-5)
