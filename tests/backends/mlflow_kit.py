"""Models as MLflow's own flavours save and log them, small, for the tests of ``MlflowModel``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from sparkinfer.testing import Ledger


@contextmanager
def quiet() -> Iterator[None]:
    """Saving is the test's set-up: what MLflow and the frameworks deprecate in one another is none of the library's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


with quiet():  # it warns of type hints of its own while it is imported
    import mlflow.pyfunc
    from mlflow.models import infer_signature

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)
TABLE = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0], "b": [0.0, 1.0, 0.0, 1.0]})
TWO = infer_signature(ROWS, ROWS[:, :2])
TEXTS = ["good day", "bad night", "day", ""]
BARE = {"pip_requirements": []}  # else MLflow asks pip what the model imports, which takes half a minute


def torch_net() -> Any:
    """A small network of fixed weights, whose answer depends on the mode."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(0.5)).eval()


def keras_net() -> Any:
    """A small functional model with an input of its own name."""
    import keras

    x = keras.Input((3,), name="pixels")
    return keras.Model(x, keras.layers.Dense(2, kernel_initializer="ones", name="scores")(x))


def regression(factor: float = 1.0) -> Any:
    """A linear model that gives ``factor * a + b``."""
    from sklearn.linear_model import LinearRegression

    return LinearRegression().fit(TABLE, factor * TABLE["a"] + TABLE["b"])


def classifier(folder: Path) -> Any:
    """A Hugging Face pipeline of a BERT with one layer of eight numbers, over a vocabulary of its own."""
    import torch
    import transformers

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "day", "night"]
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        initializer_range=1.0,  # else every text gets the same score
        id2label={0: "bad", 1: "good"},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(6)  # one that tells good from bad
        net = transformers.BertForSequenceClassification(config).eval()
    return transformers.pipeline("text-classification", model=net, tokenizer=transformers.BertTokenizerFast(str(folder / "vocab.txt")))


class Told(mlflow.pyfunc.PythonModel):
    """Says of each row what came: names, dtypes, and the type or shape of a value."""

    def predict(self, context, model_input, params=None):  # MLflow reads the hints of a model, where there are any
        if isinstance(model_input, pd.DataFrame):
            names = [f"{name}:{model_input.dtypes[name]}" for name in model_input.columns]
            rows = model_input.itertuples(index=False)
            return [f"frame {' '.join(names)} | {' '.join(_value(value) for value in row)}" for row in rows]
        named = model_input if isinstance(model_input, dict) else {"array": model_input}
        text = " ".join(f"{name}:{array.dtype}{list(array.shape[1:])}" for name, array in named.items())
        return [text] * len(next(iter(named.values())))


def _value(value: Any) -> str:
    return f"{type(value).__name__}{list(value.shape)}" if isinstance(value, np.ndarray) else repr(value)


class Scaled(mlflow.pyfunc.PythonModel):
    """Multiplies the column ``a`` by a param; leaves a line where it is loaded."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.ledger = ledger

    def load_context(self, context: Any) -> None:
        if self.ledger is not None:
            self.ledger.write("load")

    def predict(self, context, model_input, params=None):
        return model_input["a"] * params["factor"]


class Given(mlflow.pyfunc.PythonModel):
    """Gives what a function makes of its input."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def predict(self, context, model_input, params=None):
        return self.function(model_input)


SCALED = infer_signature(TABLE, np.zeros(4), params={"factor": 2.0})


def save_pyfunc(path: Path, python_model: Any, signature: Any = None, **extra: Any) -> str:
    """Save a Python model to a folder, and give its path."""
    with quiet():
        mlflow.pyfunc.save_model(str(path), python_model=python_model, signature=signature, **BARE, **extra)
    return str(path)
