"""Arguments of methods that push to the Hugging Face hub."""

from __future__ import annotations

import re
from typing import Annotated

from encoder_zoo.common.validation import Rule

_NAME = re.compile(r"(hf://)?\w[\w.-]*/\w[\w.-]*")

Repository = Annotated[
    str, Rule(lambda v: bool(_NAME.fullmatch(v)), "the name of a repository, such as 'user/name'")
]
CommitMessage = Annotated[
    str, Rule(lambda v: isinstance(v, str) and bool(v.strip()), "a line of text")
]
