"""Read and write the files that all models of sentence-transformers have in common.

The file `modules.json` lists the model modules, for example an encoder, pooling, dense layers and
normalization. The module files are in the root or in a subfolder. Classes in `modules.json` are
never imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from encoder_zoo.common.lazy import keras
from encoder_zoo.common.validation import one_of
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.presets.files.folder_files import FolderFiles, Subfolder, is_plain
from encoder_zoo.presets.files.json_data import COUNT, read_field
from encoder_zoo.presets.formats.preset_files import (
    CONFIG,
    MODEL_SETTINGS,
    MODULES,
    ROUTER,
    TRANSFORMER_SETTINGS,
)
from encoder_zoo.presets.formats.stored_tokenizer import check_max_length

if TYPE_CHECKING:
    import keras

ENCODERS = ("Transformer", "MLMTransformer")  # MLMTransformer up to version 5.3
MODULE_KINDS = ("Transformer", "Pooling", "Dense", "Normalize")
STATIC = "StaticEmbedding"  # a table of token vectors instead of an encoder
MODULE_KINDS += ("MLMTransformer", "SpladePooling", "MultiVectorMask", STATIC, "Router")
# Modules that can be used in Router routes. IDF is the older name of SparseStaticEmbedding.
ROUTED = (*ENCODERS, "SpladePooling", "SparseStaticEmbedding", "IDF")
_TYPE = re.compile(r"(?:sentence_transformers|pylate)(?:\.\w+)*\.(\w+)")
_TEXT_OUTPUT = "last_hidden_state"
# {task in transformers: output name for a Transformer}
_OUTPUTS = {
    "feature-extraction": "token_embeddings",
    "fill-mask": "token_embeddings",
    "sequence-classification": "scores",
}
# Fields to read from `sentence_bert_config.json`.
_READ = ("max_seq_length", "do_lower_case", "transformer_task", "modality_config")
_READ += ("module_output_name",)
# Fields that are only read for late interaction. For other models they must be null.
ROLE_FIELDS = ("query_length", "document_length", "query_expansion")
# {field: why any value is accepted}
IRRELEVANT_FIELDS = {
    "unpad_inputs": "packs texts without padding, with equal outputs",
    "backend": "choice of a library",
    "model_name_or_path": "for information",
    "model_kwargs.attn_implementation": "choice of a kernel",
    "model_kwargs.device_map": "placement of the weights",
    "model_kwargs.low_cpu_mem_usage": "loading of the weights",
    "model_kwargs.use_safetensors": "choice between equal files",
    "model_kwargs.trust_remote_code": "code in a folder is never run",
    "model_kwargs.torch_dtype": "rounding of weights, available as dtype=",
    "model_kwargs.dtype": "rounding of weights, available as dtype=",
    "processor_kwargs.model_max_length": "read",
    "processor_kwargs.use_fast": "both tokenizers have the same ids",
    "processor_kwargs.trust_remote_code": "code in a folder is never run",
    "processor_kwargs.padding_side": "no token attends to padding",
    "config_kwargs.trust_remote_code": "code in a folder is never run",
    "config_kwargs.use_cache": "used by decoders only",
}
# Fields to read from `config_sentence_transformers.json`, including PyLate fields.
MODEL_FIELDS = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim")
MODEL_FIELDS += ("max_active_dims", "activation_fn", "model_type", "query_prefix")
MODEL_FIELDS += ("document_prefix", "do_query_expansion", "attend_to_expansion_tokens")
MODEL_FIELDS += ("skiplist_words", *ROLE_FIELDS)
# {field: why any value is accepted}
IRRELEVANT_MODEL_FIELDS = {
    "__version__": "for information",
    "requirements": "versions of packages that are not used here",
    "keep_in_fp32_modules": "used with half precision, available as dtype=",
}
# Names of fields of `sentence_bert_config.json` before version 5.4.
_OLD_NAMES = {
    "model_args": "model_kwargs",
    "tokenizer_args": "processor_kwargs",
    "config_args": "config_kwargs",
}


class Module(NamedTuple):
    """Entry of `modules.json`.

    Attributes:
        kind: String. The class name without the package.
        path: String. Subfolder path, or "" for the root.
    """

    kind: str
    path: str


def find_encoder_files(files: FolderFiles) -> FolderFiles:
    """Find the encoder files, in the root or in a subfolder such as `0_Transformer`.

    For a Router, return the files of the document encoder.

    Args:
        files: `FolderFiles`. The files of the preset. Unsupported modules are allowed.

    Returns:
        `FolderFiles` for the encoder.

    Raises:
        ValueError: If router_config.json is invalid. See `read_routes`.
    """
    if (routes := read_routes(files)) is not None:
        folder = routes.document[0].path
        return Subfolder(files, folder) if folder else files
    first = read_first_module(files)
    path, matched = first.get("path"), _TYPE.fullmatch(str(first.get("type")))
    is_encoder = matched is not None and matched[1] in ENCODERS
    if is_encoder and is_plain(path) and f"{path}/{CONFIG}" in files:
        return Subfolder(files, path)
    return files


def read_first_module(files: FolderFiles) -> Mapping:
    """Return the first entry of `modules.json` without validating it, or {} for a missing file."""
    entries = files.read_json_array(MODULES) if MODULES in files else []
    return entries[0] if entries and isinstance(entries[0], dict) else {}


class Routes(NamedTuple):
    """The modules of a Router, which has separate routes for queries and documents.

    Attributes:
        query: List of `Module` objects for queries.
        document: List of `Module` objects for documents. The first module is an encoder.
        default: String. Route for texts without a role, "query" or "document".
    """

    query: Sequence[Module]
    document: Sequence[Module]
    default: str


def read_routes(files: FolderFiles) -> Routes | None:
    """Read the Router routes from `router_config.json`.

    Args:
        files: `FolderFiles`. The files of the whole folder.

    Returns:
        A `Routes` object, or None for a model without a Router.

    Raises:
        ValueError: If a route is missing or malformed, or if a module is not supported.

    Source: sentence-transformers 6.2, `base/modules/router.py`.
    """
    first = read_first_module(files)
    matched = _TYPE.fullmatch(str(first.get("type")))
    if matched is None or matched[1] != "Router":
        return None
    count = len(files.read_json_array(MODULES))
    if count != 1:
        raise ValueError(
            f"{files.path / MODULES} has {count} modules. Expected no modules after the Router."
        )
    if first.get("path") != "":
        raise invalid(f"{files.path / MODULES}: [0]: path", first.get("path"), "'' for a Router")
    in_config = ROUTER not in files and CONFIG in files and "structure" in files.read_json(CONFIG)
    name = CONFIG if in_config else ROUTER
    config, path = files.read_json(name), files.path / name
    for field in ("types", "structure", "parameters"):
        if not isinstance(config.get(field, {}), dict):
            raise invalid(f"{path}: {field}", config[field], "an object")
    parameters = config.get("parameters", {})
    mappings, default = parameters.get("route_mappings") or {}, parameters.get("default_route")
    if not isinstance(mappings, dict) or not all(
        isinstance(name, str | None) for name in mappings.values()
    ):
        raise invalid(
            f"{path}: route_mappings", mappings, "an object whose values are strings or null"
        )
    if not isinstance(default, str | None):
        raise invalid(f"{path}: default_route", default, "a string or null")
    routes = {role: _check_route(config, role, path) for role in ("query", "document")}
    if routes["document"][0].kind not in ENCODERS:
        raise ValueError(
            f"{path}: the first module for documents is {routes['document'][0].kind}. Expected one "
            f"of {', '.join(ENCODERS)}."
        )
    if default is None and parameters.get("allow_empty_key", True):
        default = next(iter(config["structure"]))
    named = {_get_route_name(config, role, path): role for role in ("query", "document")}
    return Routes(routes["query"], routes["document"], named.get(default, "document"))


def _get_route_name(config: Mapping, role: str, path: object) -> str:
    """Return the name of the route for a role. The role is "query" or "document"."""
    structure, mappings = config.get("structure", {}), {}
    for key, route in (config.get("parameters", {}).get("route_mappings") or {}).items():
        try:
            mappings[ast.literal_eval(key)] = route
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise ValueError(
                f"{path}: route_mappings contains the key {quote(key)}. Expected a pair such as "
                "\"('query', 'text')\"."
            ) from None
    for key in ((role, "text"), (role, None), (None, "text"), (None, None)):
        if key in mappings:
            found = mappings[key]
            break
    else:
        found = next((name for name in (role, "text") if name in structure), None)
    if found not in structure:
        raise ValueError(
            f"{path} has no route for {'queries' if role == 'query' else 'documents'}. Expected "
            f"{role!r} in `structure` or in `route_mappings`."
        )
    return found


def _check_route(config: Mapping, role: str, path: object) -> list[Module]:
    """Return the modules on the route for a role, after validating them."""
    name, modules = _get_route_name(config, role, path), []
    ids = config["structure"][name]
    if not isinstance(ids, list) or not ids:
        raise invalid(f"{path}: structure: {name}", ids, "a list of module names")
    for i, module in enumerate(ids):
        kind = config.get("types", {}).get(module) if isinstance(module, str) else None
        kind = _check_kind(kind, ROUTED, f"{path}: types: {quote(module)}")
        if not (is_plain(module) or (module == "" and i == 0)):
            raise invalid(
                f"{path}: structure: {name}", module, f"a subfolder such as '{role}_{i}_{kind}'"
            )
        modules.append(Module(kind, module))
    return modules


def _check_kind(given: object, known: Sequence[str], what: str) -> str:
    """Validate a module class, and return the class name without the package."""
    matched = _TYPE.fullmatch(given) if isinstance(given, str) else None
    if matched is None or matched[1] not in known:
        raise ValueError(
            f"{what} is {quote(given)}, but custom classes are never imported. Expected one of "
            f"{', '.join(known)} in sentence_transformers."
        )
    return matched[1]


def read_modules(files: FolderFiles) -> list[Module]:
    """Read and validate `modules.json`.

    Args:
        files: `FolderFiles`. The files of the whole folder.

    Returns:
        A list of `Module` objects.

    Raises:
        ValueError: If a module is malformed or not supported.
    """
    modules = []
    for i, entry in enumerate(files.read_json_array(MODULES)):
        field = f"{files.path / MODULES}: [{i}]"
        if not isinstance(entry, dict):
            raise invalid(field, entry, "an object with type and path")
        kind = _check_kind(entry.get("type"), MODULE_KINDS, f"{field}: type")
        path = entry.get("path")
        path = "" if path == "." and kind == STATIC else path
        if not (is_plain(path) or (path == "" and kind in (*ENCODERS, STATIC, "Router"))):
            raise invalid(f"{field}: path", path, f"a subfolder such as '{i}_{kind}'")
        modules.append(Module(kind, path))
    return modules


def read_embedding_modules(files: FolderFiles) -> list[Module]:
    """Read and validate `modules.json` for a text embedding model.

    Args:
        files: `FolderFiles`. The files of the whole folder.

    Returns:
        A list of `Module` objects.

    Raises:
        ValueError: If the modules or their order are not supported for text embeddings. See also
            `read_modules`.
    """
    modules = read_modules(files)
    kinds = [module.kind for module in modules]
    first = f"(Transformer Pooling|{STATIC})"
    if not re.fullmatch(rf"{first}( Dense)*( Normalize)?", " ".join(kinds)):
        raise ValueError(
            f"{files.path / MODULES}: the modules are {', '.join(kinds) or 'none'}. Expected a "
            f"Transformer and a Pooling, or a {STATIC} instead of both, followed by any number of "
            "Dense and at most one Normalize."
        )
    return modules


def check_transformer(files: FolderFiles, task: str, has_roles: bool = False) -> None:
    """Check that all settings of a Transformer module are supported.

    Args:
        files: `FolderFiles`. The files of the encoder.
        task: String. The name of a task in transformers, such as "feature-extraction".
        has_roles: Boolean. Whether the model has separate settings for queries and documents.
            Defaults to False.

    Raises:
        ValueError: If a field value is not supported.
    """
    name, settings = read_transformer_settings(files)
    modalities = settings.get("modality_config") or {}
    text = modalities.get("text", {}) if isinstance(modalities, dict) else modalities
    output = text.get("method_output_name", _TEXT_OUTPUT) if isinstance(text, dict) else text
    for field, value, expected in (
        ("transformer_task", settings.get("transformer_task", task), task),
        ("modality_config", output, _TEXT_OUTPUT if task == "feature-extraction" else output),
        (
            "module_output_name",
            settings.get("module_output_name") or _OUTPUTS[task],
            _OUTPUTS[task],
        ),
    ):
        if value != expected:
            raise invalid(f"{files.path / name}: {field}", value, f"{expected!r}")
    known = (*_READ, *ROLE_FIELDS) if has_roles else _READ
    for field, name_today, value in _flatten_settings(settings):
        decided = name_today in known or name_today in IRRELEVANT_FIELDS
        if not decided and value not in (None, False, [], {}):
            raise ValueError(
                f"{files.path / name}: {field} is {quote(value)}, which is not supported. Expected "
                "null."
            )


def _flatten_settings(settings: Mapping) -> Iterator[tuple[str, str, object]]:
    """Yield the name, current name and value of all fields in `sentence_bert_config.json`.

    The fields of inner objects, such as `model_kwargs`, are yielded separately.
    """
    for name, value in settings.items():
        name_today = _OLD_NAMES.get(name, name)
        if name_today in _OLD_NAMES.values() and isinstance(value, dict):
            for inner in value:
                yield f"{name}: {inner}", f"{name_today}.{inner}", value[inner]
        else:
            yield name, name_today, value


def read_transformer_settings(files: FolderFiles) -> tuple[str, dict]:
    """Read `sentence_bert_config.json`, and return the file name and the content.

    If the file does not exist, the content is {}.

    Args:
        files: `FolderFiles`. The files of the encoder.
    """
    name = next((name for name in TRANSFORMER_SETTINGS if name in files), None)
    return (name, files.read_json(name)) if name else (TRANSFORMER_SETTINGS[0], {})


def read_length(files: FolderFiles) -> int | None:
    """Return the maximum sequence length, or None if no file contains a length.

    Args:
        files: `FolderFiles`. The files of the encoder.

    Raises:
        ValueError: If `max_seq_length` is not an integer greater than 2.

    Source: sentence-transformers 6.2, `base/modules/transformer.py`. In versions before 5.4,
    `models/Transformer.py`.
    """
    name, settings = read_transformer_settings(files)
    for field in ("processor_kwargs", "tokenizer_args"):
        own = settings.get(field)
        if isinstance(own, dict) and (length := own.get("model_max_length")) is not None:
            return check_max_length(length, f"{files.path / name}: {field}: model_max_length")
    if (length := settings.get("max_seq_length")) is not None:
        return check_max_length(length, f"{files.path / name}: max_seq_length")
    return read_tokenizer_length(files)


def read_tokenizer_length(files: FolderFiles) -> int | None:
    """Return the maximum length in `tokenizer_config.json`, or None if the file contains no length.

    Args:
        files: `FolderFiles`. The files of the encoder or the static table.
    """
    name = "tokenizer_config.json"
    length = files.read_json(name).get("model_max_length") if name in files else None
    field = f"{files.path / name}: model_max_length"
    return None if length is None else check_max_length(length, field)


def check_case(files: FolderFiles, tokenizer) -> None:
    """Check that a tokenizer lowercases texts if `do_lower_case` is true.

    Args:
        files: `FolderFiles`. The files of the encoder.
        tokenizer: Tokenizer from the same files.

    Raises:
        ValueError: If `do_lower_case` is true, but the tokenizer keeps uppercase letters.
    """
    name, settings = read_transformer_settings(files)
    if settings.get("do_lower_case") and not getattr(tokenizer, "lowercase", False):
        cure = "Set do_lower_case to false, and lowercase all texts before passing them"
        if hasattr(tokenizer, "strip_accents"):
            cure = 'Write "do_lower_case": true, "strip_accents": false into tokenizer_config.json'
        raise ValueError(
            f"{files.path / name}: do_lower_case is true, but the tokenizer keeps uppercase "
            f"letters. {cure}."
        )


def read_prompts(files: FolderFiles) -> dict[str, object]:
    """Read the prompts in `config_sentence_transformers.json`.

    Args:
        files: `FolderFiles`. The files of the whole folder.

    Returns:
        A dict of the preprocessor arguments `prompts` and `default_prompt`, without empty values.

    Raises:
        ValueError: If `prompts` is not a JSON object with strings, or if it does not contain
            `default_prompt_name`.
    """
    settings, path = read_model_settings(files), files.path / MODEL_SETTINGS
    default, prompts = settings.get("default_prompt_name"), settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(
        isinstance(text, str | type(None)) for text in prompts.values()
    ):
        raise invalid(f"{path}: prompts", prompts, "an object that maps names to strings")
    # For models without prompts, sentence-transformers writes empty prompts with these names.
    empty = {n for n, text in prompts.items() if not text and n in ("query", "document")}
    prompts = {n: text or "" for n, text in prompts.items() if n not in empty or n == default}
    if default is not None and not (isinstance(default, str) and default in prompts):
        expected = "null for a model without prompts"
        if prompts:
            expected = f"one of the prompts {', '.join(prompts)}"
        raise invalid(f"{path}: default_prompt_name", default, expected)
    found = {"prompts": prompts, "default_prompt": default}
    return {name: value for name, value in found.items() if value}


def read_model_settings(files: FolderFiles) -> dict:
    """Read `config_sentence_transformers.json`. Return {} for a missing file.

    Raises:
        ValueError: If an unknown field is set, because this could change the vectors.
    """
    settings = files.read_json(MODEL_SETTINGS) if MODEL_SETTINGS in files else {}
    for name, value in settings.items():
        if name not in (*MODEL_FIELDS, *IRRELEVANT_MODEL_FIELDS) and value:
            raise ValueError(
                f"{files.path / MODEL_SETTINGS}: the field {quote(name)} is unknown and could "
                f"change the vectors. Expected {', '.join(MODEL_FIELDS)}."
            )
    return settings


def read_similarity(files: FolderFiles, known: Sequence[str]) -> str:
    """Read the similarity in `config_sentence_transformers.json`.

    Args:
        files: `FolderFiles`. The files of the whole folder.
        known: Sequence of strings. The supported similarities. The first similarity is the default.

    Raises:
        ValueError: If the similarity is not in `known`.
    """
    path = files.path / MODEL_SETTINGS
    return read_field(
        read_model_settings(files), "similarity_fn_name", one_of(*known), path, known[0]
    )


def read_count(files: FolderFiles, field: str) -> int | None:
    """Read an integer from `config_sentence_transformers.json`. Return None for a missing field.

    Args:
        files: `FolderFiles`. The files of the whole folder.
        field: String. "truncate_dim" or "max_active_dims".

    Raises:
        ValueError: If the value of `field` is not a positive integer.
    """
    return read_field(read_model_settings(files), field, COUNT, files.path / MODEL_SETTINGS)


def select_modules(modules: Sequence[Module], kind: str) -> list[Module]:
    """Return the modules of one class."""
    return [module for module in modules if module.kind == kind]


def make_modules_json(modules: Sequence[tuple[str, str]]) -> list[dict[str, object]]:
    """Create the contents of `modules.json`.

    Args:
        modules: Sequence of tuples (path, class name).
    """
    return [
        {"idx": i, "name": str(i), "path": path, "type": kind}
        for i, (path, kind) in enumerate(modules)
    ]


def make_length_json(length: int) -> dict[str, object]:
    """Create the contents of `sentence_bert_config.json`."""
    return {"max_seq_length": length, "do_lower_case": False}


def make_settings_json(
    task: keras.Model, model_type: str, **counts: int | None
) -> dict[str, object]:
    """Create the contents of `config_sentence_transformers.json`.

    Args:
        task: Task with a `similarity_function`.
        model_type: String. The class name in sentence-transformers.
        **counts: Optional integers for the fields of `read_count`. Fields with the value None are
            omitted.
    """
    preprocessor = task.preprocessor
    return {
        "model_type": model_type,
        "prompts": preprocessor.prompts if preprocessor else {},
        "default_prompt_name": preprocessor.default_prompt if preprocessor else None,
        "similarity_fn_name": task.similarity_function,
        **{name: count for name, count in counts.items() if count},
    }
