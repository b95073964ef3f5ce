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
        Wrong("pencil", "1054, 852, -396", "1054, 852, 396", "the three scores: wrong at"),
        Wrong("pencil", "(23, 46)", "(25, 39)", "second token's own value"),
        Wrong("pencil", "(23, 46)", "(23, 46, 1)", "give 2 numbers"),
        Wrong("dense", "matrix[torch.arange(len(choice)), torch.tensor(choice)] = 1.0",
              "matrix += 1 / keys", "equal weights dilute"),
        Wrong("dense", "1 / keys", "1.0", "needs 1/keys"),
        Wrong("permutation", "tokens[order].T @ torch.linalg.pinv(tokens).T",
              "torch.linalg.pinv(tokens) @ tokens[order]", "the inverse"),
        Wrong("permutation", "torch.linalg.pinv(tokens).T", "tokens", "the token that each token reads|unit vectors alone"),
        Wrong("running", "w_out @ w_value", "w_value", "output matrix is not used"),
        Wrong("stretched", "(factor - 1)", "factor", "exponent has α − 1"),
        Wrong("stretched", "beta * (factor - 1) * score", "(factor - 1) * score", "the weights after"),
        Wrong("stretched", " / (1 + weights[:, which] * (ratio - 1))[:, None]", "", "no longer sums to one"),
        Wrong("scores", "hidden @ w_query.T", "hidden @ w_query", "the matrices are not transposed|shapes cannot"),
        Wrong("scores", "query @ key.T", "key @ query.T", "queries belong in the rows"),
        Wrong("scores", "hidden @ w_key.T", "hidden", "only the query is projected"),
        Wrong("softargmax", "torch.exp(scores -", "torch.exp(-scores +", "the sign is wrong"),
        Wrong("softargmax", "powers.sum(dim=-1, keepdim=True)", "powers.sum(dim=0, keepdim=True)", "the columns sum to one"),
        Wrong("softargmax", " - scores.max(dim=-1, keepdim=True).values", "", "subtract the largest score"),
        Wrong("softargmax", "scores.max(dim=-1, keepdim=True).values", "scores.max()", "of each row by itself"),
        Wrong("softargmax", "beta * scores", "scores", "β is not used"),
        Wrong("softargmax", "beta * scores", "scores / beta", "you divide by it"),
        Wrong("attention", "1 / math.sqrt(query.shape[-1])", "1.0", "not divided by √d"),
        Wrong("attention", "1 / math.sqrt(query.shape[-1])", "1 / query.shape[-1]", "it should be √d"),
        Wrong("attention", "1 / math.sqrt(query.shape[-1])", "1 / math.sqrt(value.shape[-1])", "not of the values"),
        Wrong("attention", "1 / math.sqrt(query.shape[-1])", "1 / math.sqrt(query.shape[1])", "attention in a batch"),
        Wrong("attention", "if beta is None", "if True", "β is given here, and not used"),
        Wrong("attention", "query @ key.mT, beta", "query @ key.mT", "go into the softargmax without it"),
        Wrong("attention", "beta is None", "not beta", "β = 0 counts as False"),
        Wrong("attention", "weights @ value", "weights.mT @ value", "transposed before they meet"),
        Wrong("attention", "weights @ value", "weights.detach() @ value.detach()", "no gradient"),
        Wrong("hard", "scores == scores.max(dim=-1, keepdim=True).values",
              "torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1])", "argmax hides ties"),
        Wrong("hard", "best / best.sum(dim=-1, keepdim=True) @ value", "best @ value", "divide by how many tie"),
        Wrong("hard", "keepdim=True) @ value", "keepdim=True) @ key", "return their values"),
        Wrong("keep", "~keep", "keep", "True means attend"),
        Wrong("keep", ".masked_fill(~keep, -1e9)", "", "no longer sums to one"),
        Wrong("keep", "softargmax(scores) * keep", "softargmax(scores)", "gets the mean of all values"),
        Wrong("keep", "-1e9", "-torch.inf", "it should give zeros"),
        Wrong("perturbed", "return beta * weights", "return weights", "factor β is missing"),
        Wrong("perturbed", " * (is_moved - weights[:, which, None])", "", "w_a. is missing"),
        Wrong("perturbed", "(is_moved - weights[:, which, None])", "(is_moved - weights)", "the weight of the moved key"),
        Wrong("kernel", "-0.5 * x_train", "-x_train", "the weight of each sample: wrong"),
        Wrong("kernel", "-0.5 * x_train", "0.5 * x_train", "wrong sign"),
        Wrong("kernel", "1 / bandwidth**2", "1 / bandwidth", "not 1/h"),
        Wrong("graph", "(edges / edges.sum())", "edges", "divided by their sum"),
        Wrong("graph", "in enumerate(neighbors)", "in enumerate([list(range(len(key)))] * len(key))", "neighbors alone"),
        Wrong("graph", " / math.sqrt(query.shape[-1])", "", "not divided by √d"),
    ],
    "2-sequences": [
        Wrong("roles", "torch.cat([first, target[:, :-1]], dim=1)", "target", "the token it has to say"),
        Wrong("roles", "return source,", "return target,", "reads the source"),
        Wrong("one_hot", "weight[:, features:].T", "weight[:, features:]", "position t is to be row t"),
        Wrong("one_hot", "[:, features:]", "[:, :features]", "belong to the features|shape"),
        Wrong("changes", 'learned = {"encoder weights", "decoder weights"}',
              'learned = {"decoder weights"}', "encoder weights"),
        Wrong("changes", 'changes = {"input", ', 'changes = {"decoder weights", "input", ', "in both sets"),
        Wrong("step", "torch.tanh", "", "tanh is missing"),
        Wrong("step", " + bias", "", "the bias is missing"),
        Wrong("step", "w_hidden.T", "w_hidden", "W_h is not transposed"),
        Wrong("encode", "torch.zeros", "torch.ones", "start from zeros"),
        Wrong("encode", "dim=1", "dim=0", "stack the states along dim=1"),
        Wrong("encode", "return torch.stack(states, dim=1)", "return hidden", "only the last state"),
        Wrong("encode", "range(x.shape[1])", "reversed(range(x.shape[1]))", "from the last to the first"),
        Wrong("changes", '{"input", "last state", "output"}', '{"input", "output"}', "think again about 'last state'"),
        Wrong("changes", '"last state"', '"last state", "decoder weights"', "are they afterwards"),
        Wrong("attend", "dim=-1", "dim=1", "not over the decoder's steps"),
        Wrong("attend", "if keep is not None", "if False", "padding gets weight"),
        Wrong("attend", "~keep", "keep", "attend to padding|NaN"),
        Wrong("aligned", " + offset", "", "offset is not used"),
        Wrong("aligned", ".mean()", ".sum()", "divide by all"),
        Wrong("sine", "[angle.sin(), angle.cos()]", "[angle.cos(), angle.sin()]", "sine and cosine are swapped"),
        Wrong("sine", "dim=-1).flatten(1)", "dim=1).flatten(1)", "they should take turns"),
        Wrong("sine", "torch.arange(length)", "torch.arange(1, length + 1)", "count from 0"),
        Wrong("shift", "[[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]]",
              "[[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]]", "beside P_"),
        Wrong("lookup", "positions @ shift_matrix(shift, positions.shape[1]).T", "positions", "reads its own token"),
        Wrong("lookup", "positions.shape[1]).T", "positions.shape[1])", "reads token t − 1"),
    ],
    "3-transformer": [
        Wrong("one_pixel", " + b_out", "", "bias is missing"),
        Wrong("one_pixel", "z[place]", "z[place[::-1]]", "output at|index"),
        Wrong("parameters", "heads * value * out", "value * out", "block of rows for every head"),
        Wrong("parameters", "2 * hidden + value", "hidden + value", "a matrix each"),
        Wrong("paths", "tokens - 1\n", "tokens\n", "n − 1 steps"),
        Wrong("paths", "(tokens - 1) / (kernel - 1)", "tokens / kernel", "steps and paths|convolutions"),
        Wrong("paths", "(tokens - 1) / (kernel - 1)", "(tokens - 2) / (kernel - 1)", "round up"),
        Wrong("paths", "(tokens - 1) / (kernel - 1)", "(tokens - 1) / kernel", "steps and paths|convolutions"),
        Wrong("paths", "math.ceil((tokens - 1) / (kernel - 1))", "(tokens - 1) // (kernel - 1)", "round up"),
        Wrong("variance", "return mean @ mean", "return mean.sum() ** 2", "add the squares"),
        Wrong("variance", "math.sqrt(width)", "width", "makes the variance 1/d"),
        Wrong("variance", "2 * deviation", "2 * len(mean) * deviation", "d is counted twice"),
        Wrong("variance", "deviation**4", "deviation**2", "has σ⁴"),
        Wrong("variance", "2 * deviation**2", "deviation**2", "missing a factor 2"),
        Wrong("heads", "x.reshape(batch, tokens, heads, dim // heads).transpose(1, 2)",
              "x.reshape(batch, heads, tokens, dim // heads)", "all tokens with some features"),
        Wrong("heads", "x.transpose(1, 2).reshape(batch, tokens, heads * width)",
              "x.reshape(batch, tokens, heads * width)", "swap heads and tokens back"),
        Wrong("multi_head", "math.sqrt(query.shape[-1])", "math.sqrt(x.shape[-1])", "not of dim"),
        Wrong("multi_head", " / math.sqrt(query.shape[-1])", "", "not divided"),
        Wrong("multi_head", " @ w_out.T", "", "w_out is missing"),
        Wrong("multi_head", "if keep is not None", "if False", "keep is not used"),
        Wrong("cost", "4 * tokens", "3 * tokens", "make four"),
        Wrong("cost", "dim // heads", "dim", "heads times too much"),
        Wrong("cost", "projections + scores + sums", "projections + scores", "only one of the two products"),
        Wrong("causal", "<= place", "< place", "may see itself"),
        Wrong("causal", " + keys - queries", "", "the queries are the last tokens"),
        Wrong("causal", "<= place", ">= place", "looks ahead"),
        Wrong("block", "torch.relu(x @ w1.T + b1)", "(x @ w1.T + b1)", "are one linear map"),
        Wrong("block", 'order == "post"', 'order == "pre"', "the orders are swapped"),
        Wrong("pool", "keep.sum(1)", "vectors.shape[1]", "divide by the number of tokens"),
        Wrong("pool", "(vectors * keep).sum(1) / keep.sum(1)", "vectors.mean(1)", "padding is averaged in"),
    ],
    "4-vision-transformer": [
        Wrong("vision_parameters", "1 + (size // patch) ** 2", "(size // patch) ** 2", "a position for the class token"),
        Wrong("vision_parameters", "+ 2 * dim + (dim * classes", "+ (dim * classes", "last norm is missing"),
        Wrong("vision_parameters", "channels * patch * patch * dim", "patch * patch * dim", "the number of parameters"),
        Wrong("vision_block", "(weights @ value).transpose(1, 2)", "(weights @ value)", "swapping heads and tokens back"),
        Wrong("patches", "x.permute(0, 2, 4, 1, 3, 5)", "x", "pixels of several image rows|wrong at"),
        Wrong("patches", "x.permute(0, 2, 4, 1, 3, 5)", "x.permute(0, 4, 2, 1, 3, 5)", "along the rows"),
        Wrong("patches", "x.permute(0, 2, 4, 1, 3, 5)", "x.permute(0, 2, 4, 3, 5, 1)", r"\(channel, row, column\)"),
        Wrong("patch_convolution", "patch, patch), patch", "patch, patch), 1", "patches overlap"),
        Wrong("patch_convolution", "patch, patch), patch", "patch, patch).flip(2, 3), patch", "kernel is flipped"),
        Wrong("vision_block", " / math.sqrt(query.shape[-1])", "", "not divided"),
        Wrong("vision_block", "x + self.attention(self.norm1(x))", "self.attention(self.norm1(x))", "first residual"),
        Wrong("vision_block", "x + self.mlp(self.norm2(x))", "self.mlp(self.norm2(x))", "second residual"),
        Wrong("vision_block", "self.norm1(x))", "x)", "first norm is missing"),
        Wrong("vision_transformer", " + self.positions", "", "positions are not added"),
        Wrong("vision_transformer", "[:, 0]", "[:, -1]", "token 0"),
        Wrong("vision_transformer", "[:, 0]", ".mean(1)", "read the class token alone"),
        Wrong("vision_transformer", "self.norm(x)", "x", "last norm is missing"),
        Wrong("class_attention", "[:, :, 0, 1:]", "[:, :, 1:, 0]", "who looks at the class token"),
        Wrong("class_attention", "[:, :, 0, 1:]", "[:, :, 0, :-1]", "leave key 0 out"),
        Wrong("rollout", "@ total", "@ total.mT", "wrong at"),
        Wrong("rollout", "0.5 * layer.mean(1) + 0.5 * torch.eye(layer.shape[-1])", "layer.mean(1)", "residual is missing"),
        Wrong("rollout", "layer.mean(1)", "layer.amax(1)", "not the largest"),
    ],
    "5-attention-and-convolution": [
        Wrong("embeddings", "z + self.weight", "z * self.weight", "add them"),
        Wrong("embeddings", "place[None, :, :] - place[:, None, :]", "place[:, None, :] - place[None, :, :]", "key − query"),
        Wrong("visualize", "weight @ weight.T", "weight", "draw weight @ weight.T"),
        Wrong("visualize", "torch.softmax(embedding(grid).detach(), dim=-1)", "embedding(grid).detach()", "these are scores"),
        Wrong("verify_limit", "copy_(center[None])", "copy_(-center[None])", "the other way"),
        Wrong("kernel_from_beta", "beta * scores", "scores", "β is not used"),
        Wrong("kernel_from_beta", "dim=0)[None, None]", "dim=0).flip(0)[None, None]", "flipped"),
        Wrong("place_cost", "tokens * dim**2 + 3 * tokens**2", "3 * tokens**2", "still projected"),
        Wrong("place_cost", "3 * tokens * dim**2", "4 * tokens * dim**2", "no output projection"),
        Wrong("padding", "nearest", "zero", "where does a head's weight go"),
        Wrong("padding", "(size - 1) // 2", "size // 2", "reaches one pixel further"),
        Wrong("dilation", "dilation * (", "(", "undilated"),
        Wrong("dilation", "size // 2", "size / 2", "without a fraction"),
        Wrong("stride", " - 1) //", ") //", "left out the last 1"),
        Wrong("stride", "torch.arange(0, rows, stride)", "torch.arange(rows)", "on both axes"),
        Wrong("stride", " + 1", "", "the first output counts"),
        Wrong("factors", "mixed = column_map @ value", "mixed = torch.kron(column_map, column_map) and value", "torch's kron"),
        Wrong("gelu", "gelu(x) - gelu_tanh(x)", "gelu_tanh(x) - gelu(x)", "tanh minus exact"),
        Wrong("bert_ffn", "gelu(self.up(x))", "torch.relu(self.up(x))", "BERT has a GELU"),
        Wrong("place_scores", "place[None, :, :] - place[:, None, :]", "place[:, None, :] - place[None, :, :]", "key − query"),
        Wrong("place_scores", "- center)", "- center.flip(0))", "rows and columns are swapped"),
        Wrong("place_scores", "-sharpness *", "-", "sharpness α is missing"),
        Wrong("encoding", "return -sharpness *", "return", "factor −α is missing"),
        Wrong("encoding", "return -center.square().sum()", "return center.square().sum()", "the sign"),
        Wrong("peak", ".sum() ** 2", ".sum()", "the weight on a line"),
        Wrong("peak", "torch.arange(-200, 201)", "torch.arange(201)", "negative numbers, too"),
        Wrong("factors", "place[None, :] - place[:, None]", "place[:, None] - place[None, :]", "wrong way"),
        Wrong("factors", "ij,jkd->ikd", "ji,jkd->ikd", "wrong at"),
        Wrong("sum_of_heads", "w_out.reshape(len(w_out), heads, width).transpose(0, 1)",
              "w_out.reshape(len(w_out), width, heads).permute(2, 0, 1)", "every second one"),
        Wrong("theorem_one", ".float() - size // 2", ".float()", "count from 0"),
        Wrong("theorem_one", ".float() - size // 2", ".float().neg() + size // 2", "centers are mirrored"),
        Wrong("theorem_one", "kernel.permute(2, 3, 0, 1)", "kernel.permute(2, 3, 1, 0)", "out and in are swapped"),
        Wrong("theorem_one", "size // 2", "(size - 1) // 2", "made of your heads"),
        Wrong("theorem_two", "total = bias", "total = 0", "bias is missing"),
        Wrong("theorem_two", "total + weights @ tokens @ matrix.T", "total + weights @ tokens @ matrix.T + bias", "once"),
        Wrong("gelu", "torch.erf(x / math.sqrt(2))", "torch.erf(x)", "erf takes x/√2"),
        Wrong("gelu", "(x + 0.044715 * x**3)", "x", "cubic term is missing"),
        Wrong("gelu", "plot(x, gelu(x) - ", "plot(gelu(x) - ", "pass x to plot, too"),
        Wrong("layer_norm", "centered.square().mean(dim=-1, keepdim=True)", "x.var(dim=-1, keepdim=True)", "not by one less"),
        Wrong("layer_norm", "torch.sqrt(variance + epsilon)", "(torch.sqrt(variance) + epsilon)", "under the root"),
        Wrong("layer_norm", " * weight + bias", "", "weight and bias are not used"),
        Wrong("bert_ffn", "x + self.down", "self.down", "residual is missing"),
        Wrong("bert_ffn", "gelu(self.up(x))", "self.up(x)", "GELU is missing"),
        Wrong("covered", "max(abs(place[0]), abs(place[1]))", "abs(place[0])", "the places covered"),
        Wrong("covered", "center.round().int()", "center.int()", "nearest pixel"),
    ],
}  # fmt: skip


# Answers that hand the work to somebody else: none of the question's checks may pass.
CHEATS = {
    "1-attention-by-hand": [
        ("softargmax", "from regard import softargmax"),
        ("softargmax", "def softargmax(scores, beta=1.0):\n    return torch.softmax(beta * scores, -1)"),
        ("scores", """
def scores_of(hidden, w_query, w_key):
    return regard.reference.absolute_scores(hidden, 0 * hidden, w_query, w_key).content_content
"""),
        ("attention", """
def attention(query, key, value, beta=None):
    return regard.attention(query[None], key[None], value[None], beta=beta)[0]
"""),
        ("attention", """
from regard.reference import attention as own

def attention(query, key, value, beta=None):
    return own(query, key, value, beta=beta)[0]
"""),
        ("attention", """
def attention(query, key, value, beta=None):
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=beta)
"""),
        ("attention", """
def attention(query, key, value, beta=None):
    beta = query.shape[-1] ** -0.5 if beta is None else beta
    return (beta * query @ key.mT).softmax(-1) @ value
"""),
        ("keep", """
def masked_attention(query, key, value, keep):
    return regard.reference.attention(query, key, value, keep=keep)[0]
"""),
    ],
    "2-sequences": [
        ("step", """
def rnn_step(x, hidden, w_input, w_hidden, bias):
    return torch.rnn_tanh_cell(x, hidden, w_input, w_hidden, bias, 0 * bias)
"""),
        ("attend", """
def attend(queries, states, keep=None):
    states = states[:, None]
    keep = None if keep is None else keep[:, None, None]
    found = regard.attention(queries[:, None], states, states, beta=1.0, keep=keep, return_weights=True)
    return found[0][:, 0], found[1][:, 0]
"""),
        ("sine", "from regard.reference import sinusoidal_positions as sine_positions"),
    ],
    "3-transformer": [
        ("multi_head", """
def multi_head_attention(x, context, *weights_and_heads, keep=None):
    *weights, heads = weights_and_heads
    return regard.reference.multi_head_attention(x, context, *weights, heads=heads, keep=keep)[0]
"""),
        ("cost", """
def multiply_adds(tokens, dim, heads):
    return regard.cost(regard.MultiHeadAttention(dim, heads), (1, tokens, dim)).multiply_adds
"""),
        ("causal", "causal_keep = regard.reference.causal_keep"),
    ],
    "4-vision-transformer": [("rollout", "def rollout(weights):\n    return regard.rollout(weights)")],
    "5-attention-and-convolution": [
        ("place_scores", """
def gaussian_scores(center, sharpness, grid):
    return regard.reference.gaussian_scores(center[None], torch.tensor([sharpness]), grid)[0]
"""),
        ("theorem_two", """
def convolve_by_attention(x, kernel, bias, sharpness):
    return F.conv2d(x.movedim(-1, 0)[None], kernel, bias, padding=kernel.shape[-1] // 2)[0].movedim(0, -1)
"""),
        ("gelu", "gelu = F.gelu\ndef gelu_tanh(x):\n    return nn.GELU('tanh')(x)"),
        ("layer_norm", """
def layer_norm(x, weight, bias, epsilon=1e-5):
    return F.layer_norm(x, weight.shape, weight, bias, epsilon)
"""),
        ("layer_norm", "from regard.reference import layer_norm"),
    ],
}  # fmt: skip

# Slips that a public check must catch by itself.
PUBLIC = {
    "1-attention-by-hand": [
        Wrong("softargmax", "beta * scores", "scores", "β is not used"),
        Wrong("softargmax", "powers.sum(dim=-1, keepdim=True)", "powers.sum(dim=0, keepdim=True)", "the columns sum to one"),
        Wrong("keep", "~keep", "keep", "True means attend"),
        Wrong("keep", ".masked_fill(~keep, -1e9)", "", "no longer sums to one"),
        Wrong("keep", "-1e9", "-torch.inf", "gives NaN"),
        Wrong("softargmax", "scores = beta * scores", "scores *= beta", "in place"),
    ],
    "2-sequences": [
        Wrong("shift", "return torch.block_diag(*blocks)", "return blocks", "R: must be a tensor of shape .6, 6., not a list"),
        Wrong("attend", "return context, weights", "return context", "return 2 things: the context, the weights"),
        Wrong("step", "return torch.tanh", "hidden += 1\n    return torch.tanh", "in place"),
        Wrong("attend", "~keep[:, None, :]", "keep[:, None, :]", "you leave those out|those left out"),
        Wrong("attend", "if keep is not None", "if False", "keep is not used"),
    ],
    "3-transformer": [
        Wrong("variance", "2 * deviation", "2 * len(mean) * deviation", "d is counted twice"),
        Wrong("multi_head", "context @ w_value.T",
              "x @ w_value.T", "keys and values come from context|does not fit|shape|size"),
        Wrong("multi_head", "if keep is not None", "if False", "keep is not used"),
        Wrong("multi_head", "masked_fill(~keep", "masked_fill(keep", "True means attend"),
        Wrong("multi_head", "torch.softmax(scores, dim=-1)", "torch.softmax(scores, dim=-2)", "over the queries"),
        Wrong("multi_head", "merge_heads(torch.softmax(scores, dim=-1) @ value)",
              "(torch.softmax(scores, dim=-1) @ value).reshape(x.shape)", "merge them first"),
        Wrong("block", "norm(x + sublayer(x))", "(x + sublayer(x))", "norms are left out"),
    ],
    "4-vision-transformer": [
        Wrong("vision_block", "self.norm1(x))", "x)", "first norm is missing"),
        Wrong("vision_block", "dim=-1)\n", "dim=-2)\n", "over the keys"),
        Wrong("vision_block", "(weights @ value).transpose(1, 2)", "(weights @ value)", "swapping heads and tokens back"),
    ],
    "5-attention-and-convolution": [
        Wrong("factors", "mixed = column_map @ value", "mixed = torch.kron(column_map, column_map) and value", "torch's kron"),
        Wrong("bert_ffn", "layer_norm(x + self.down(gelu(self.up(x))), self.weight, self.bias)",
              "x + self.down(gelu(self.up(x)))", "norm is missing"),
    ],
}  # fmt: skip
