"""Check that the presets in `list_presets()` can be opened, without downloading them.

    python tests/check_known.py [NAME ...] [--write FILE]

This script needs a network. For every listed Hugging Face repository, it opens the configuration,
the tokenizer files and the headers of the weight files, like `from_preset`, which takes a few
hundred kilobytes. It prints the result or the error of each preset, and exits with status 1 if a
preset cannot be opened. `--write` stores the results. The latest results are in
`tests/recorded/known_presets.json`.
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
from encoder_zoo.presets.files.folder_files import FolderFiles, Safeguards
from encoder_zoo.presets.formats import embedding_folder
from encoder_zoo.presets.formats.checkpoint import Checkpoint
from encoder_zoo.presets.formats.preset_files import MODULES
from encoder_zoo.presets.formats.sentence_transformers import read_modules, select_modules
from encoder_zoo.presets.hub_requests import Unreachable, get_endpoint
from encoder_zoo.presets.opening import open_files
from encoder_zoo.presets.registry import PresetInfo, format_table, list_presets
from encoder_zoo.presets.restoring import check_all_used, match_backbone

T = TypeVar("T")
_HUB = "hf://"
_WEIGHTS = (".safetensors", ".bin", ".h5")


@dataclasses.dataclass
class Finding:
    """The result for a preset.

    Attributes:
        source: String. Address of the repository.
        opens: Boolean. Whether `from_preset` can load the preset.
        why_not: Optional string. Error message.
        commit: Optional string. The checked commit.
        weights: Names of the weight files.
        family: Optional string. Family of the model.
        parameters: Optional integer. Number of weights in the encoder and the pooler.
        fetched: Integer. Number of downloaded bytes.
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
    """Compare a preset on the hub with its entry in the list.

    Args:
        preset: Row of `list_presets()` with a source `hf://...`.

    Returns:
        `Finding`. Errors are stored and not raised.
    """
    found = check_source(preset.source)
    for field in ("family", "parameters"):
        listed, seen = getattr(preset, field), getattr(found, field)
        if found.opens and seen != listed:
            found.opens = False
            found.why_not = f"{field} is {seen} there, but {listed} in the list"
    return found


def check_source(source: str) -> Finding:
    """Check a repository on the hub.

    Args:
        source: String. `hf://organisation/name[@revision]`.

    Returns:
        `Finding`. Errors are stored and not raised.
    """
    found = Finding(source)
    try:
        with open_remote(source) as files:
            found.commit = files.commit
            found.weights = tuple(n for n in files.listed if n.endswith(_WEIGHTS))
            try:
                files.safeguards = Safeguards(verify=False)
                checkpoint = open_files(files)
                found.family = checkpoint.family.name
                found.parameters = check_loads(checkpoint)
                found.opens = True
            finally:
                found.fetched = files.fetched
    except Exception as error:  # errors of the hub, the connection or the files
        found.why_not = " ".join(str(error).split()) or type(error).__name__
    return found


_BLOCK = 64 * 1024  # the header of 400 tensors


class RemoteFolder(FolderFiles):
    """Open files on the hub, and only download the blocks of 64 KB that are read.

    Args:
        repository: String. `organisation/name`.
        commit: String. Commit of the files.
        sizes: Dict {file name: number of bytes} of the files to open.
        endpoint: Optional string. Address of the hub. If None, the default of huggingface_hub is
            used.

    Attributes:
        path: The repository, for error messages.
        listed: Names of the files that are not in subfolders.

    Raises:
        FileNotFoundError: If the repository or the commit does not exist on the hub.
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
        """Return an upper bound for the downloaded bytes. The last block can be shorter."""
        return sum(
            min(cache.miss_count * _BLOCK, self._sizes[name])
            for name, cache in self._caches.items()
        )

    def check_unchanged(self) -> None:
        """Do nothing, because a commit does not change."""

    def _open(self, name: str) -> None:
        if name not in self._sizes:
            raise FileNotFoundError(self.path / name)
        file = self.enter_context(
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
    """Open the files in a commit of a preset on the hub, without downloading them.

    Args:
        address: String. See `download_from_hugging_face`.

    Raises:
        ValueError: If the hub cannot be reached. See also `download_from_hugging_face`.
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

    The tokenizer is created, and the modules of text embeddings are checked. The backbone is
    created without memory for the weights. Their names and shapes are compared with the checkpoint.

    Args:
        checkpoint: The opened `Checkpoint`.

    Returns:
        Number of weights in the encoder and, if the family has one, the pooler.

    Raises:
        ValueError: If there is no tokenizer, or if weights are missing, unexpected or have a
            different shape.
    """
    check_modules(checkpoint, loading._require_tokenizer(checkpoint))
    pooler = {"pooler": checkpoint.family.pooler is not None}

    def build() -> tuple[int, set[str]]:
        backbone, matched = match_backbone(checkpoint, pooler, True, checkpoint.family.backbone)
        return backbone.count_params(), set(matched)

    parameters, used = without_memory(build)
    check_all_used(checkpoint, used)
    return parameters


def without_memory(build: Callable[[], T]) -> T:
    """Call a function that builds models, so that the weights have shapes but no values.

    The models cannot be used afterwards. Returns the result of the function.

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
    """Check that a preset with a `modules.json` for text embeddings can be loaded.

    Args:
        checkpoint: The opened `Checkpoint` of any model.
        tokenizer: Tokenizer of the preset.

    Raises:
        ValueError: If a module is not supported. The message names the file.
    """
    files = checkpoint.files.root
    if MODULES in files and select_modules(read_modules(files), "Pooling"):
        layout = embedding_folder.EmbeddingFolderFormat()
        layout.read_arguments(checkpoint, {})
        layout.read_preprocessor_arguments(checkpoint, tokenizer)


def print_table(findings: dict[str, Finding]) -> None:
    """Print a row for each preset.

    Args:
        findings: Dict {preset name: `Finding`}.

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
    """Write the results and the current date to a JSON file.

    Args:
        path: Path of the file.
        findings: Dict {preset name: `Finding`}.
        source: String. Source of the results, such as "the hub".
    """
    presets = {name: dataclasses.asdict(findings[name]) for name in sorted(findings)}
    record = {"date": datetime.date.today().isoformat(), "source": source, "presets": presets}
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script.

    Args:
        arguments: Optional list of strings. Command line arguments. If None, `sys.argv` is used.

    Returns:
        1 if a preset cannot be opened, otherwise 0.
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
    """Return the listed presets on the Hugging Face hub, or only the presets with these names."""
    known = {row.name: row for row in list_presets() if row.source.startswith(_HUB)}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"{', '.join(unknown)}: no preset on the Hugging Face hub has this name.")
    return [known[name] for name in names] if names else list(known.values())


if __name__ == "__main__":
    sys.exit(main())
