"""Checks that the presets of `list_presets()` open, without downloading them.

    python tests/check_known.py [NAME ...] [--write FILE]

It needs a network. As `from_preset` does, it opens the configuration, the tokenizer files and the
headers of the weights of every listed Hugging Face repository, a few hundred kilobytes, and prints
which open, and the errors of others. It exits with 1 if one does not open. `--write` writes the
findings: `tests/recorded/known_presets.json` is the latest such file.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import datetime
import json
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import keras

from encoder_zoo.presets import hub, loading
from encoder_zoo.presets.files.folder_files import FolderFiles
from encoder_zoo.presets.formats import embedding_folder
from encoder_zoo.presets.formats.checkpoint import Checkpoint
from encoder_zoo.presets.formats.preset_files import MODULES
from encoder_zoo.presets.formats.sentence_transformers import read_modules, select_modules
from encoder_zoo.presets.hub_requests import Unreachable, get_endpoint
from encoder_zoo.presets.opening import Safeguards, open_files
from encoder_zoo.presets.registry import PresetInfo, format_table, list_presets
from encoder_zoo.presets.restoring import check_all_used, match_backbone

T = TypeVar("T")
_HUB = "hf://"
_WEIGHTS = (".safetensors", ".bin", ".h5")


@dataclasses.dataclass
class Finding:
    """The findings about one preset.

    Attributes:
        source: address of its repository.
        opens: whether `from_preset` loads it.
        why_not: the error, if it does not.
        commit: the checked commit.
        weights: names of the files with the weights.
        family: of the model.
        parameters: number of weights of encoder and pooler.
        fetched: bytes that were fetched.
    """

    source: str
    opens: bool = False
    why_not: str | None = None
    commit: str | None = None
    weights: tuple[str, ...] = ()
    family: str | None = None
    parameters: int | None = None
    fetched: int = 0


def check_preset(preset: PresetInfo) -> Finding:
    """Check one preset on the hub against its entry in the list.

    Args:
        preset: a row of `list_presets()` whose source is `hf://...`.

    Returns:
        The findings, with any error.
    """
    found = check_source(preset.source)
    for field in ("family", "parameters"):
        listed, seen = getattr(preset, field), getattr(found, field)
        if found.opens and seen != listed:
            found.opens = False
            found.why_not = f"{field} is {seen} there, but {listed} in the list"
    return found


def check_source(source: str) -> Finding:
    """Check one repository on the hub.

    Args:
        source: `hf://organisation/name[@revision]`.

    Returns:
        The findings, with any error.
    """
    found = Finding(source)
    try:
        with open_remote(source) as files:
            found.commit = files.commit
            found.weights = tuple(n for n in files.listed if n.endswith(_WEIGHTS))
            try:
                checkpoint = open_files(files, Safeguards(verify=False))
                found.family = checkpoint.family.name
                found.parameters = check_loads(checkpoint)
                found.opens = True
            finally:
                found.fetched = files.fetched
    except Exception as error:  # of the hub, the connection or the files
        found.why_not = " ".join(str(error).split()) or type(error).__name__
    return found


_BLOCK = 64 * 1024  # the header of 400 tensors


class RemoteFolder(FolderFiles):
    """Opens files on the hub, and fetches only the blocks of 64 KB that are read.

    Args:
        repository: `organisation/name`.
        commit: of the files.
        sizes: {file name: bytes} of the files to open.
        endpoint: the hub's address; None for the default of huggingface_hub.

    Attributes:
        path: the repository, for error messages.
        listed: names of the files that are not in subfolders.

    Raises:
        FileNotFoundError: if the hub has no such repository or commit.
    """

    def __init__(
        self, repository: str, commit: str, sizes: Mapping[str, int], endpoint: str | None = None
    ):
        from huggingface_hub import HfFileSystem

        super().__init__(pathlib.PurePosixPath(repository))
        self.listed = sorted(name for name in sizes if "/" not in name)
        self.commit, self._sizes = commit, sizes
        self._caches = {}
        self._hub = HfFileSystem(endpoint=endpoint, skip_instance_cache=True)
        for name in sorted(sizes):
            self._open(name)

    @property
    def fetched(self) -> int:
        """Upper bound of the fetched bytes: the last block of a file may be shorter."""
        return sum(
            min(cache.miss_count * _BLOCK, self._sizes[name])
            for name, cache in self._caches.items()
        )

    def check_unchanged(self) -> None:
        """Do nothing: a commit does not change."""

    def _open(self, name: str) -> None:
        if name not in self._sizes:
            raise FileNotFoundError(self.path / name)
        file = self.keep(
            self._hub.open(
                f"{self.path}/{name}",
                revision=self.commit,
                block_size=_BLOCK,
                cache_type="blockcache",
                size=self._sizes[name],
            )
        )
        file.name = str(self.path / name)
        self._files[name], self._caches[name] = file, file.cache


def open_remote(address: str) -> RemoteFolder:
    """Open the files of a preset on the hub, without downloading them; all are of one commit.

    Args:
        address: as for `from_hugging_face`.

    Raises:
        ValueError: see `from_hugging_face`; and "...: the hub cannot be reached ..."
    """
    repository, _ = hub.parse_address(address)
    try:
        wanted, commit, _ = hub.list_files(address)
    except Unreachable as error:
        raise ValueError(f"{address}: the hub cannot be reached. It was: {error}.") from error
    sizes = {name: file.size for name, file in wanted.items()}
    return RemoteFolder(repository, commit, sizes, get_endpoint())


def check_loads(checkpoint: Checkpoint) -> int:
    """Check that a checkpoint can be loaded, without reading its weights.

    The tokenizer is built, and the modules of text embeddings are checked. The backbone is built
    without memory for its weights, which are matched to the checkpoint's by name and shape.

    Args:
        checkpoint: the opened checkpoint.

    Returns:
        Number of weights of its encoder, with the pooler if its family has one.

    Raises:
        ValueError: "... does not contain a tokenizer. ...", "...: the weights do not match
            config.json. ...", "... contains weights that do not belong to the architecture in ..."
    """
    check_modules(checkpoint, loading._require_tokenizer(checkpoint))
    pooler = {"pooler": checkpoint.family.pooler is not None}

    def build() -> tuple[int, set[str]]:
        backbone, matched, _ = match_backbone(checkpoint, pooler, True, checkpoint.family.backbone)
        return backbone.count_params(), set(matched)

    parameters, used = without_memory(build)
    check_all_used(checkpoint, used)
    return parameters


def without_memory(build: Callable[[], T]) -> T:
    """Call a function that builds models, whose weights get shapes but no values.

    The models cannot be used later. Returns the result of the function.

    Example:
        >>> without_memory(lambda: keras.layers.Embedding(10**6, 10**4).build()) is None
        True
    """

    def call() -> T:
        with keras.StatelessScope(initialize_variables=False):
            return build()

    # Keras would initialize these weights when another scope ends in this thread.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(call).result()


def check_modules(checkpoint: Checkpoint, tokenizer) -> None:
    """Check that a preset with a `modules.json` of text embeddings can be loaded.

    Args:
        checkpoint: the opened preset, of any model.
        tokenizer: of the preset.

    Raises:
        ValueError: naming the file and what is expected there.
    """
    files = checkpoint.files.root
    if MODULES in files and select_modules(read_modules(files), "Pooling"):
        layout = embedding_folder.EmbeddingFolder()
        layout.read_arguments(checkpoint, {})
        layout.read_text_arguments(checkpoint, tokenizer)


def print_table(findings: dict[str, Finding]) -> None:
    """Print a row for each preset.

    Args:
        findings: {name of the preset: finding}.

    Example:
        >>> print_table({"some": Finding("hf://a/b", False, "no model.safetensors ...")})
        preset  repository  commit  weights  fetched  opens
        some    hf://a/b    -       -           0 kB  no: no model.safetensors ...
    """
    rows = [("preset", "repository", "commit", "weights", "fetched", "opens")]
    for name, found in findings.items():
        weights = found.weights[0] if found.weights else "-"
        opens = "yes" if found.opens else f"no: {found.why_not}"
        fetched = f"{found.fetched / 1e3:.0f} kB"
        rows.append((name, found.source, (found.commit or "-")[:8], weights, fetched, opens))
    print(format_table(rows, right=4))


def write_record(path: pathlib.Path, findings: Mapping[str, Finding], source: str) -> None:
    """Write findings and today's date as JSON.

    Args:
        path: of the file.
        findings: {name of the preset: finding}.
        source: of the findings, such as "the hub".
    """
    presets = {name: dataclasses.asdict(findings[name]) for name in sorted(findings)}
    record = {"date": datetime.date.today().isoformat(), "source": source, "presets": presets}
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Args:
        arguments: of the command line; None for those of `sys.argv`.

    Returns:
        1 if a preset does not open, else 0.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="NAME", help="of presets; all if none is given")
    parser.add_argument(
        "--write", type=pathlib.Path, metavar="FILE", help="to write the findings to"
    )
    given = parser.parse_args(arguments)
    findings = {}
    for preset in _chosen(given.names):
        print(f"{preset.name} ...", file=sys.stderr, flush=True)
        findings[preset.name] = check_preset(preset)
    print_table(findings)
    if given.write:
        write_record(given.write, findings, "the hub")
    failed = sum(not found.opens for found in findings.values())
    print(f"{len(findings) - failed} of {len(findings)} open.")
    return 1 if failed else 0


def _chosen(names: Iterable[str]) -> list[PresetInfo]:
    """Return the listed presets of these names, or all, that are on the Hugging Face hub."""
    known = {row.name: row for row in list_presets() if row.source.startswith(_HUB)}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"{', '.join(unknown)}: no preset on the Hugging Face hub has this name.")
    return [known[name] for name in names] if names else list(known.values())


if __name__ == "__main__":
    sys.exit(main())
