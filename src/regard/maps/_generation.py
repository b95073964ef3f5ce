"""``Maps.generation``: joins the calls of ``generate`` into one map of the whole sequence for each layer."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from regard.maps._contributions import ValueNorms
from regard.maps._joined_overviews import JoinedScores, joined, joined_rows, parts_of
from regard.maps._overview import Overview
from regard.maps._record import AttentionRecord, Check
from regard.maps.tokens._positions import Positions

_OUTPUT = "pass what generate(return_dict_in_generate=True, output_scores=True) returned as output="


def join_calls(name: str, calls: list[AttentionRecord], output: Any = None) -> AttentionRecord:
    """The map of the whole sequence: ``(sequences, heads, tokens, tokens)``, without the last token, which no call read.

    A call continues the one before if it starts where that one ended. It may also start earlier: then guessed tokens were
    rejected, and their rows are replaced.

    Args:
        output: what ``generate`` returned. It says how long the answer is, and from which beams each sequence came.
    """
    positions = _continued(name, calls)
    sequences = getattr(output, "sequences", output)
    if sequences is not None and not (isinstance(sequences, Tensor) and sequences.ndim == 2):
        raise TypeError(f"output must be what generate returned, got a {type(output).__name__}")
    if positions is None:  # an encoder, or a vision tower: it runs once
        return calls[-1]
    ancestry = _ancestry(name, positions, sequences, output)
    end = _end(name, positions, sequences) if ancestry is None else _end_of_beams(name, positions, ancestry)
    if ancestry is not None:  # beams may have gone on after the sequences that were returned had ended
        kept = [number for number, place in enumerate(positions) if place.end <= end]
        calls, positions = [calls[number] for number in kept], [positions[number] for number in kept]
    last = positions[-1]
    keys = last.keys if last.cross else end
    if calls[-1].overview is not None:
        return _of_overviews(name, calls, positions, ancestry, end)
    parts = [record.weights for record in calls]
    batch = len(ancestry) if ancestry is not None else parts[0].shape[0]
    whole = parts[0].new_zeros(batch, parts[0].shape[1], end, keys)
    for place, weights in zip(positions, parts, strict=True):
        rows = weights if ancestry is None else _rows_of(weights, place, ancestry)
        if rows.shape[0] != batch:
            raise ValueError(f"{name!r}: calls of {batch} and of {rows.shape[0]} sequences do not belong together")
        stop, limit = min(place.end, end), min(place.first_key + place.keys, keys)
        if place.first >= stop:
            continue
        alive: Tensor | slice = slice(None)
        if ancestry is not None and not place.cached:  # this call has no tokens of sequences that had ended before
            alive = (_batch_rows(place, ancestry) >= 0).to(whole.device)
        whole[alive, :, place.first :] = 0
        whole[alive, :, place.first : stop, place.first_key : limit] = rows[
            alive, :, : stop - place.first, : limit - place.first_key
        ]
    record = _whole(calls, (batch, whole.shape[1], end, keys), whole, last.cross)
    record.norms = _joined_norms(calls, positions, ancestry, record)
    return record


def _whole(
    calls: list[AttentionRecord], shape: tuple[int, int, int, int], stored: Tensor | None, cross: bool
) -> AttentionRecord:
    """The record of the whole sequence."""
    _, _, end, keys = shape
    return replace(
        calls[-1],
        shape=shape,
        stored=stored,
        check=Check.joined([call.check for call in calls], calls[-1].check.against),
        layout=calls[-1].layout if cross else None,
        axes=replace(calls[-1].axes, positions=Positions(0, end, 0, keys, end, cross=cross)),
    )


def _of_overviews(
    name: str, calls: list[AttentionRecord], positions: list[Positions], ancestry: Tensor | None, end: int
) -> AttentionRecord:
    """The overview of the whole sequence, and the rows of all calls that were kept in full or can be computed."""
    last = positions[-1]
    keys = last.keys if last.cross else end
    chosen = None if ancestry is None else [_batch_rows(place, ancestry) for place in positions]
    if chosen is not None and not last.cached and bool((chosen[-1] < 0).any()):
        raise ValueError(
            f"{name!r}: without a cache, the last call has nothing of sequences that ended before the others: an overview of "
            "them is not known. Capture whole maps, or generate with a cache"
        )
    parts = parts_of(name, calls, positions, chosen, end)
    overview = joined(name, parts, end, keys)
    rows, stored = joined_rows(parts, keys)
    record = _whole(calls, (len(overview.mass), calls[-1].shape[1], end, keys), stored, last.cross)
    record.rows, record.overview = rows, overview
    if all(part.scores is not None for part in parts):
        record.joined_scores = JoinedScores(parts, keys)
    record.norms = _joined_norms(calls, positions, ancestry, record)
    return record


def _joined_norms(
    calls: list[AttentionRecord], positions: list[Positions], ancestry: Tensor | None, record: AttentionRecord
) -> ValueNorms | None:
    """The norms of ``values=True`` for the whole sequence: of each token, those of the last call that has it."""
    if any(call.norms is None for call in calls):
        return None
    batch, _, end, keys = record.shape
    like = calls[-1].norms.heads
    by_key, by_query = (like.new_zeros(batch, like.shape[1], size) for size in (keys, end))
    for call, place in zip(calls, positions, strict=True):
        alive: Tensor | slice = slice(None)
        row: Tensor | slice = slice(None)
        if ancestry is not None:
            row = _batch_rows(place, ancestry).to(like.device)
            alive = row >= 0
            row = row[alive]
        kept = min(place.first_key + place.keys, keys)
        by_key[alive, :, place.first_key : kept] = call.norms.keys[row][..., : kept - place.first_key]
        numbers = place.first + torch.tensor(range(place.queries) if call.rows is None else call.rows).long()
        own = by_query[alive]
        own[..., numbers[numbers < end]] = call.norms.heads[row][..., numbers < end]
        by_query[alive] = own
    return ValueNorms(by_key, by_query if record.rows is None else by_query[..., list(record.rows)])


def _continued(name: str, calls: list[AttentionRecord]) -> list[Positions] | None:
    """The positions of all calls; an error if a call does not continue the one before it.

    None if there is nothing to join: one call without a cache, as of an encoder.
    """
    if any(call.stored is None and call.overview is None for call in calls):
        raise ValueError(f"the weights of {name!r} were folded by reduce= and not kept: nothing can be put together")
    if any(call.rows is not None and call.overview is None for call in calls):
        raise ValueError(f"only some rows of {name!r} were kept by rows=: capture all of them for a generation")
    found: list[Positions] = []
    for number, call in enumerate(calls):
        place = call.positions
        if place is None:
            if len(calls) == 1:
                return None
            raise ValueError(
                f"{name!r}: where the tokens of call {number + 1} of {len(calls)} lie in the sequence is not known "
                "(no cache states it), so its calls cannot be put together"
            )
        if found and place.first == 0:
            if not _repeats(calls[number - 1], call):
                raise ValueError(
                    f"{name!r}: call {number + 1} of {len(calls)} starts a sequence of its own: separate calls are not "
                    "put together. Capture one generate() per block, and without guidance, which runs the model on two texts"
                )
        elif found and place.first > found[-1].end:
            raise ValueError(
                f"{name!r}: call {number + 1} starts at token {place.first}, but the one before it ended at "
                f"{found[-1].end}"
            )
        elif not found and place.first > 0:
            raise ValueError(
                f"{name!r}: the first call starts at token {place.first}: what filled the cache before was not captured"
            )
        found.append(place)
    return found if len(found) > 1 or found[0].cached else None


def _repeats(before: AttentionRecord, after: AttentionRecord) -> bool:
    """Whether a call without a cache repeats all tokens of the call before and has more: then its first rows are equal. Beams
    may have changed places."""
    one, two = before.positions, after.positions
    if one is None or two is None or one.cached or two.cached or one.queries >= two.queries:
        return False
    if before.overview is not None and after.overview is not None:
        old, repeats = _statistics(before.overview), _equals
        new = _statistics(after.overview)[:, :, : old.shape[2]]
    else:
        old, repeats = before.weights.float(), _starts_with
        new = after.weights[:, :, : old.shape[2]].float()
    if old.shape[:2] != new.shape[:2]:
        return False
    if not two.beams:
        return repeats(new, old)
    return all(any(repeats(text[None], other[None]) for other in old) for text in new)


def _starts_with(new: Tensor, old: Tensor) -> bool:
    """Whether rows have the same weights as before, and zeros after them."""
    again, later = new[..., : old.shape[3]], new[..., old.shape[3] :]
    same = torch.isclose(old, again, atol=1e-4).all(-1) & ~later.any(-1)
    # A token of the padding sees no key. Softmax of equal scores makes its row even over all keys, however many there are.
    padding = _is_even(old) & _is_even(new)
    return bool(same.any() and (same | padding).all())


def _equals(new: Tensor, old: Tensor) -> bool:
    """Whether the statistics of rows are those of before."""
    return bool(torch.isclose(new, old, atol=1e-2).all())


def _statistics(overview: Overview) -> Tensor:
    """The entropy and the largest weight of each query of an overview, ``(batch, heads, queries, 2)``."""
    return torch.stack([overview.per_query.entropy.float(), overview.per_query.largest.float()], -1)


def _is_even(weights: Tensor) -> Tensor:
    """The rows that give every key the same weight."""
    return (weights.float() * weights.shape[-1] - 1).abs().amax(-1) < 1e-2


def _end(name: str, positions: list[Positions], sequences: Tensor | None) -> int:
    """The number of tokens of the final sequence that the model read."""
    last = positions[-1]
    if sequences is None:
        rejected = any(place.first < before.end for before, place in pairwise(positions))
        if last.cached and len(positions) > 1 and last.queries > 1 and (rejected or last.guessed):
            raise ValueError(
                f"{name!r}: the last call looked at {last.queries} tokens at once, of which some may have been rejected: "
                + _OUTPUT
            )
        return last.end
    tokens = sequences.shape[1]
    # Some models return the answer alone: Whisper, and those that are given embeddings. Whisper may leave out the token that
    # ends it, too.
    prompt = positions[0].end
    for end in (tokens - 1, prompt + tokens - 1):
        if max(last.first + 1, prompt) <= end <= last.end:
            return end
    if prompt + tokens == last.end and (last.queries == 1 or len(positions) == 1):
        return last.end
    raise _other_output(name, tokens, last)


def _end_of_beams(name: str, positions: list[Positions], ancestry: Tensor) -> int:
    """The same for beam search, which may have gone on after the sequences that were returned had ended."""
    end = ancestry.shape[1]
    if not any(place.end == end for place in positions):
        raise _other_output(name, end + 1, positions[-1])
    return end


def _other_output(name: str, tokens: int, last: Positions) -> ValueError:
    return ValueError(
        f"{name!r}: output has {tokens} tokens per sequence, but the calls of this capture saw {last.end}: they do not belong "
        "together. Pass what generate(return_dict_in_generate=True) returned inside this block"
    )


def _ancestry(name: str, positions: list[Positions], sequences: Tensor | None, output: Any) -> Tensor | None:
    """The batch row in which each token of each sequence was a query, ``(sequences, tokens)``; None without beam search."""
    if not any(place.beams for place in positions):
        return None
    chosen = getattr(output, "beam_indices", None)
    if sequences is None or chosen is None:
        raise ValueError(
            f"{name!r}: beam search exchanged the rows of the batch between calls, and only generate knows how: "
            + _OUTPUT
        )
    # Column t has the batch row of the call that chose token t of the answer. The query of that call was the token before.
    chosen = chosen[:, : sequences.shape[1]].cpu()
    prompt = sequences.shape[1] - chosen.shape[1]
    if prompt == 0:  # the answer alone, of a model that was given embeddings
        prompt = positions[0].end
    return torch.cat((chosen[:, :1].expand(-1, prompt - 1), chosen), 1)


def _rows_of(weights: Tensor, place: Positions, ancestry: Tensor) -> Tensor:
    """The weights of each final sequence in this call, from its batch row; zero for sequences that had ended."""
    row = _batch_rows(place, ancestry).to(weights.device)
    return weights[row.clamp_min(0)] * (row >= 0)[:, None, None, None]


def _batch_rows(place: Positions, ancestry: Tensor) -> Tensor:
    """The batch row of each final sequence in a call; −1 for sequences that had ended."""
    return ancestry[:, min(place.end, ancestry.shape[1]) - 1]
