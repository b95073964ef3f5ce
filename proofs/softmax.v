(** * Softmax over a finite set of keys

    The weights of one query. A score [s] is any function from the keys to the reals; keys are any finite type. *)

From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp.analysis Require Import reals sequences exp.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory.
Local Open Scope ring_scope.

Section Softmax.
Variables (R : realType) (K : finType).
Implicit Types (s : K -> R) (v : K -> R) (b : R) (k : K).

(** softmax(s)_k = e^{s_k} / Σ_j e^{s_j} *)
Definition softmax s k : R := expR (s k) / \sum_j expR (s j).

(** softargmax_β(s) = softmax(β s) *)
Definition softargmax b s k : R := softmax (fun j => b * s j) k.

(** Attention of one query: the average of the values with the weights of its scores. *)
Definition attend s v : R := \sum_k softmax s k * v k.

Lemma total_gt0 s k : 0 < \sum_j expR (s j).
Proof.
rewrite (bigD1 k) //=; apply: (lt_le_trans (expR_gt0 (s k))).
by rewrite ler_addl; apply: sumr_ge0 => j _; exact: ltW (expR_gt0 _).
Qed.

Lemma total_neq0 s k : \sum_j expR (s j) != 0.
Proof. by rewrite gt_eqF // (total_gt0 s k). Qed.

(** Every key has some weight: at a finite score nothing is ever left out. *)
Theorem softmax_gt0 s k : 0 < softmax s k.
Proof. by rewrite divr_gt0 ?expR_gt0 // (total_gt0 s k). Qed.

Lemma softmax_ge0 s k : 0 <= softmax s k.
Proof. exact/ltW/softmax_gt0. Qed.

(** The weights of a query sum to one (where there is a key at all). *)
Theorem softmax_sum1 s k : \sum_j softmax s j = 1.
Proof. by rewrite -mulr_suml divff // (total_neq0 s k). Qed.

Lemma eq_softmax s s' : s =1 s' -> softmax s =1 softmax s'.
Proof. by move=> e k; rewrite /softmax e; congr (_ / _); apply: eq_bigr => j _; rewrite e. Qed.

(** Adding one constant to all scores of a query changes no weight. *)
Theorem softmax_shift s b k : softmax (fun j => s j + b) k = softmax s k.
Proof.
rewrite /softmax expRD; have -> : \sum_j expR (s j + b) = (\sum_j expR (s j)) * expR b.
  by rewrite big_distrl; apply: eq_bigr => j _; rewrite expRD.
by rewrite invfM mulrACA divff ?mulr1 // gt_eqF ?expR_gt0.
Qed.

(** Scores that differ by a constant have the same weights. *)
Corollary softmax_up_to_constant s s' b : (forall k, s' k = s k + b) -> softmax s' =1 softmax s.
Proof. by move=> e k; rewrite (eq_softmax e) softmax_shift. Qed.

(** The ratio of two weights is the exponential of the difference of their scores. *)
Theorem softmax_ratio s j k : softmax s j / softmax s k = expR (s j - s k).
Proof.
rewrite /softmax expRB; set Z := \sum_i _.
have Z0 : Z != 0 by exact: total_neq0 s j.
by rewrite invf_div mulrA divfK.
Qed.

(** A higher score has the higher weight. *)
Theorem softmax_lt s j k : s j < s k -> softmax s j < softmax s k.
Proof.
move=> lt_s; rewrite -[ltRHS]mul1r -ltr_pdivr_mulr ?softmax_gt0 // softmax_ratio.
by rewrite expR_lt1 subr_lt0.
Qed.

Lemma softmax_le1 s k : softmax s k <= 1.
Proof. by rewrite -(softmax_sum1 s k) (bigD1 k) //= ler_addl sumr_ge0 // => j _; exact: softmax_ge0. Qed.

End Softmax.
