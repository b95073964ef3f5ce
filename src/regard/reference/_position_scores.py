"""How positions enter the scores: added to the input, or by the offset between query and key."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from regard.reference._linear import linear


class AbsoluteScores(NamedTuple):
    """The four terms of :func:`absolute_scores`, each ``(*batch, tokens, tokens)``; names give the query's part first."""

    content_content: Tensor
    content_position: Tensor
    position_content: Tensor
    position_position: Tensor

    @property
    def total(self) -> Tensor:
        """The scores: the sum of the four terms."""
        return self.content_content + self.content_position + self.position_content + self.position_position


class RelativeScores(NamedTuple):
    """The four terms of :func:`relative_scores`, each ``(*batch, tokens, tokens)``."""

    content_content: Tensor
    content_position: Tensor
    key_content: Tensor
    key_position: Tensor

    @property
    def total(self) -> Tensor:
        """The scores: the sum of the four terms."""
        return self.content_content + self.content_position + self.key_content + self.key_position


def absolute_scores(
    content: Float[Tensor, "*batch tokens dim"],
    position: Float[Tensor, "tokens dim"],
    w_query: Float[Tensor, "width dim"],
    w_key: Float[Tensor, "width dim"],
) -> AbsoluteScores:
    r"""Scores of z + p, multiplied out.

    .. math:: (W_q (z_q + p_q)) \cdot (W_k (z_k + p_k)) =
        W_q z_q \cdot W_k z_k + W_q z_q \cdot W_k p_k + W_q p_q \cdot W_k z_k + W_q p_q \cdot W_k p_k

    Args:
        content, position: z and p.
        w_query, w_key: in the layout of ``nn.Linear``, (outputs, inputs).

    Returns the four terms, and their sum as ``.total``; β is not yet applied.

    >>> one = torch.ones(1, 1)
    >>> scores = absolute_scores(torch.tensor([[2.0], [3.0]]), torch.tensor([[10.0], [20.0]]), one, one)
    >>> scores.content_position[0], scores.total[0]  # query 0: 2·(10, 20) and 12·(12, 23)
    (tensor([20., 40.]), tensor([144., 276.]))
    """
    position = position.expand(content.shape)
    query_content, query_position = linear(content, w_query), linear(position, w_query)
    key_content, key_position = linear(content, w_key), linear(position, w_key)
    return AbsoluteScores(
        content_content=query_content @ key_content.mT,
        content_position=query_content @ key_position.mT,
        position_content=query_position @ key_content.mT,
        position_position=query_position @ key_position.mT,
    )


def relative_scores(
    content: Float[Tensor, "*batch tokens dim"],
    encoding: Float[Tensor, "tokens tokens position_dim"],
    w_query: Float[Tensor, "width dim"],
    w_key: Float[Tensor, "width dim"],
    w_position: Float[Tensor, "width position_dim"],
    u: Float[Tensor, "width"],
    v: Float[Tensor, "width"],
) -> RelativeScores:
    r"""Scores that depend on positions only through the offset δ = key − query.

    .. math:: W_q z_q \cdot W_k z_k + W_q z_q \cdot \widetilde W_k r_\delta + u \cdot W_k z_k
        + v \cdot \widetilde W_k r_\delta

    The learned u and v replace the query's absolute position.

    Args:
        content: z.
        encoding: :math:`r_\delta` of every query (first axis) and key (second axis), as from
            :func:`relative_offsets` or :func:`encoding_by_offset`.
        w_query, w_key, w_position: :math:`W_q, W_k, \widetilde W_k` in the layout of ``nn.Linear``.
        u, v: one vector each.

    Returns the four terms, and their sum as ``.total``; β is not yet applied.

    A Gaussian head is the case :math:`W_q = W_k = 0`, :math:`\widetilde W_k = I`,
    :math:`r_\delta = (\|\delta\|^2, \delta)`, :math:`v = -\alpha (1, -2\Delta)`:

    >>> from regard.reference import relative_offsets
    >>> offset = relative_offsets((3,))
    >>> encoding = torch.cat([offset.square().sum(-1, keepdim=True), offset], -1)
    >>> nothing, v = torch.zeros(2, 1), -0.5 * torch.tensor([1.0, -2.0])  # sharpness 0.5, center 1
    >>> relative_scores(torch.ones(3, 1), encoding, nothing, nothing, torch.eye(2), torch.zeros(2), v).total
    tensor([[ 0.0000,  0.5000,  0.0000],
            [-1.5000,  0.0000,  0.5000],
            [-4.0000, -1.5000,  0.0000]])
    """
    query, key, offset = linear(content, w_query), linear(content, w_key), linear(encoding, w_position)
    content_content = query @ key.mT
    return RelativeScores(
        content_content=content_content,
        content_position=(query.unsqueeze(-2) * offset).sum(-1),
        key_content=(key @ u).unsqueeze(-2).expand(content_content.shape),
        key_position=(offset @ v).expand(content_content.shape),
    )
