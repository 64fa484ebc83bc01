"""Distill a large teacher model into a small student model.

Comments use these letters for shapes: B batch, L sequence, C classes.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any, Unpack

import keras
from keras import ops

from encoder_zoo.common.arguments import LayerArguments, PredictOptions
from encoder_zoo.common.validation import (
    NonNegativeFloat,
    PositiveInt,
    Temperature,
    validate_arguments,
)
from encoder_zoo.common.weights_lock import share_weights_lock
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.inputs import select_backbone_inputs
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.tasks.base.task import Task
from encoder_zoo.tasks.distillation import distillation_preprocessor as pairing
from encoder_zoo.tasks.distillation import objectives as learned
from encoder_zoo.tasks.distillation.distillation_preprocessor import (
    TEACHER,
    TEACHER_POSITIONS,
    get_backbone,
    select_teacher_inputs,
)
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor
from encoder_zoo.tasks.training.objective import Objective
from encoder_zoo.tasks.training.sources import ArrayData
from encoder_zoo.tasks.training.text_model import TextModel


class Distillation(TextModel):
    """Train a small student model to reproduce a large teacher model.

    Call `fit` with the same inputs as for the student. Labels are optional, because the teacher can
    label the texts. Only the student is trained. The teacher runs without dropout, and is neither
    changed nor saved. The training history contains the mean of each objective. To evaluate the
    student, use `student.evaluate`. After training, the student is a normal task:

        teacher = ez.Classifier.from_preset("bert_base_en_uncased")
        teacher.fit(texts, y)
        student = ez.Classifier.from_preset("bert_nano_en_uncased")
        distillation = ez.Distillation(teacher, student)
        distillation.fit(texts, y, epochs=3)
        distillation.fit(more_texts, epochs=3)
        student.save_to_preset("my_student")

    A backbone can also be distilled into another backbone, on any texts. Create a task from the
    student afterwards:

        general = ez.Distillation(teacher.backbone, backbone, preprocessor)
        general.fit(corpus)
        student = ez.Classifier(backbone, preprocessor, labels=labels)

    The arguments and defaults for `compile` are the same as for the student. The loss and the
    metrics compare the student with the labels. Without labels, the metrics compare the student
    with the teacher.

    If the student is a masked language model, it is also trained on masked tokens, and the teacher
    can be any model. A teacher with a different tokenizer reads the text without masks. Each token
    of the student is then compared with the teacher's token that ends at the same character:

        general = ez.Distillation(teacher, ez.MaskedLM(...), objectives=["hidden_states"])

    Args:
        teacher: The trained task or backbone to distill, from any family.
        student: The task or backbone to train. A task must be of the same kind as the teacher. If
            the student has no classes, the teacher's classes will be used.
        preprocessor: Preprocessor for raw text. Only needed if the student is a backbone. If None,
            the teacher's preprocessor will be used.
        objectives: List of objectives to add to the loss. "soft_labels" trains the student on the
            teacher's answers. "hidden_states" compares the embeddings, and the output of each
            student block with the output of a teacher block. These teacher blocks are evenly
            spaced. If the widths differ, a linear map is learned. "relations" compares query-key
            and value-value relations in the last block, for any width and depth of the student. If
            None, "soft_labels" is used for two tasks, and "relations" otherwise.
        temperature: Float. Temperature for soft labels. Defaults to 2.0.
        label_weight: Float. Weight for the loss on true labels and on masked tokens. Defaults to
            0.5.
        relation_heads: Integer. Number of parts that queries, keys and values are split into for
            "relations". If None, the number of attention heads is used, which must be equal for
            both models.

    Call arguments:
        inputs: Dict. The inputs to the model, as returned from the preprocessor.

    Returns:
        Dict with the value of each objective per text (B,) or per token (B, L). With soft labels,
        the dict also contains the student's logits as "logits" and the teacher's logits as
        "teacher".

    Raises:
        ValueError: If the teacher and the student share weights, if an objective compares tokens
            and the tokenizers or lengths differ, if the answers are of different kinds, or if the
            numbers of attention heads differ and `relation_heads` is None.

    Source: Hinton et al. 2015, Distilling the Knowledge in a Neural Network, section 2, and section
    4 for the default temperature and label weight. Jiao et al. 2020, TinyBERT, section 3. Mukherjee
    and Awadallah 2020, XtremeDistil, section 4, for texts without labels. Wang et al. 2020, MiniLM,
    section 3. Wang et al. 2021, MiniLMv2, section 3.1.

    Example:
        >>> import encoder_zoo as ez
        >>> teacher = ez.Classifier.from_preset("roberta_nano_en", labels=["bad", "good"])
        >>> student = ez.Classifier.from_preset("bert_nano_en_uncased")
        >>> history = ez.Distillation(teacher, student).fit(["A film.", "A good one."], verbose=0)
        >>> sorted(history.history)
        ['accuracy', 'loss', 'soft_labels']
        >>> student.labels
        ['bad', 'good']
    """

    record = TaskRecord("distillation", Preprocessor)

    @validate_arguments
    def __init__(
        self,
        teacher: Task | Backbone,
        student: Task | Backbone,
        preprocessor: Preprocessor | None = None,
        objectives: Sequence[str] | None = None,
        temperature: Temperature = 2.0,
        label_weight: NonNegativeFloat = 0.5,
        relation_heads: PositiveInt | None = None,
        **kwargs: Unpack[LayerArguments],
    ):
        pairing.check_models(teacher, student)
        backbones = get_backbone(teacher), get_backbone(student)
        super().__init__(**{"dtype": backbones[1].dtype_policy, **kwargs})
        # Keras must not track the teacher, because its weights are not part of this model.
        object.__setattr__(self, "teacher", teacher)
        share_weights_lock(self, student)
        self.student = student
        is_task = isinstance(student, Task)
        self.record = dataclasses.replace(
            self.record,
            pretrains=not is_task or student.record.pretrains,
            labels_tokens=is_task and student.record.labels_tokens,
        )
        self.objectives = pairing.check_objectives(objectives, teacher, student)
        self.temperature = temperature
        self.label_weight = label_weight
        self.relation_heads = relation_heads
        pairing.check_same_strategy(student)
        self.maps = []
        if "hidden_states" in self.objectives:
            widths = (backbone.hidden_dim for backbone in reversed(backbones))
            self.maps = learned.make_linear_maps(*widths, self.dtype_policy)
        if "relations" in self.objectives:
            self._heads = pairing.check_relation_heads(relation_heads, *backbones)
        self.preprocessor = self._pair_inputs(preprocessor)
        self.means = [keras.metrics.Mean(name=name) for name in self.objectives]
        idle = pairing.find_untrained_weights(student, self.objectives, self._trains_head)
        self._unreached = {id(weight) for weight in idle}
        self._reset_training_state()
        self.learning_rate = getattr(student, "learning_rate", self.learning_rate)
        self.built = True

    def _pair_inputs(self, given: Preprocessor | None) -> Preprocessor | None:
        own = getattr(self.student, "preprocessor", None)
        if isinstance(self.student, Backbone):
            own = copy.copy(given or getattr(self.teacher, "preprocessor", None))
            if own is not None:
                Preprocessor.attach(own, self)
        by_token = pairing.find_token_objectives(self.objectives, self.student)
        return pairing.pair_preprocessors(self.teacher, own, by_token)

    @property
    def backbone(self) -> Backbone:
        """Return the student's backbone."""
        return get_backbone(self.student)

    @property
    def _trains_head(self) -> bool:
        """Return whether an objective trains the student's head.

        The head is trained on the teacher's answers or on masked tokens.
        """
        if isinstance(self.student, Backbone):
            return False
        masked = self.student.record.pretrains and self.student.record.learns_soft_labels
        return (masked and self.label_weight > 0) or "soft_labels" in self.objectives

    @property
    def objective(self) -> Objective:
        """Return the student's objective, or a placeholder if its head is not trained.

        Keras requires a loss even if only hidden states are trained.
        """
        if self._trains_head:
            return dataclasses.replace(
                self.student.objective,
                fills_batches=False,
                learning_rate_shares={},  # only for training on labels
                inputs_of_metrics=self._prepare_metric_inputs,
            )
        activation = "softmax" if self.record.pretrains else None
        return Objective(
            keras.losses.MeanSquaredError,
            lambda: None,
            activation,
            fills_batches=False,
            names_outputs=True,
        )

    @property
    def trainable_variables(self) -> list:
        return [v for v in super().trainable_variables if id(v) not in self._unreached]

    @property
    def trainable_weights(self) -> list:
        return [v for v in super().trainable_weights if id(v) not in self._unreached]

    @property
    def non_trainable_variables(self) -> list:
        """Return the non-trainable variables, including all variables of the teacher."""
        unreached = [v for v in super().trainable_variables if id(v) in self._unreached]
        return [*super().non_trainable_variables, *unreached, *self.teacher.variables]

    def call(self, inputs, training=None):
        soft = "soft_labels" in self.objectives
        segments = get_backbone(self.teacher).family.uses_segments
        mine, logits = self._make_outputs(self.student, inputs, training, self._trains_head)
        theirs, right = keras.tree.map_structure(
            ops.stop_gradient,
            self._make_outputs(self.teacher, select_teacher_inputs(inputs, segments), False, soft),
        )
        if TEACHER_POSITIONS in inputs:
            learned_of = {n: theirs[n] for n in ("hidden_states", "projections") if n in theirs}
            theirs = keras.tree.map_structure(
                lambda x: learned.gather_aligned(x, inputs[TEACHER_POSITIONS]), learned_of
            )
        outputs = {"logits": logits} if self._trains_head else {}
        if soft:
            activation = self.objective.activation
            values = learned.compare_labels(logits, right, self.temperature, activation)
            outputs |= {"soft_labels": values, "teacher": right}
        if "hidden_states" in self.objectives:
            both = mine["hidden_states"], theirs["hidden_states"]
            outputs["hidden_states"] = learned.compare_hidden_states(*both, self.maps)
        if "relations" in self.objectives:
            both = mine["projections"], theirs["projections"]
            tokens = learned.mark_known_tokens(inputs, inputs.get(TEACHER_POSITIONS))
            inputs = {**inputs, "padding_mask": tokens}
            outputs["relations"] = learned.compare_relations(*both, self._heads, inputs)
        return outputs

    def _make_outputs(
        self, model: Task | Backbone, inputs: dict, training: bool | None, answers: bool
    ) -> tuple:
        """Compute the backbone outputs of a model and, if `answers` is True, the logits."""
        is_task = isinstance(model, Task)
        encoded = get_backbone(model)(
            model.make_backbone_inputs(inputs) if is_task else select_backbone_inputs(inputs),
            training=training,
            return_hidden_states="hidden_states" in self.objectives,
            return_projections="relations" in self.objectives,
        )
        return encoded, model.logits_of(encoded, inputs, training) if answers else ()

    def compute_output_spec(self, inputs, training=None):
        tokens = keras.KerasTensor(inputs["token_ids"].shape, "float32")
        outputs = dict.fromkeys(self.objectives, tokens)
        if self._trains_head:
            outputs["logits"] = logits = self.student.compute_output_spec(inputs)
        if "soft_labels" in outputs:
            values = keras.KerasTensor(logits.shape[:-1], "float32")
            outputs |= {"soft_labels": values, "teacher": logits}
        return outputs

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        """Return the minimum and the maximum value of each model input.

        Args:
            length: Integer. The example length.
        """
        theirs = get_backbone(self.teacher)
        longest = theirs.max_sequence_length
        return {
            **self.student.input_ranges(length),
            **{TEACHER + name: ends for name, ends in theirs.input_ranges(longest).items()},
            TEACHER_POSITIONS: (pairing.NO_TOKEN, longest - 1),
            "soft_weights": (0, 1),
        }

    def _adapt_to_data(self, given, training=True) -> None:
        if training and given.y is not None and "soft_labels" not in self.objectives:
            raise ValueError(
                f"objectives is {self.objectives}, but only 'soft_labels' uses labels. Add "
                "'soft_labels', or remove y."
            )

    def _prepare_training(self, given, data) -> bool:
        learns = given.element[1] is not None and not isinstance(given, ArrayData)
        learns = learns and isinstance(self.student, Task)
        return learns and self.student._prepare_training(given, data)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Compute the total loss.

        This is the sum of the means of all objectives, the losses that layers add, and the weighted
        loss on labels. The loss on labels requires labels and an objective that trains the head.
        """
        loss = self.sum_penalties(y_pred)
        for name, mean in zip(self.objectives, self.means, strict=True):
            values, weights = y_pred[name], self._compute_weights(name, x, y, y_pred, sample_weight)
            mean.update_state(values, weights)
            part, size = learned.MEAN(values, values, weights)
            loss = loss + part
        if training:  # replaced below if the labels have a loss
            self.recipe.weigh_batch(self.optimizer, size)
        if y is None or not self.label_weight or not self._trains_head:
            return loss
        hard, size = self.batch_loss(y, y_pred["logits"], sample_weight)
        if training:
            self.recipe.weigh_batch(self.optimizer, size)
        hard = self.recipe.loss_weight * hard
        return loss + self.label_weight * hard

    def _compute_weights(self, name: str, x, y, y_pred, sample_weight):
        """Return the float32 weights of texts or tokens for the mean of an objective."""
        given = x.get("soft_weights") if y is None else sample_weight
        if name == "soft_labels":
            values = y_pred[name]
            if given is None:
                return ops.ones_like(values)
            return ops.broadcast_to(ops.cast(given, "float32"), ops.shape(values))
        # (B, L)
        counted = ops.cast(learned.mark_known_tokens(x, x.get(TEACHER_POSITIONS)), "float32")
        if given is not None and len(given.shape) == 1:
            counted = counted * ops.cast(given, "float32")[:, None]
        return counted

    def _prepare_metric_inputs(self, x, y, y_pred, sample_weight) -> tuple:
        """Return labels, outputs and weights for metrics. The teacher provides missing labels."""
        objective = self.student.objective
        if y is None:
            y = learned.convert_to_labels(y_pred["teacher"], objective.activation)
            sample_weight = x.get("soft_weights")
        return objective.inputs_of_metrics(x, y, y_pred["logits"], sample_weight)

    @validate_arguments
    def predict(
        self, x: object, batch_size: PositiveInt | None = None, **options: Unpack[PredictOptions]
    ) -> Any:
        """Compute the student's predictions, like `student.predict(x, ...)`."""
        return self.student.predict(x, batch_size, **options)

    def get_config(self) -> dict:
        """Raise a NotImplementedError, because only the student can be saved."""
        raise NotImplementedError(
            "A Distillation cannot be saved. To save the student, use "
            "student.save_to_preset(folder) or student.save(file)."
        )
