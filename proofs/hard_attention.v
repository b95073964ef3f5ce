(** * Hard attention: what comes out at β → ∞

    Where one key is best its value comes out unchanged; distinct tokens of equal length each pick themselves. *)

From mathcomp Require Import all_ssreflect all_algebra ring.
From mathcomp.classical Require Import boolp classical_sets functions.
From mathcomp.analysis Require Import reals topology normedtype sequences exp.
From regard Require Import softmax limits encodings.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory numFieldNormedType.Exports.
Local Open Scope classical_set_scope.
Local Open Scope ring_scope.

Section HardAttention.
Variables (R : realType) (K : finType) (s : K -> R) (m : K).
Hypothesis m_alone : forall k, k != m -> s k < s m.

Lemma best_alone k : best s k = (k == m).
Proof.
apply/forallP/eqP => [h|-> j]; last by have [->|/m_alone/ltW] := eqVneq j m.
by apply/eqP; apply: contraT => /m_alone; rewrite ltNge h.
Qed.

(** Where one key scores best, hard attention is a one at that key. *)
Theorem hardmax_alone k : hardmax s k = (k == m)%:R.
Proof.
have -> : hardmax s k = (best s k)%:R / #|best s|%:R by [].
by rewrite (eq_card (B := pred1 m)) ?card1 ?divr1 ?best_alone // => j; rewrite inE -best_alone.
Qed.

(** As β → ∞, where one key scores best, the output tends to that key's value. *)
Theorem values_preserved (v : K -> R) : (\sum_k softargmax b s k * v k) @[b --> +oo] --> v m.
Proof.
have -> : v m = \sum_k hardmax s k * v k.
  rewrite (bigD1 m) //= hardmax_alone eqxx mul1r big1 ?addr0 // => k km.
  by rewrite hardmax_alone (negbTE km) mul0r.
apply: cvg_finite_sum => k; apply: cvgMl; exact: beta_to_infinity.
Qed.

End HardAttention.

Section EqualLength.
Variables (R : realType) (d : nat) (K : finType) (x : K -> 'rV[R]_d) (l : R).
Hypotheses (distinct : injective x) (equal_length : forall k, dot (x k) (x k) = l).

Lemma dot_gt0 (u : 'rV[R]_d) : u != 0 -> 0 < dot u u.
Proof.
move=> /rV0Pn [i ui]; rewrite /dot mxE (bigD1 i) //= mxE ltr_paddr //.
  by apply: sumr_ge0 => j _; rewrite mxE -expr2 sqr_ge0.
by rewrite -expr2 lt_def sqrf_eq0 ui sqr_ge0.
Qed.

(** A token of equal length to all others scores itself best (Cauchy–Schwarz). *)
Lemma self_best q k : k != q -> dot (x q) (x k) < dot (x q) (x q).
Proof.
move=> kq; have : 0 < dot (x q - x k) (x q - x k).
  by apply: dot_gt0; rewrite subr_eq0 (inj_eq distinct) eq_sym.
have -> : dot (x q - x k) (x q - x k) = 2 * (l - dot (x q) (x k)).
  by rewrite !(dotDl, dotDr, dotNl, dotNr) !equal_length (dotC (x k)); ring.
by rewrite pmulr_rgt0 ?ltr0n // subr_gt0 equal_length.
Qed.

(** Distinct tokens of equal length, with W_q = W_k = I: as β → ∞ each attends to itself alone, so self-attention applies
    the value map at each place: the identity, or any function of the token. *)
Theorem tokens_pick_themselves (f : 'rV[R]_d -> R) (q : K) :
  (\sum_k softargmax b (fun k => dot (x q) (x k)) k * f (x k)) @[b --> +oo] --> f (x q).
Proof. exact: (@values_preserved R K (fun k => dot (x q) (x k)) q (@self_best q) (fun k => f (x k))). Qed.

End EqualLength.
