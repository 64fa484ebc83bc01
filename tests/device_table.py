"""Compare all tasks and methods on several devices with a single device.

The number of rows is not a multiple of the number of devices. `compare` yields the differences. In
the folder `tests`, `python -c "import device_table; device_table.main('jax', 3)"` prints the table.
For JAX, set XLA_FLAGS=--xla_force_host_platform_device_count=3. "model" is ModelParallel, and
"mirrored" is the MirroredStrategy of TensorFlow.

Answers, and weights after a step, must be equal up to 1e-5, or the call must raise an error that
says what to do. Afterwards, the model must still return answers.
"""

import contextlib
import dataclasses
import sys
import tempfile

ROWS, SIZE = (1, 3, 5, 7), 8
CLOSE = 1e-5
# Parts of the error messages for calls that are not supported on several devices.
ADVICE = ("a multiple of", "Remove", "Pass at least")
TASKS = (
    "SequenceClassifier",
    "SequenceClassifier, pairs",
    "TokenClassifier",
    "TokenClassifier, crf",
    "EntityExtractor",
    "SpanQA",
    "MaskedLM",
    "Pretraining",
    "ReplacedTokenDetection",
    "MultipleChoice",
    "Reranker",
    "TextEmbedder, vectors",
    "TextEmbedder, pairs",
    "TextEmbedder, negatives",
    "SparseEncoder",
    "LateInteraction",
    "FewShotClassifier",
    "ZeroShotClassifier",
    "HybridEmbedder",
    "Distillation",
)
PAIRS = (["a b ab", "c", "c d e a b", "p"], ["d e", "a b", "p", "a b c"])
DATA = {
    "SequenceClassifier": (["a b ab", "", "c d e a b", "p"], [0, 1, 2, 0]),
    "SequenceClassifier, pairs": (PAIRS, [0, 1, 2, 0]),
    "TextEmbedder, pairs": (PAIRS, None),
    "TextEmbedder, negatives": ((*PAIRS, ["c", "f", "a", "d e"]), None),
    "SparseEncoder": (PAIRS, None),
    "FewShotClassifier": (["a b", "c", "a d", "c e"], ["x", "y", "x", "y"]),
    "ZeroShotClassifier": (["a b ab", "c", "c d e a b", "p"], None),
    "HybridEmbedder": (["a b ab", "c", "c d e a b", "p"], None),
    "Distillation": (["a b ab", "c", "c d e a b", "p"], [0, 2, 1, 1]),
}


def devices(kind, count):
    """Create devices, and return a context for models. Call this before using the backend."""
    if kind == "mirrored":
        import tensorflow as tf

        [cpu] = tf.config.list_physical_devices("CPU")
        several = [tf.config.LogicalDeviceConfiguration()] * count
        tf.config.set_logical_device_configuration(cpu, several)
        return lambda: tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)]).scope()
    import keras

    @contextlib.contextmanager
    def distributed():
        found = keras.distribution.list_devices()
        assert len(found) == count, found
        if kind == "jax":
            distribution = keras.distribution.DataParallel(devices=found)
        else:
            shape = (count, 1) if count % 2 else (count // 2, 2)
            mesh = keras.distribution.DeviceMesh(shape, ["batch", "model"], found)
            layout = import_package().Backbone.layout_map(mesh)
            distribution = keras.distribution.ModelParallel(
                layout_map=layout, batch_dim_name="batch", auto_shard_dataset=False
            )
        keras.distribution.set_distribution(distribution)
        try:
            yield
        finally:
            keras.distribution.set_distribution(None)

    return distributed


def import_package():
    import encoder_zoo

    return encoder_zoo


def several(values, count):
    """Repeat the rows of a list, an array or a tuple of columns until there are `count` rows."""
    import numpy as np

    if isinstance(values, tuple):
        return tuple(several(part, count) for part in values)
    if isinstance(values, np.ndarray):
        return np.concatenate([values] * 2)[:count]
    return None if values is None else (list(values) * 2)[:count]


def make(name):
    """Return a tiny model without dropout and with reproducible weights, and its data."""
    import keras

    from encoder_zoo.common.layers import list_layers
    from encoder_zoo.encoders import get_family
    from encoder_zoo.testing import tiny

    ez = import_package()
    keras.utils.set_random_seed(0)
    family, (kind, *_) = get_family("bert"), name.split(", ")
    kept = []
    if kind == "ZeroShotClassifier":
        labels = {"labels": ["entailment", "neutral", "contradiction"]}
        backbone = tiny.backbone(family)
        prepare = ez.SequenceClassifierPreprocessor(tiny.tokenizer(family))
        kept.append(tiny.randomize_weights(ez.SequenceClassifier(backbone, prepare, **labels)))
        model = ez.ZeroShotClassifier(kept[0])
    elif kind == "HybridEmbedder":
        backbone, words = tiny.backbone(family, pooler=False), tiny.tokenizer(family)
        dense = ez.TextEmbedder(backbone, ez.TextEmbedderPreprocessor(words), pooling="cls")
        terms = ez.SparseEncoder(
            backbone, ez.SparseEncoder.record.preprocessor_class(words), pooling="token_weights"
        )
        prepare = ez.LateInteraction.record.preprocessor_class(
            words,
            query_length=None,
            document_length=None,
            expand_queries=False,
            skiplist=[],
            score_first=False,
        )
        tokens = ez.LateInteraction(backbone, prepare, dim=4, similarity_function="meanmaxsim")
        kept += [tiny.randomize_weights(task) for task in (dense, terms, tokens)]
        model = ez.HybridEmbedder(dense, terms, tokens)
    elif kind == "Distillation":
        for _ in range(2):
            prepare = ez.SequenceClassifierPreprocessor(tiny.tokenizer(family))
            task = ez.SequenceClassifier(tiny.backbone(family), prepare, num_classes=3)
            kept.append(tiny.randomize_weights(task))
        kept[0].set_weights([0.7 * weight for weight in kept[0].get_weights()])
        model = ez.Distillation(*kept, objectives=["soft_labels"])
        kept.append(model)
    else:
        family = get_family("electra") if kind == "ReplacedTokenDetection" else family
        cls = getattr(ez, kind)
        if kind == "FewShotClassifier":
            prepare = cls.record.preprocessor_class(tiny.tokenizer(family))
            model = tiny.randomize_weights(cls(tiny.backbone(family), prepare, labels=["x", "y"]))
        else:
            model = tiny.task(family, cls)
        if "crf" in name:
            own = {**cls.tiny_data().arguments, "crf": True}
            model = tiny.randomize_weights(cls(model.backbone, model.preprocessor, **own))
        if kind == "ReplacedTokenDetection":  # the same tokens every time
            ops = keras.ops
            model._sample_tokens = lambda logits: ops.cast(ops.argmax(logits, -1), "int32")
        kept.append(model)
    for task in kept:
        for layer in list_layers(task):
            if isinstance(layer, keras.layers.Dropout):
                layer.rate = 0.0
    data = DATA.get(name)
    if data is None:
        tiny_data = getattr(ez, kind).tiny_data()
        data = tiny_data.x, tiny_data.y
    return model, data


# -- calls, from a model and rows to numbers ------------------------------------------------------


def weights_of(model):
    import keras

    model = getattr(model, "student", model)
    return [keras.ops.convert_to_numpy(weight) for weight in model.trainable_variables]


def compiled(model):
    import keras

    model.compile(optimizer=keras.optimizers.SGD(0.1))
    return model


def fit(model, x, y):
    history = compiled(model).fit(x, y, batch_size=SIZE, epochs=1, verbose=0)
    return history.history["loss"], weights_of(model)


def fit_few_shot(model, x, y):
    history = compiled(model).fit(x, y, batch_size=SIZE, verbose=0)
    return history.history["loss"], weights_of(model)


def fit_dataset(model, x, y):
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices((x,) if y is None else (x, y)).batch(SIZE)
    history = compiled(model).fit(dataset, verbose=0, validation_data=dataset)
    return history.history["loss"], history.history["val_loss"], weights_of(model)


def fit_stream(model, x, y):
    batches = iter([(x,) if y is None else (x, y)])
    history = compiled(model).fit(batches, steps_per_epoch=1, verbose=0)
    return history.history["loss"], weights_of(model)


def _prepared(model, x, y):
    import keras
    import numpy as np

    data = keras.utils.unpack_x_y_sample_weight(model.preprocessor(x, y))
    return tuple(
        part if part is None else keras.tree.map_structure(np.asarray, part) for part in data
    )


def fit_prepared(model, x, y):
    x, y, weight = _prepared(model, x, y)
    history = compiled(model).fit(x, y, sample_weight=weight, batch_size=SIZE, verbose=0)
    return history.history["loss"], weights_of(model)


def train_on_batch(model, x, y):
    x, y, weight = _prepared(model, x, y)
    return compiled(model).train_on_batch(x, y, sample_weight=weight), weights_of(model)


def evaluate(model, x, y):
    return compiled(model).evaluate(x, y, batch_size=4, verbose=0)


def evaluate_few_shot(model, x, y):
    return model.evaluate(x, y)["accuracy"]


def evaluate_prepared(model, x, y):
    x, y, weight = _prepared(model, x, y)
    return compiled(model).evaluate(x, y, sample_weight=weight, batch_size=4, verbose=0)


def test_on_batch(model, x, y):
    x, y, weight = _prepared(model, x, y)
    return compiled(model).test_on_batch(x, y, sample_weight=weight)


def predict(model, x, y):
    return model.predict(x, batch_size=4, verbose=0)


def predict_dataset(model, x, y):
    import tensorflow as tf

    return model.predict(tf.data.Dataset.from_tensor_slices((x,)).batch(4), verbose=0)


def predict_prepared(model, x, y):
    return model.predict(_prepared(model, x, y)[0], batch_size=4, verbose=0)


def predict_on_batch(model, x, y):
    return model.predict_on_batch(_prepared(model, x, y)[0])


def answer(model, x, y):
    questions = x if isinstance(x, tuple) else (x,)
    kind = type(model).__name__
    if kind == "MaskedLM":
        return model.fill_mask([f"{text} [MASK]" for text in x])
    if kind == "EntityExtractor":
        return model.extract_entities(x, ["a", "c"], threshold=0.01)
    if kind in ("TextEmbedder", "LateInteraction", "SparseEncoder"):
        questions = questions[:1]
    if kind == "SparseEncoder":
        return model.embed(*questions).toarray()
    if kind == "SequenceClassifier" and isinstance(x, tuple):
        questions = (x,)
    return getattr(model, model.record.text_method)(*questions)


def explain(model, x, y):
    questions = x if type(model).__name__ == "SpanQA" else (x,)
    return model.explain(*questions)


def hybrid(model, x, y):
    dense, terms, tokens = model.embed(x)
    return dense, terms.toarray(), list(tokens), model.rank(x[0], x)


def zero_shot(model, x, y):
    return model.classify(x, ["a", "b c"]), model.predict_proba(x, ["a", "b c"])


def distil_answer(model, x, y):
    return model.student.predict(x, verbose=0)


def round_trip(model, x, y):
    """Save and load a preset on these devices, and return the answers of the loaded model."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_to_preset(folder)
        again = type(model).from_preset(folder)
    find = {"HybridEmbedder": hybrid}.get(type(model).__name__, answer)
    return find(again, x, y) if hasattr(model, "record") or find is hybrid else None


TRAINING = (fit, fit_dataset, fit_stream, fit_prepared, train_on_batch)
COMMON = (
    *TRAINING,
    evaluate,
    evaluate_prepared,
    test_on_batch,
    predict,
    predict_dataset,
    predict_prepared,
    predict_on_batch,
    answer,
    round_trip,
)
CALLS = {
    "SequenceClassifier": (*COMMON, explain),
    "TokenClassifier": (*COMMON, explain),
    "EntityExtractor": tuple(c for c in COMMON if c is not fit_dataset),
    "SpanQA": tuple(c for c in (*COMMON, explain) if c is not fit_dataset),
    "MultipleChoice": tuple(c for c in COMMON if c not in (fit_dataset, predict_dataset)),
    "MaskedLM": tuple(c for c in COMMON if c not in (predict, predict_dataset)),
    "FewShotClassifier": (fit_few_shot, evaluate_few_shot, answer, round_trip),
    "ZeroShotClassifier": (zero_shot,),
    "HybridEmbedder": (hybrid, round_trip),
    "Distillation": (fit, fit_dataset, evaluate, distil_answer),
    "Pretraining": tuple(c for c in COMMON if c not in (answer, round_trip)),
}


def calls_of(name):
    return CALLS.get(name.split(", ")[0], COMMON)


# -- comparing ------------------------------------------------------------------------------------


def outcome(call, model, x, y):
    """Return the result of a call, or the error that it raises."""
    import keras

    keras.utils.set_random_seed(1)
    try:
        return call(model, x, y)
    except Exception as error:
        return error


def flat(values):
    """Yield (path, leaf) of nested answers."""
    import numpy as np

    if isinstance(values, dict):
        for name, value in values.items():
            yield from ((f".{name}{path}", leaf) for path, leaf in flat(value))
    elif isinstance(values, list | tuple):
        for i, value in enumerate(values):
            yield from ((f"[{i}]{path}", leaf) for path, leaf in flat(value))
    else:
        yield "", values if isinstance(values, str) else np.asarray(values)


def difference(found, expected):
    """Return the largest difference of nested answers, or describe a different structure."""
    import numpy as np

    found, expected = list(flat(found)), list(flat(expected))
    if [path for path, _ in found] != [path for path, _ in expected]:
        return "other structure"
    largest = 0.0
    for (path, a), (_, b) in zip(found, expected, strict=True):
        if isinstance(a, str) or isinstance(b, str) or a.dtype.kind not in "fiub":
            if str(a) != str(b):
                return f"{path}: {a} instead of {b}"
        elif a.shape != b.shape:
            return f"{path}: shape {a.shape} instead of {b.shape}"
        elif a.size:
            gap = np.abs(np.float64(a) - np.float64(b)) / np.maximum(1.0, np.abs(np.float64(b)))
            largest = max(largest, np.nan_to_num(gap, nan=np.inf).max())
            if np.isnan(np.float64(a)).any() and np.isnan(np.float64(b)).any():
                largest = 0.0
    return float(largest)


def is_right(result):
    return isinstance(result, float) and result <= CLOSE


def outcomes(name, scope, rows, calls):
    """Run all calls. Return {(call, rows): outcome}, and the outcomes of two calls afterwards."""
    found = {}
    with scope():
        model, (x, y) = make(name)
        tasks = [m for m in (getattr(model, "student", None), model) if m is not None]
        start = [task.get_weights() if hasattr(task, "get_weights") else None for task in tasks]
        for call in calls:
            for count in rows:
                for task, weights in zip(tasks, start, strict=True):
                    if weights is not None and len(task.get_weights()) == len(weights):
                        task.set_weights(weights)
                found[call.__name__, count] = outcome(
                    call, model, several(x, count), several(y, count)
                )
        for task, weights in zip(tasks, start, strict=True):
            if weights is not None and len(task.get_weights()) == len(weights):
                task.set_weights(weights)
        after = {c.__name__: outcome(c, model, several(x, 4), several(y, 4)) for c in calls[-2:]}
    return found, after


def compare(name, scope, rows=ROWS, calls=None):
    """Yield (call, rows, difference or error)."""
    calls = calls or calls_of(name)
    one, _ = outcomes(name, contextlib.nullcontext, rows, calls)
    many, after = outcomes(name, scope, rows, calls)
    for key, expected in one.items():
        found = many[key]
        if isinstance(expected, Exception) and isinstance(found, Exception):
            both = f"both: {repr(expected)[:200]} and {repr(found)[:200]}"
            result = 0.0 if repr(expected) == repr(found) else both
        elif isinstance(found, Exception):
            result = found
        elif isinstance(expected, Exception):
            result = f"one device alone: {expected!r}"
        else:
            result = difference(found, expected)
        yield *key, result
    for call, result in after.items():
        yield f"{call}, afterwards", 4, result if isinstance(result, Exception) else 0.0


def is_clear(result):
    """Return whether an error says what to do."""
    return type(result) is ValueError and any(advice in str(result) for advice in ADVICE)


def main(kind, count, names=TASKS, rows=ROWS, calls=None):
    """Print the table. Exit with status 1 if a result is wrong."""
    scope = devices(kind, count)
    ez = import_package()
    # Without packing, a single device uses the same batches as several devices.
    for cls in (ez.SequenceClassifier, ez.Reranker):
        cls.record = dataclasses.replace(cls.record, packs_batches=False)
    wrong = 0
    for name in names:
        for call, given, result in compare(
            name, scope, rows, calls and [globals()[c] for c in calls]
        ):
            bad = not (is_right(result) or is_clear(result))
            wrong += bad
            if bad or not is_right(result):
                text = repr(result)[:300].replace("\n", " ")
                print("WRONG" if bad else "error", name, call, given, text, sep=" | ", flush=True)
        print("done", name, flush=True)
    print(f"{wrong} wrong of {kind} {count}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *([sys.argv[3].split(";")] if sys.argv[3:] else []))
