"""Read the KerasHub class names, layer names and settings of each family from a JSON file.

- BERT: KerasHub always uses the tanh GELU, even if the original weights used the exact GELU.
- Masked-LM heads: most use the exact GELU and the epsilon 1e-5, independently of the blocks.
- ELECTRA: KerasHub adds a pooler that ELECTRA does not have. The pooler is ignored.
- ALBERT: KerasHub only applies the normalization that is stored in the SentencePiece model.
- BART: KerasHub only has a task for generating texts, so there are no heads.
- WordPiece: KerasHub's files do not store whether Chinese characters are split.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class KerasHubHead:
    """The names of a task and of the layers of its head in KerasHub.

    Attributes:
        task: String. Task class name.
        groups: Dict that maps attribute paths in the task to group names in weight files.
        built_in: Dict that maps task arguments to hard-coded values in KerasHub.
    """

    task: str
    groups: Mapping[str, str]
    built_in: Mapping[str, object] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class KerasHubNames:
    """KerasHub names and hard-coded values for an encoder family.

    Attributes:
        backbone: String. Backbone class name.
        built_in: Dict that maps backbone arguments to hard-coded values in KerasHub.
        groups: Dict that maps attribute paths in the backbone to group names in weight files.
        heads: Dict that maps head names (see `Family.heads`) to `KerasHubHead`.
        tokenizer: String. Tokenizer class name.
        tokenizer_file_names: Dict that maps file names in Hugging Face folders to file names in
            KerasHub.
        tokenizer_settings: Dict that maps settings in tokenizer_config.json to pairs [name in
            KerasHub, default in KerasHub].
        tokenizer_arguments: Dict that maps tokenizer arguments in KerasHub to tokenizer attributes
            in this package.
        tokenizer_built_in: Dict that maps tokenizer attributes in this package to hard-coded values
            in KerasHub.
        arguments: Dict that maps backbone arguments to their names in KerasHub, if the names
            differ. Several arguments can be mapped to the same name.
        blocks: Dict that maps backbone attributes with lists of blocks to prefixes of group names.
    """

    backbone: str
    built_in: Mapping[str, object]
    groups: Mapping[str, str]
    heads: Mapping[str, KerasHubHead]
    tokenizer: str
    tokenizer_file_names: Mapping[str, str]
    tokenizer_settings: Mapping[str, Sequence]
    tokenizer_arguments: Mapping[str, str]
    tokenizer_built_in: Mapping[str, object] = dataclasses.field(default_factory=dict)
    arguments: Mapping[str, str] = dataclasses.field(default_factory=dict)
    blocks: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: {"blocks": "transformer_encoder"}
    )


_DATA = pathlib.Path(__file__).with_name("kerashub_names.json").read_text(encoding="utf-8")
# {family name: names}
KERAS_HUB = {
    family: KerasHubNames(
        **{**names, "heads": {each: KerasHubHead(**head) for each, head in names["heads"].items()}}
    )
    for family, names in json.loads(_DATA).items()
}
