"""The questions of the five sheets, in our words: which claims answer each, and which exercises of the course ask it.

An exercise is ``<notebook>/<name>``, as in ``grader.check(name)`` of that notebook.
"""

from typing import NamedTuple


class SheetQuestion(NamedTuple):
    """A question, its number in the source, and where it is answered and asked.

    Attributes:
        number: its number in the source; empty for a statement of the sheet that is not a question.
        text: the question in our words.
        claims: the claims that answer it.
        exercises: the exercises that ask it, graded by checks or by a person.
        answer: an answer in words, if the claims do not cover all of it.
    """

    number: str
    text: str
    claims: tuple[str, ...] = ()
    exercises: tuple[str, ...] = ()
    answer: str = ""


Q = SheetQuestion

_HW4 = (
    Q("1.1 (a)", "What does dot-product attention return, written with matrices?", ("hw4-matrix-form",), ("1/attention",)),
    Q("1.1 (b)", "What does β do to the output, and which β is convenient?",
      ("hw4-beta-spread", "hw4-softargmax-sign", "hw4-beta-one", "hw4-beta-zero", "hw4-beta-scale"),
      ("1/softargmax", "3/variance")),
    Q("1.1 (c)", "When are values preserved, at which β and by which kind of attention, and how would a dense layer do it?",
      ("hw4-preserve", "hw4-doubly-stochastic", "hw4-four-types", "hw4-dense-equivalent"),
      ("1/hard", "1/dense", "1/own_words")),
    Q("1.1 (d)", "When are values diluted, at which β and by which kind, and how would a dense layer do it?",
      ("hw4-uniform-weight", "hw4-dense-equivalent"), ("1/dense", "1/own_words"),
      "At $\\beta = 0$, by soft attention: every key weighs the same and the output is the mean of the values."),
    Q("1.1 (e)", "One key moves a little: what happens to the output?", ("hw4-key-noise",), ("1/perturbed",)),
    Q("1.1 (f)", "One key is made longer: what happens to the output?", ("hw4-key-stretch",), ("1/stretched",)),
    Q("1.2 (a)", "What does multi-head attention return?", ("hw4-multihead",), ("3/multi_head", "3/heads")),
    Q("1.2 (b)", "What are several heads in a convolutional network?", ("hw4-heads-like-kernels",), ("3/heads_words",)),
    Q("1.3 (a)", "What are queries, keys, values and output of multi-head *self*-attention?",
      ("ex05-self", "hw4-multihead"), ("3/multi_head",),
      "All come from one input $C$: $Q_i = W_i^Q C$, $K_i = W_i^K C$, $V_i = W_i^V C$ with tokens as columns, one set for each "
      "head."),
    Q("1.3 (b)", "When does self-attention need positions, and when not?", ("hw4-position",), ("2/sine", "4/vision_words"),
      "Positions are needed if the order carries meaning (words, pixels, time) and the layer cannot know it otherwise; a set, "
      "such as unordered records, needs none."),
    Q("1.3 (c)", "When is self-attention the identity, or a permutation?", ("hw4-identity",), ("1/permutation",)),
    Q("1.3 (d)", "When is it a linear layer that runs over the tokens, and what is that called?",
      ("hw4-running-linear",), ("1/running",)),
    Q("1.3 (e)", "When is it a convolution with a kernel larger than 1?", ("hw4-conv-from-beta",), ("5/kernel_from_beta",)),
    Q("1.4 (a)", "How does the Transformer differ from recurrent sequence-to-sequence models?", ("hw4-no-recurrence",),
      ("3/paths", "3/recurrence_words"),
      "A recurrent network computes its states one after the other, and a signal between distant tokens passes through all "
      "states between them: $n$ steps, and a path that grows with the distance. Self-attention compares all pairs at once: one "
      "step that runs in parallel, a path of length one, at the price of $n^2$ scores. Positions carry the order, and in the "
      "decoder the causal mask does, too."),
    Q("1.4 (b)", "What is self-attention, and where is it in the Transformer?", ("hw4-decoder-attention",),
      ("3/causal", "3/recurrence_words"),
      "It relates the tokens of one sequence to each other, each reading from all the others by content."),
    Q("1.4 (c)", "What are the feed-forward networks, and what are they for?", ("hw4-ffn",), ("3/block",)),
    Q("1.4 (d)", "What are several heads good for?", ("e182-many-heads",), ("3/multi_head", "3/heads_words")),
    Q("1.4 (e)", "What does layer norm do, and where is it used?", ("hw4-postnorm",), ("5/layer_norm", "3/block")),
    Q("1.5 (a)", "How does the vision transformer read an image, and where is a convolution in it?",
      ("hw4-patch-is-conv",), ("4/patches", "4/patch_convolution"),
      "A convolutional network widens its view layer by layer with local kernels; the vision transformer cuts the image into "
      "patches once and lets every patch look at every other from the first layer on."),
    Q("1.5 (b)", "How does the vision transformer differ from the original Transformer?", (), ("4/vision_words",),
      "It is only an encoder: no decoder, no cross-attention, no causal mask. Its tokens are linearly projected patches instead "
      "of word embeddings; its positions are learned vectors instead of fixed sinusoids; a class token is added, from which a "
      "head predicts the class. It normalizes before each sub-layer instead of after the sum, and its feed-forward network has "
      "a GELU instead of a ReLU."),
    Q("1.5 (c)", "What are positions for in the vision transformer, and how do they differ from the original's?",
      ("hw4-vit-position",), ("4/vision_transformer", "4/vision_words"),
      "Without them an image would be a bag of patches: attention does not know order."),
    Q("1.5 (d)", "How does it predict a class?", ("hw4-class-token",), ("4/vision_transformer",)),
)  # fmt: skip

_C182 = (
    Q("(a)", "How is attention of several queries written with matrices?", ("c182-matrix-form",), ("1/attention",)),
    Q("(b) i", "How does the variance of $q \\cdot k$ grow with the width, and why is that a problem?",
      ("c182-variance-order", "c182-variance-product"), ("3/variance",),
      "Large scores drive the softmax into its flat ends: one weight near 1, gradients near 0."),
    Q("(b) ii", "By what should the product be divided?", ("c182-scale",), ("3/variance",)),
    Q("(b) iii", "What is the mean of $q \\cdot k$?", ("c182-mean-exact",), ("3/variance",)),
    Q("(b) iv", "What is its variance?", ("c182-variance-exact",), ("3/variance",)),
    Q("non-local means", "How is averaging over similar samples related to queries, keys and values?",
      ("c182-kernel-regression",), ("1/kernel",)),
    Q("(c) i", "Which widths must be equal?", ("c182-key-query-width",), ("3/cost",)),
    Q("(c) ii", "How many multiplications does self-attention take?", ("c182-cost",), ("3/cost",)),
    Q("(c) iii", "How wide are $h$ heads with as many parameters as one, and what is the gain?",
      ("c182-heads-cost", "c182-split-heads", "c182-head-pruning"), ("3/cost", "3/heads"),
      "Each has $1/h$ of the width. The number of multiplications stays the same; the gain is several maps at once, computed "
      "in parallel."),
    Q("3 (a)", "How does an encoder classify?", ("c182-pooling",), ("3/pool", "4/vision_transformer")),
    Q("3 (b)", "How does a transformer compare with a convolutional network?", ("c182-cnn-bias", "c182-data-scale"),
      ("4/vision_words",)),
    Q("4", "What is cross-attention, and how does it differ from self-attention?", ("c182-cross-attention",),
      ("1/attention", "3/multi_head"),
      "Queries come from one sequence, keys and values from another: it carries information from the second into the first. The "
      "two may have different lengths."),
)  # fmt: skip

_EX05 = (
    Q("1, question 1", "What do all the quantities of the attention equation mean?", ("ex05-scale",),
      ("1/scores", "1/own_words"),
      "Queries say what is looked for, keys what they are compared with, values what is returned; the learned matrices "
      "$W^Q, W^K, W^V$ make them from the input; the products of queries and keys are the scores, the root keeps their size "
      "independent of the width, and softmax turns them into weights that sum to one."),
    Q("1, question 2", "What is the attention map, what shape does it have, and how is it read?", ("ex05-map",),
      ("1/softargmax", "4/class_attention", "1/own_words")),
    Q("1, question 3", "What is self-attention?", ("ex05-self",), ("1/scores", "3/multi_head")),
    Q("1, question 4", "Why is it called a fully connected graph network?", ("ex05-graph",), ("1/graph", "1/own_words")),
    Q("2.2", "Why a residual update?", ("ex05-residual",), ("4/vision_block", "3/block")),
    Q("3.2", "How well does a small vision transformer fit, how many parameters does it have, and what does it look at?", (),
      ("4/vision_parameters", "4/class_attention", "4/rollout"),
      "Notebook 4 builds, trains and inspects one on small pictures of clothes and prints its accuracy. The recipe "
      "`ex05-vit` is a model of the sheet's size (five layers of width 64) on CIFAR-10; `regard train ex05-vit` runs it, and "
      "its measured accuracy is in the recipe's description."),
)  # fmt: skip

_A6 = (
    Q("1 (a.1)", "How many parameters does a multi-head self-attention layer have?", ("a6-parameters",), ("3/parameters",)),
    Q("1 (a.2)", "What does the layer compute for a single query pixel?", ("a6-query-form",), ("3/one_pixel",)),
    Q("", "Does self-attention know the order of its tokens?", ("a6-permutation",)),
    Q("", "What becomes of a score when positions are added to the tokens?", ("a6-absolute",), ("5/embeddings",)),
    Q("", "And if it may depend only on the offset?", ("a6-relative",), ("5/embeddings",)),
    Q("1 (b.1)", "What is left of that score with the Gaussian encoding?", ("a6-gaussian-simplify",), ("5/encoding",)),
    Q("1 (b.2)", "What does a head cost with absolute positions, and with Gaussian ones?", ("a6-cost",),
      ("5/place_cost",)),
    Q("1 (c.1)", "How is the layer a sum over its heads?", ("a6-sum-of-heads",), ("5/sum_of_heads",)),
    Q("1 (c.2)", "Which convolution do heads that look at one pixel form?", ("a6-theorem-1",), ("5/theorem_one",)),
    Q("1 (d.1)", "Where do the Gaussian weights go as they sharpen, and how fast?", ("a6-limit",),
      ("5/peak", "5/verify_limit")),
    Q("1 (d.2)", "Which constant does the squared distance need?", ("a6-constant",), ("5/encoding",)),
    Q("", "Can attention express every convolution?", ("a6-main-theorem",), ("5/theorem_two",)),
    Q("1 (e.1)", "For which padding do the two agree?", ("a6-padding",), ("5/padding",)),
    Q("1 (e.2)", "Can attention be dilated?", ("a6-dilation",), ("5/dilation",)),
    Q("1 (e.3)", "Can attention have a stride?", ("a6-stride",), ("5/stride",)),
    Q("2 (a)", "What do the encodings and the limit look like?", ("a6-gaussian-simplify", "a6-limit"),
      ("5/embeddings", "5/visualize", "5/verify_limit"),
      "`regard.figures.absolute_positions`, `relative_positions` and `limit` draw them; the exercises build "
      "`AbsolutePositionalEmbedding`, `RelativePositionalEmbedding`, their two pictures and `verify_limit`."),
    Q("2 (b)", "How far apart are the two forms of GELU?", ("a6-gelu",), ("5/gelu",)),
    Q("2 (c)", "What does layer norm compute, and where does a BERT block normalize?", ("hw4-postnorm",), ("5/layer_norm",)),
    Q("2 (d)", "What is the second half of a BERT block?", ("hw4-ffn",), ("5/bert_ffn",),
      "`BertFFN` computes $\\text{layernorm}(x + W_2 \\, \\text{gelu}(W_1 x + b_1) + b_2)$: the position-wise network "
      "below with a GELU in place of the ReLU, the residual, and the norm around the sum."),
    Q("2 (e)", "How do heads move in training, and what would support the main theorem?", ("a6-heads-move",),
      ("5/covered", "5/heads_moved"),
      "The theorem would be supported by $K^2$ sharp heads at the $K^2$ shifts of a kernel, one on each, on whole pixels."),
)  # fmt: skip

_E182 = (
    Q("1 (a) i", "What changes while a trained model is used?", ("e182-inference-fixed",), ("2/changes",)),
    Q("1 (a) ii", "How are the decoder's weights trained, and how does the gradient reach the encoder?",
      ("e182-gradient-path",), ("2/changes", "2/roles")),
    Q("1 (a) iii", "What are the input and output sequences for in training?", (), ("2/roles",),
      "The input sequence is what the encoder reads: all that is known about the source. The output sequence has two roles: "
      "the decoder reads it one step late, so that at each step it sees the correct tokens so far (*teacher forcing*), "
      "and the loss compares its prediction with the token of that step. Through that loss both sequences shape the weights: the "
      "encoder's to represent the source, the decoder's to write the target. In inference there is no output sequence; the "
      "decoder reads its own output."),
    Q("1 (b)", "What must one state hold, and what are its limits?", ("e182-bottleneck",), ("2/encode", "2/modules"),
      "All characters in order and the task's token, in a fixed width."),
    Q("1 (c)", "How is attention added to the encoder–decoder?", (), ("2/attend",),
      "At each step the decoder's state is the query. It is compared with all states of the encoder (dot products), softmax "
      "turns the scores into weights, the weighted sum of the encoder's states is the context, and the layer that reads out the "
      "next token gets the context in addition to the decoder's state."),
    Q("1 (d)", "With attention, what do encoder weights, scores, passed-on state and decoder weights provide?",
      ("e182-attention-bypass", "e182-position-and-counter"), ("2/modules", "2/aligned", "2/lookup")),
    Q("1 (e)", "How can positions be given to the tokens?", ("e182-one-hot", "e182-sine"), ("2/one_hot", "2/sine", "2/shift")),
    Q("2 (a)", "What are the scores of the worked example?", ("e182-scores",), ("1/pencil", "1/scores")),
    Q("2 (b)", "What is self-attention for one time step, in equations?", (), ("1/attention",),
      "$\\hat\\alpha_{2,j} = q_2 \\cdot k_j$, $\\alpha_2 = \\softmax(\\hat\\alpha_2)$ over $j$, "
      "and $h_2' = \\sum_j \\alpha_{2,j} v_j$, with $q_i = W_q h_i$, $k_i = W_k h_i$, $v_i = W_v h_i$. "
      "(In practice the scores are divided by $\\sqrt{d}$.)"),
    Q("2 (c)", "And with an arg max in place of the softmax?", ("e182-argmax",), ("1/pencil", "1/hard")),
    Q("2 (d)", "What is the gain of several heads?", ("e182-many-heads",), ("3/heads_words",)),
)  # fmt: skip

SHEETS: dict[str, tuple[SheetQuestion, ...]] = {"hw4": _HW4, "c182": _C182, "ex05": _EX05, "a6": _A6, "e182": _E182}
