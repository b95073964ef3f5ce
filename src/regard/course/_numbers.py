"""The numbers in the exercises: the published ones, or different ones for each student."""

from typing import Any

from regard.course._expect import Draw


def numbers(notebook: str, seed: int) -> dict[str, Any]:
    """The numbers in a notebook's exercises, by name; seed 0 gives the published ones.

    >>> import regard.course
    >>> regard.course.numbers("3-transformer", 0)["heads"]
    8
    """
    draw = Draw(seed)
    if notebook == "1-attention-by-hand":
        return _worked_example(draw, seed)
    if notebook == "3-transformer":
        return _layer_sizes(draw, seed)
    if notebook == "5-attention-and-convolution":
        return _convolution_sizes(draw, seed)
    return {}


def _worked_example(draw: Draw, seed: int) -> dict[str, Any]:
    """Three tokens and three matrices of small whole numbers, at which slips show."""
    if seed == 0:
        return {
            "hidden": [[5, 1], [4, 3], [-2, 6]],
            "w_query": [[1, 0], [2, 9]],
            "w_key": [[0, 1], [6, 0]],
            "w_value": [[4, 3], [9, 1]],
        }
    while True:
        found = {
            "hidden": [[draw.size(-4, 6) for _ in range(2)] for _ in range(3)],
            **{
                name: [[draw.size(0, 9) for _ in range(2)] for _ in range(2)]
                for name in ("w_query", "w_key", "w_value")
            },
        }
        if _is_fair(found):
            return found


def _is_fair(example: dict[str, Any]) -> bool:
    """Whether no two keys tie for a token (hard attention would mix their values), and common slips with the second token
    give other numbers: the first token's scores or the second key's, the best token or its key, the second token's own
    value, matrices that are transposed."""

    def times(matrix: Any, vector: list[int]) -> list[int]:
        return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]

    tokens, matrices = example["hidden"], [example[name] for name in ("w_query", "w_key", "w_value")]
    queries, keys, values = ([times(matrix, token) for token in tokens] for matrix in matrices)
    by_query, by_key, by_value = ([times(zip(*matrix, strict=True), token) for token in tokens] for matrix in matrices)
    scores = [times(keys, query) for query in queries]
    best = scores[1].index(max(scores[1]))
    wrong_scores = [scores[0], times(queries, keys[1]), times(by_key, by_query[1])]
    wrong_outputs = [tokens[best], keys[best], values[1], by_value[best]]
    without_ties = all(len(set(row)) == 3 for row in scores) and 0 not in scores[1] and best != 1
    return without_ties and scores[1] not in wrong_scores and values[best] not in wrong_outputs


def _layer_sizes(draw: Draw, seed: int) -> dict[str, Any]:
    if seed == 0:
        return {"heads": 8, "in": 512, "hidden": 64, "value": 32, "out": 256}
    return {
        "heads": draw.size(3, 16),
        "in": 16 * draw.size(4, 40),
        "hidden": 8 * draw.size(2, 12),
        "value": 8 * draw.size(13, 20),
        "out": 16 * draw.size(41, 60),
    }


def _convolution_sizes(draw: Draw, seed: int) -> dict[str, Any]:
    """A line and a kernel for which common slips in counting the outputs give other counts."""
    if seed == 0:
        return {"size": 23, "kernel": 5, "stride": 3, "dilation": 2}
    while True:
        size, kernel, stride, dilation = draw.size(20, 60), draw.size(2, 6), draw.size(2, 5), draw.size(2, 4)
        right, one_short, undilated = (
            (size - reach) // stride + 1 for reach in (dilation * (kernel - 1) + 1, dilation * (kernel - 1), kernel)
        )
        if len({right - 1, right, one_short, undilated}) == 4:
            return {"size": size, "kernel": kernel, "stride": stride, "dilation": dilation}
