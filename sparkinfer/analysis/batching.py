"""What each batch costs beside its rows: to be cut, prepared, handed over and encoded.

Runs on: driver (standard library only).

Invariant: at the size that the costs were measured with, they stay what they were: what a batch costs is taken out of what its rows do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkinfer.analysis.costs import Costs
    from sparkinfer.analysis.rounds import Arm

__all__ = ["with_batches"]

_PREPARED = ("decode", "preprocess", "collate")


def with_batches(costs: Costs, small: Arm, large: Arm, sizes: tuple[int, int], *, serial: bool) -> Costs:
    """Tell apart what a batch and what its rows cost, by everything but the model in batches of two sizes.

    Args:
        costs: by the smaller batches.
        small: the arm with the smaller batches.
        large: the arm with the larger ones.
        sizes: of the two.
        serial: nothing was prepared ahead, so that both sides add up in the arms' time.
    """
    apart = 1 / sizes[0] - 1 / sizes[1]

    def each_batch(of: Callable[[Arm], float], most: float) -> float:
        return min(max(0.0, (of(small) - of(large)) / apart), most * sizes[0])

    loop = each_batch(lambda arm: arm.each, small.each)
    prepared = each_batch(lambda arm: arm.stage(*_PREPARED), costs.preprocess)
    postprocess = each_batch(lambda arm: arm.consumer.get("postprocess", 0.0) / arm.rows, costs.postprocess)
    encode = each_batch(lambda arm: arm.consumer.get("encode", 0.0) / arm.rows, costs.encode)
    after = postprocess + encode
    return replace(
        costs,
        batch=max(prepared, loop - after if serial else loop),
        preprocess=costs.preprocess - prepared / sizes[0],
        call=costs.call + after,
        postprocess=costs.postprocess - postprocess / sizes[0],
        encode=costs.encode - encode / sizes[0],
    )
