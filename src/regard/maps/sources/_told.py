"""Attention that is told of: the map is built when it is asked for, and compared with the heads' outputs."""

from torch import Tensor

from regard.maps._names import Place
from regard.maps._seen import Seen, canonical, product_error
from regard.observation import Observation


def told(place: Place, seen: Observation) -> Seen:
    output = canonical(seen.output)
    value = None if seen.value is None else canonical(seen.value)
    made: list[Tensor] = []

    def whole() -> Tensor:
        if not made:
            made.append(canonical(seen.weights().detach()))
        return made[0]

    keys = value.shape[2] if value is not None else whole().shape[3]
    single = seen.output.ndim == 3

    return Seen(
        name=place.name,
        module=place.module,
        kind=seen.kind,
        shape=(output.shape[0], output.shape[1], output.shape[2], keys),
        build=lambda rows, heads: (whole()[:, heads][:, :, rows], None),
        check=lambda weights, rows, heads: (
            None if value is None else product_error(weights, value, output, rows, heads)
        ),
        against="layer's heads" if value is not None else "nothing: the layer's output is no product of the map",
        output=output,
        value=value,
        restore=(lambda out: out[:, 0]) if single else (lambda out: out),
        grid=seen.grid,
        prefix=seen.prefix,
        query_grid=seen.query_grid,
    )
