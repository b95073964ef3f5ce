(** * Counterexamples: statements of the sources that fail, each refuted by one closed case

    The claim that each refutes is named as in [regard verify]. *)

From mathcomp Require Import all_ssreflect all_algebra perm zify ring.
From mathcomp.classical Require Import boolp classical_sets functions.
From mathcomp.analysis Require Import reals topology normedtype sequences exp.
From regard Require Import softmax limits symmetries expressivity.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory numFieldNormedType.Exports.
Local Open Scope classical_set_scope.
Local Open Scope ring_scope.

Section Counterexamples.
Variable R : realType.

(** Two scores, 0 and 1. *)
Definition two_scores (k : 'I_2) : R := k%:R.

Lemma two_scores_lt : two_scores 0 < two_scores 1.
Proof. by rewrite /two_scores ltr0n. Qed.

Lemma sum_two (V : zmodType) (f : 'I_2 -> V) : \sum_k f k = f 0 + f 1.
Proof. by rewrite !big_ord_recl big_ord0 addr0; congr (_ + f _); apply: val_inj. Qed.

Lemma expR1_neq1 : expR 1 != 1 :> R.
Proof. by rewrite gt_eqF // expR_gt1 ltr01. Qed.

Lemma half_eq (x y : R) : x + y != 0 -> (x / (x + y) = 2^-1) -> x = y.
Proof.
move=> xy0 /(congr1 (fun z => z * (x + y) * 2)); rewrite divfK // mulrAC mulVf ?pnatr_eq0 // mul1r.
by rewrite mulr_natr mulr2n => /addrI.
Qed.

(** hw4-softargmax-sign: At every β > 0, e^{-βz_i}/Σ e^{-βz_j} gives the larger of the scores 0 and 1 the smaller
    weight. *)
Theorem minus_sign_prefers_the_smaller (b : R) : 0 < b ->
  softmax (fun k => - (b * two_scores k)) 1 < softmax (fun k => - (b * two_scores k)) 0.
Proof. by move=> b0; apply: softmax_lt; rewrite ltr_opp2 ltr_pmul2l // two_scores_lt. Qed.

(** hw4-beta-one: At β = 1 no key is picked: of the scores 0 and 1 both keep some weight, with either sign. *)
Theorem beta_one_picks_nothing (sign : bool) (k : 'I_2) :
  0 < softargmax ((-1) ^+ sign) two_scores k < 1.
Proof.
rewrite softmax_gt0 /= /softargmax; pose s (j : 'I_2) := (-1) ^+ sign * two_scores j.
rewrite -[ltRHS](softmax_sum1 s k) [ltRHS](bigD1 k) //= ltr_addl.
have other : exists j : 'I_2, j != k by case: k => [[|[|//]] i]; [exists 1 | exists 0].
have [j jk] := other; rewrite (bigD1 j) //= ltr_paddr ?softmax_gt0 //.
by apply: sumr_ge0 => i _; exact: softmax_ge0.
Qed.

(** hw4-preserve: At β = 1 a value does not pass unchanged: of the values 0 and 1 the output is strictly between. *)
Theorem beta_one_changes_values : 0 < \sum_k softargmax 1 two_scores k * two_scores k < 1.
Proof.
rewrite sum_two {2 4}/two_scores mulr0 add0r mulr1.
by have := beta_one_picks_nothing false 1; rewrite expr0.
Qed.

(** hw4-uniform-weight: As β → 0 three keys of width 2, or of any other, weigh 1/3 each, not 1/2. *)
Theorem uniform_weight_is_not_one_over_width (s : 'I_3 -> R) (k : 'I_3) :
  softargmax b s k @[b --> (0 : R)] --> (3%:R^-1 : R) /\ 3%:R^-1 != 2%:R^-1 :> R.
Proof. by split; [have := beta_to_zero s k; rewrite card_ord | rewrite (inj_eq (@invr_inj _)) eqr_nat]. Qed.

(** hw4-doubly-stochastic: Queries 1 and 2, keys 1 and 0: hard attention of both picks the first key, whose weights sum
    to 2; the second key's sum to 0. *)
Theorem columns_do_not_sum_to_one : let score (q k : 'I_2) : R := q.+1%:R * (k == 0)%:R in
  \sum_q hardmax (score q) 0 = 2 /\ \sum_q hardmax (score q) 1 = 0.
Proof.
move=> score; have bestE q k : best (score q) k = (k == 0).
  rewrite /best /score; apply/forallP/eqP => [/(_ 0)|-> j]; last first.
    by rewrite ler_pmul2l ?ltr0n // ler_nat; case: (j == 0).
  by rewrite ler_pmul2l ?ltr0n // eqxx ler_nat; case: eqP.
have card1 q : #|best (score q)| = 1%N by rewrite (eq_card (bestE q)) card1.
by rewrite !sum_two /hardmax !card1 !bestE /= !divr1 addr0.
Qed.

(** hw4-identity: A large β is no permutation: of the tokens 1 and 2 both attend to 2 alone. *)
Theorem large_beta_is_no_permutation : let x (k : 'I_2) : R := k.+1%:R in
  forall q, \sum_k hardmax (fun k => x q * x k) k * x k = x 1.
Proof.
move=> x q; have bestE k : best (fun k => x q * x k) k = (k == 1).
  apply/forallP/eqP => [/(_ 1)|-> j]; last by rewrite ler_pmul2l ?ltr0n // ler_nat; case: j => [[|[|]]].
  rewrite ler_pmul2l ?ltr0n // ler_nat; by case: k => [[|[|//]] i] //= _; apply: val_inj.
have card1 : #|best (fun k => x q * x k)| = 1%N by rewrite (eq_card bestE) card1.
by rewrite sum_two /hardmax card1 !bestE /= !divr1 mul0r add0r mul1r.
Qed.

(** hw4-running-linear: At β = 0 attention over the tokens 0 and 1 gives token 0 the output 1/2, which no linear map of
    the token 0 gives. *)
Theorem beta_zero_is_no_linear_layer (w : R) :
  let output := \sum_k softargmax 0 (fun k => two_scores 0 * two_scores k) k * two_scores k in
  output = 2^-1 /\ output != w * two_scores 0.
Proof.
move=> output; rewrite /output sum_two !beta_zero card_ord /two_scores mulr0 add0r mulr1 mulr0.
by rewrite invr_neq0 // pnatr_eq0.
Qed.

(** a6-permutation: Self-attention is not permutation invariant: the tokens 0 and 1 change places, and the first output
    changes. *)
Theorem not_invariant : let attend (X : 'I_2 -> R) i := \sum_k softmax (fun k => X i * X k) k * X k in
  attend two_scores 0 <> attend (fun k => two_scores (1 - k)) 0.
Proof.
move=> attend; rewrite /attend !sum_two /softmax !sum_two /two_scores /=.
rewrite !(mulr0, mul0r, mulr1, mul1r, add0r, addr0) !expR0 => e.
apply: (negP expR1_neq1); apply/eqP; apply: half_eq; first by rewrite gt_eqF // addr_gt0 ?expR_gt0 ?ltr01.
by rewrite -e div1r.
Qed.

(** hw4-position: With a causal mask order matters: token 0 has the output 0 where it comes first, 1/2 where it comes
    after token 1. *)
Theorem causal_mask_sees_order :
  let causal (X : 'I_2 -> R) (i : 'I_2) :=
    \sum_(k < i.+1) softmax (fun j : 'I_i.+1 => X i * X (inord j)) k * X (inord k) in
  causal two_scores 0 = 0 /\ causal (fun k => two_scores (1 - k)) 1 = 2^-1.
Proof.
have i0 : inord 0 = 0 :> 'I_2 by apply: val_inj; rewrite /= inordK.
have i1 : inord 1 = 1 :> 'I_2 by apply: val_inj; rewrite /= inordK.
split; first by rewrite big_ord1 i0 /two_scores mulr0.
rewrite sum_two /= i0 i1 /two_scores /= !mulr0 addr0 mulr1.
rewrite /softmax sum_two /= !mul0r expR0 div1r; congr (_^-1).
Qed.

(** a6-theorem-1: Even kernels. Heads at query - key = -1 and 0 read the places q + 1 and q; no weights make of them the
    convolution that reads q - 1. *)
Theorem even_kernels_lack_a_head (w0 w1 : R) : exists Z : int -> R, exists q : int,
  Z (q - -1) * w0 + Z (q - 0) * w1 <> Z (q - 1).
Proof.
exists (fun p => (p == -1)%:R), 0; rewrite /= !mul0r addr0; apply/eqP; by rewrite eq_sym oner_neq0.
Qed.

(** a6-main-theorem: One head of width 1 cannot express the 1×1 convolution of some 2×2 matrix. *)
Theorem narrow_head_fails : exists M : 'M[R]_2, forall (Wv : 'M[R]_(2, 1)) (Wo : 'M[R]_(1, 2)),
  exists x : 'rV[R]_2, forall (K : finType) (weights : K -> R), \sum_k weights k = 1 ->
    (\sum_k weights k *: x) *m Wv *m Wo != x *m M.
Proof. exact: narrow_heads_fail. Qed.

(** c182-variance-product: Whatever the distributions of q and k, normal or not: if they are independent, with mean μ and
    deviation σ, neither of them 0, the variance of q·k is σ²(2μ² + σ²), not σ²(μ² + σ²). *)
Theorem variance_of_product (T : Type) (mean : (T -> R) -> R) (q k : T -> R) (mu sigma : R) :
  let variance f := mean (fun t => f t ^+ 2) - mean f ^+ 2 in
  mean q = mu -> mean k = mu -> variance q = sigma ^+ 2 -> variance k = sigma ^+ 2 ->
  mean (fun t => q t * k t) = mean q * mean k ->
  mean (fun t => (q t * k t) ^+ 2) = mean (fun t => q t ^+ 2) * mean (fun t => k t ^+ 2) ->
  mu != 0 -> sigma != 0 ->
  variance (fun t => q t * k t) = sigma ^+ 2 * (2 * mu ^+ 2 + sigma ^+ 2) /\
  variance (fun t => q t * k t) != sigma ^+ 2 * (mu ^+ 2 + sigma ^+ 2).
Proof.
move=> variance mq mk vq vk independent squares mu0 sigma0.
have q2 : mean (fun t => q t ^+ 2) = mu ^+ 2 + sigma ^+ 2 by rewrite -vq /variance mq addrC subrK.
have k2 : mean (fun t => k t ^+ 2) = mu ^+ 2 + sigma ^+ 2 by rewrite -vk /variance mk addrC subrK.
have -> : variance (fun t => q t * k t) = sigma ^+ 2 * (2 * mu ^+ 2 + sigma ^+ 2).
  by rewrite /variance independent squares q2 k2 mq mk; ring.
split=> //; rewrite -subr_eq0.
have -> : sigma ^+ 2 * (2 * mu ^+ 2 + sigma ^+ 2) - sigma ^+ 2 * (mu ^+ 2 + sigma ^+ 2) = (mu * sigma) ^+ 2 by ring.
by rewrite sqrf_eq0 mulf_neq0.
Qed.

(** Such numbers exist: q and k, each 0 or 2 with equal chance, have μ = σ = 1, and the variance of q·k is 3, not 2. *)
Lemma variance_of_zero_or_two :
  let mean (f : 'I_2 -> 'I_2 -> R) := (\sum_i \sum_j f i j) / 4 in
  let q (i j : 'I_2) : R := 2 * i%:R in let k (i j : 'I_2) : R := 2 * j%:R in
  let mu := mean q in let variance f := mean (fun i j => f i j ^+ 2) - mean f ^+ 2 in
  [/\ mean k = mu, variance q = variance k,
      variance (fun i j => q i j * k i j) = variance q * (2 * mu ^+ 2 + variance q)
    & variance (fun i j => q i j * k i j) != variance q * (mu ^+ 2 + variance q)].
Proof.
move=> mean q k mu variance.
have n4 : (4 : R) != 0 by rewrite pnatr_eq0.
have mq : mean q = 1 by rewrite /mean !sum_two /q /= !mulr0 !mulr1 !add0r; field.
have mk : mean k = 1 by rewrite /mean !sum_two /k /= !mulr0 !mulr1 !add0r; field.
have vq : variance q = 1 by rewrite /variance mq /mean !sum_two /q /= !mulr0 !mulr1; field.
have vk : variance k = 1 by rewrite /variance mk /mean !sum_two /k /= !mulr0 !mulr1; field.
have vp : variance (fun i j => q i j * k i j) = 3.
  by rewrite /variance /mean !sum_two /q /k /= !(mulr0, mulr1, mul0r); field.
rewrite /mu mq mk vq vk vp; split=> //; first by ring.
by rewrite mul1r expr1n -[1 + 1]/(2%:R) eqr_nat.
Qed.

End Counterexamples.
