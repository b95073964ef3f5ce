"""Answers as students get them wrong, by question, with words of the advice they should be given.

Each is a change of the right answer: what stands there, and what stands there instead.
"""

from typing import NamedTuple


class Wrong(NamedTuple):
    """``right`` of the answer to ``question`` is replaced by ``wrong``."""

    question: str
    right: str
    wrong: str
    advice: str


WRONG = {
    "1-attention-by-hand": [
        Wrong("q1_scores", "hidden @ w_query.T", "hidden @ w_query", "the matrices are not transposed|shapes cannot"),
        Wrong("q1_scores", "query @ key.T", "key @ query.T", "queries belong in the rows"),
        Wrong("q1_scores", "hidden @ w_key.T", "hidden", "only the query is projected"),
        Wrong("q2_softargmax", "torch.exp(scores -", "torch.exp(-scores +", "the sign is wrong"),
        Wrong("q2_softargmax", "powers.sum(dim=-1, keepdim=True)", "powers.sum(dim=0, keepdim=True)", "the columns sum to one"),
        Wrong("q2_softargmax", " - scores.max(dim=-1, keepdim=True).values", "", "subtract the largest score"),
        Wrong("q2_softargmax", "scores.max(dim=-1, keepdim=True).values", "scores.max()", "of each row by itself"),
        Wrong("q2_softargmax", "beta * scores", "scores", "β is not used"),
        Wrong("q2_softargmax", "beta * scores", "scores / beta", "you divide by it"),
        Wrong("q3_attention", "1 / math.sqrt(query.shape[-1])", "1.0", "not divided by √d"),
        Wrong("q3_attention", "1 / math.sqrt(query.shape[-1])", "1 / query.shape[-1]", "it should be √d"),
        Wrong("q3_attention", "1 / math.sqrt(query.shape[-1])", "1 / math.sqrt(value.shape[-1])", "not of the values"),
        Wrong("q3_attention", "if beta is None", "if True", "β is given here, and not used"),
        Wrong("q3_attention", "query @ key.mT, beta", "query @ key.mT", "go into the softargmax without it"),
        Wrong("q3_attention", "weights @ value", "weights.mT @ value", "transposed before they meet"),
        Wrong("q3_attention", "weights @ value", "weights.detach() @ value.detach()", "no gradient"),
        Wrong("q4_hard", "scores == scores.max(dim=-1, keepdim=True).values",
              "torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1])", "argmax hides ties"),
        Wrong("q4_hard", "best / best.sum(dim=-1, keepdim=True) @ value", "best @ value", "divide by how many tie"),
        Wrong("q4_hard", "keepdim=True) @ value", "keepdim=True) @ key", "return their values"),
        Wrong("q5_keep", "~keep", "keep", "True means attend"),
        Wrong("q5_keep", ".masked_fill(~keep, -1e9)", "", "no longer sums to one"),
        Wrong("q5_keep", "softargmax(scores) * keep", "softargmax(scores)", "gets the mean of all values"),
        Wrong("q5_keep", "-1e9", "-torch.inf", "it should give zeros"),
        Wrong("q6_perturbed", "return beta * weights", "return weights", "factor β is missing"),
        Wrong("q6_perturbed", " * (is_moved - weights[:, which, None])", "", "w_a. is missing"),
        Wrong("q6_perturbed", "(is_moved - weights[:, which, None])", "(is_moved - weights)", "the weight of the moved key"),
        Wrong("q7_kernel", "-0.5 * x_train", "-x_train", "the weight of each sample: wrong"),
        Wrong("q7_kernel", "-0.5 * x_train", "0.5 * x_train", "wrong sign"),
        Wrong("q7_kernel", "1 / bandwidth**2", "1 / bandwidth", "not 1/h"),
        Wrong("q8_graph", "(edges / edges.sum())", "edges", "divided by their sum"),
        Wrong("q8_graph", "in enumerate(neighbors)", "in enumerate([list(range(len(key)))] * len(key))", "neighbors alone"),
        Wrong("q8_graph", " / math.sqrt(query.shape[-1])", "", "not divided by √d"),
    ],
    "2-sequences": [
        Wrong("q1_step", "torch.tanh", "", "tanh is missing"),
        Wrong("q1_step", " + bias", "", "the bias is missing"),
        Wrong("q1_step", "w_hidden.T", "w_hidden", "W_h is not transposed"),
        Wrong("q2_encode", "torch.zeros", "torch.ones", "start from zeros"),
        Wrong("q2_encode", "dim=1", "dim=0", "stack the states along dim=1"),
        Wrong("q2_encode", "return torch.stack(states, dim=1)", "return hidden", "only the last state"),
        Wrong("q2_encode", "range(x.shape[1])", "reversed(range(x.shape[1]))", "from the last to the first"),
        Wrong("q3_changes", '{"input", "last state", "output"}', '{"input", "output"}', "lacks 'last state'"),
        Wrong("q3_changes", '"last state"', '"last state", "decoder weights"', "learned in training"),
        Wrong("q4_attend", "dim=-1", "dim=1", "not over the decoder's steps"),
        Wrong("q4_attend", "if keep is not None", "if False", "padding gets weight"),
        Wrong("q4_attend", "~keep", "keep", "attend to padding|NaN"),
        Wrong("q5_aligned", " + offset", "", "offset is not used"),
        Wrong("q5_aligned", ".mean()", ".sum()", "divide by all"),
        Wrong("q6_sine", "[angle.sin(), angle.cos()]", "[angle.cos(), angle.sin()]", "sine and cosine are swapped"),
        Wrong("q6_sine", "dim=-1).flatten(1)", "dim=1).flatten(1)", "they should take turns"),
        Wrong("q6_sine", "torch.arange(length)", "torch.arange(1, length + 1)", "count from 0"),
        Wrong("q7_shift", "[[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]]",
              "[[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]]", "beside P_"),
        Wrong("q8_lookup", "positions @ shift_matrix(shift, positions.shape[1]).T", "positions", "reads its own token"),
        Wrong("q8_lookup", "positions.shape[1]).T", "positions.shape[1])", "reads token t − 1"),
    ],
    "3-transformer": [
        Wrong("q1_variance", "2 * deviation", "2 * len(mean) * deviation", "d is counted twice"),
        Wrong("q1_variance", "deviation**4", "deviation**2", "has σ⁴"),
        Wrong("q1_variance", "2 * deviation**2", "deviation**2", "missing a factor 2"),
        Wrong("q2_heads", "x.reshape(batch, tokens, heads, dim // heads).transpose(1, 2)",
              "x.reshape(batch, heads, tokens, dim // heads)", "all tokens with some features"),
        Wrong("q2_heads", "x.transpose(1, 2).reshape(batch, tokens, heads * width)",
              "x.reshape(batch, tokens, heads * width)", "swap heads and tokens back"),
        Wrong("q3_multi_head", "math.sqrt(query.shape[-1])", "math.sqrt(x.shape[-1])", "not of dim"),
        Wrong("q3_multi_head", " / math.sqrt(query.shape[-1])", "", "not divided"),
        Wrong("q3_multi_head", " @ w_out.T", "", "w_out is missing"),
        Wrong("q3_multi_head", "if keep is not None", "if False", "keep is not used"),
        Wrong("q4_cost", "4 * tokens", "3 * tokens", "make four"),
        Wrong("q4_cost", "dim // heads", "dim", "heads times too much"),
        Wrong("q4_cost", "projections + scores + sums", "projections + scores", "only one of the two products"),
        Wrong("q5_causal", "<= place", "< place", "may see itself"),
        Wrong("q5_causal", " + keys - queries", "", "the queries are the last tokens"),
        Wrong("q5_causal", "<= place", ">= place", "looks ahead"),
        Wrong("q6_block", "torch.relu(x @ w1.T + b1)", "(x @ w1.T + b1)", "are one linear map"),
        Wrong("q6_block", 'order == "post"', 'order == "pre"', "the orders are swapped"),
        Wrong("q7_pool", "keep.sum(1)", "vectors.shape[1]", "divide by the number of tokens"),
        Wrong("q7_pool", "(vectors * keep).sum(1) / keep.sum(1)", "vectors.mean(1)", "padding is averaged in"),
    ],
    "4-vision-transformer": [
        Wrong("q1_patches", "x.permute(0, 2, 4, 1, 3, 5)", "x", "pixels of several image rows|wrong at"),
        Wrong("q1_patches", "x.permute(0, 2, 4, 1, 3, 5)", "x.permute(0, 4, 2, 1, 3, 5)", "along the rows"),
        Wrong("q1_patches", "x.permute(0, 2, 4, 1, 3, 5)", "x.permute(0, 2, 4, 3, 5, 1)", r"\(channel, row, column\)"),
        Wrong("q2_convolution", "patch, patch), patch", "patch, patch), 1", "patches overlap"),
        Wrong("q2_convolution", "patch, patch), patch", "patch, patch).flip(2, 3), patch", "kernel is flipped"),
        Wrong("q3_block", " / math.sqrt(query.shape[-1])", "", "not divided"),
        Wrong("q3_block", "x + self.attention(self.norm1(x))", "self.attention(self.norm1(x))", "only the residual|the block"),
        Wrong("q3_block", "x + self.mlp(self.norm2(x))", "self.mlp(self.norm2(x))", "nothing is left of x"),
        Wrong("q3_block", "self.norm1(x))", "x)", "the block: "),
        Wrong("q4_model", " + self.positions", "", "positions are not added"),
        Wrong("q4_model", "[:, 0]", "[:, -1]", "token 0"),
        Wrong("q4_model", "[:, 0]", ".mean(1)", "read the class token alone"),
        Wrong("q4_model", "self.norm(x)", "x", "last norm is missing"),
        Wrong("q5_class_attention", "[:, :, 0, 1:]", "[:, :, 1:, 0]", "who looks at the class token"),
        Wrong("q5_class_attention", "[:, :, 0, 1:]", "[:, :, 0, :-1]", "leave key 0 out"),
        Wrong("q6_rollout", "@ total", "@ total.mT", "wrong at"),
        Wrong("q6_rollout", "0.5 * layer.mean(1) + 0.5 * torch.eye(layer.shape[-1])", "layer.mean(1)", "residual is missing"),
        Wrong("q6_rollout", "layer.mean(1)", "layer.amax(1)", "not the largest"),
    ],
    "5-attention-and-convolution": [
        Wrong("q1_scores", "place[None, :, :] - place[:, None, :]", "place[:, None, :] - place[None, :, :]", "key − query"),
        Wrong("q1_scores", "- center)", "- center.flip(0))", "rows and columns are swapped"),
        Wrong("q1_scores", "-sharpness *", "-", "sharpness α is missing"),
        Wrong("q2_encoding", "return -sharpness *", "return", "factor −α is missing"),
        Wrong("q2_encoding", "return -center.square().sum()", "return center.square().sum()", "the sign"),
        Wrong("q3_limit", ".sum() ** 2", ".sum()", "the weight on a line"),
        Wrong("q3_limit", "torch.arange(-200, 201)", "torch.arange(201)", "negative numbers, too"),
        Wrong("q4_factors", "place[None, :] - place[:, None]", "place[:, None] - place[None, :]", "wrong way"),
        Wrong("q4_factors", "ij,kl,jld->ikd", "ji,lk,jld->ikd", "maps are transposed"),
        Wrong("q5_sum_of_heads", "w_out.reshape(len(w_out), heads, width).transpose(0, 1)",
              "w_out.reshape(len(w_out), width, heads).permute(2, 0, 1)", "every second one"),
        Wrong("q6_theorem_one", ".float() - size // 2", ".float()", "count from 0"),
        Wrong("q6_theorem_one", ".float() - size // 2", ".float().neg() + size // 2", "centers are mirrored"),
        Wrong("q6_theorem_one", "kernel.permute(2, 3, 0, 1)", "kernel.permute(2, 3, 1, 0)", "out and in are swapped"),
        Wrong("q6_theorem_one", "size // 2", "(size - 1) // 2", "made of your heads"),
        Wrong("q7_theorem_two", "total = bias", "total = 0", "bias is missing"),
        Wrong("q7_theorem_two", "total + weights @ tokens @ matrix.T", "total + weights @ tokens @ matrix.T + bias", "once"),
        Wrong("q8_gelu", "torch.erf(x / math.sqrt(2))", "torch.erf(x)", "erf takes x/√2"),
        Wrong("q8_gelu", "(x + 0.044715 * x**3)", "x", "cubic term is missing"),
        Wrong("q9_layer_norm", "centered.square().mean(dim=-1, keepdim=True)", "x.var(dim=-1, keepdim=True)", "not by one less"),
        Wrong("q9_layer_norm", "torch.sqrt(variance + epsilon)", "(torch.sqrt(variance) + epsilon)", "under the root"),
        Wrong("q9_layer_norm", " * weight + bias", "", "weight and bias are not used"),
        Wrong("q10_second_half", "x + self.down", "self.down", "residual is missing"),
        Wrong("q10_second_half", "gelu(self.up(x))", "self.up(x)", "GELU is missing"),
        Wrong("q11_covered", "center.round().int()", "center.int()", "nearest pixel"),
    ],
}  # fmt: skip


# Answers that hand the work to somebody else: none of the question's checks may pass.
CHEATS = {
    "1-attention-by-hand": [
        ("q2_softargmax", "from regard import softargmax"),
        ("q2_softargmax", "def softargmax(scores, beta=1.0):\n    return torch.softmax(beta * scores, -1)"),
        ("q1_scores", """
def scores_of(hidden, w_query, w_key):
    return regard.reference.absolute_scores(hidden, 0 * hidden, w_query, w_key).content_content
"""),
        ("q3_attention", """
def attention(query, key, value, beta=None):
    return regard.attention(query[None], key[None], value[None], beta=beta)[0]
"""),
        ("q3_attention", """
from regard.reference import attention as own

def attention(query, key, value, beta=None):
    return own(query, key, value, beta=beta)[0]
"""),
        ("q3_attention", """
def attention(query, key, value, beta=None):
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=beta)
"""),
        ("q3_attention", """
def attention(query, key, value, beta=None):
    beta = query.shape[-1] ** -0.5 if beta is None else beta
    return (beta * query @ key.mT).softmax(-1) @ value
"""),
        ("q5_keep", """
def masked_attention(query, key, value, keep):
    return regard.reference.attention(query, key, value, keep=keep)[0]
"""),
    ],
    "2-sequences": [
        ("q1_step", """
def rnn_step(x, hidden, w_input, w_hidden, bias):
    return torch.rnn_tanh_cell(x, hidden, w_input, w_hidden, bias, 0 * bias)
"""),
        ("q4_attend", """
def attend(queries, states, keep=None):
    states = states[:, None]
    keep = None if keep is None else keep[:, None, None]
    found = regard.attention(queries[:, None], states, states, beta=1.0, keep=keep, return_weights=True)
    return found[0][:, 0], found[1][:, 0]
"""),
        ("q6_sine", "from regard.reference import sinusoidal_positions as sine_positions"),
    ],
    "3-transformer": [
        ("q3_multi_head", """
def multi_head_attention(x, context, *weights_and_heads, keep=None):
    *weights, heads = weights_and_heads
    return regard.reference.multi_head_attention(x, context, *weights, heads=heads, keep=keep)[0]
"""),
        ("q4_cost", """
def multiply_adds(tokens, dim, heads):
    return regard.cost(regard.MultiHeadAttention(dim, heads), (1, tokens, dim)).multiply_adds
"""),
        ("q5_causal", "causal_keep = regard.reference.causal_keep"),
    ],
    "4-vision-transformer": [("q6_rollout", "def rollout(weights):\n    return regard.rollout(weights)")],
    "5-attention-and-convolution": [
        ("q1_scores", """
def gaussian_scores(center, sharpness, grid):
    return regard.reference.gaussian_scores(center[None], torch.tensor([sharpness]), grid)[0]
"""),
        ("q7_theorem_two", """
def convolve_by_attention(x, kernel, bias, sharpness):
    return F.conv2d(x.movedim(-1, 0)[None], kernel, bias, padding=kernel.shape[-1] // 2)[0].movedim(0, -1)
"""),
        ("q8_gelu", "gelu = F.gelu\ndef gelu_tanh(x):\n    return nn.GELU('tanh')(x)"),
        ("q9_layer_norm", """
def layer_norm(x, weight, bias, epsilon=1e-5):
    return F.layer_norm(x, weight.shape, weight, bias, epsilon)
"""),
        ("q9_layer_norm", "from regard.reference import layer_norm"),
    ],
}  # fmt: skip
