(** * Symmetries: what attention cannot see

    Tokens are of any type [T], values in any vector space [V]; the score is any function of two tokens: attention by
    content, without positions. *)

From mathcomp Require Import all_ssreflect all_algebra perm.
From mathcomp.analysis Require Import reals sequences exp.
From regard Require Import softmax.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Symmetries.
Variables (R : realType) (V : lmodType R).

(** Renaming the keys renames the weights. *)
Theorem softmax_permute (K : finType) (s : K -> R) (pi : {perm K}) (k : K) :
  softmax (fun j => s (pi j)) k = softmax s (pi k).
Proof. by rewrite /softmax; congr (_ / _); rewrite [RHS](reindex_inj (@perm_inj _ pi)). Qed.

(** The output of one query: its weights times the values. *)
Definition output (K : finType) (s : K -> R) (v : K -> V) : V := \sum_k softmax s k *: v k.

(** Keys that change places together with their values change nothing. *)
Theorem keys_permute (K : finType) (s : K -> R) (v : K -> V) (pi : {perm K}) :
  output (fun k => s (pi k)) (fun k => v (pi k)) = output s v.
Proof.
rewrite /output [RHS](reindex_inj (@perm_inj _ pi)) /=.
by apply: eq_bigr => k _; rewrite softmax_permute.
Qed.

(** A constant added to all scores of a query changes no output. *)
Theorem constant_unseen (K : finType) (s : K -> R) (v : K -> V) (c : R) : output (fun k => s k + c) v = output s v.
Proof. by apply: eq_bigr => k _; rewrite softmax_shift. Qed.

Section SelfAttention.
Variables (T : Type) (score : T -> T -> R) (value : T -> V).

(** Self-attention without positions: token [i] of [X]. *)
Definition self_attention (K : finType) (X : K -> T) (i : K) : V :=
  output (fun k => score (X i) (X k)) (fun k => value (X k)).

(** Self-attention without positions is permutation equivariant: outputs move along with the tokens. *)
Theorem tokens_permute (K : finType) (X : K -> T) (pi : {perm K}) (i : K) :
  self_attention (fun k => X (pi k)) i = self_attention X (pi i).
Proof. exact: (keys_permute (fun k => score (X (pi i)) (X k)) (fun k => value (X k))). Qed.

(** The sum of its outputs, and so their mean, is permutation invariant. *)
Theorem sum_invariant (K : finType) (X : K -> T) (pi : {perm K}) :
  \sum_i self_attention (fun k => X (pi k)) i = \sum_i self_attention X i.
Proof.
rewrite [RHS](reindex_inj (@perm_inj _ pi)) /=.
by apply: eq_bigr => i _; rewrite tokens_permute.
Qed.

(** Content attention commutes with cyclic shifts, along any finite abelian group of places: a line closed to a ring, or
    a grid closed to a torus. *)
Theorem cyclic_shift (G : finZmodType) (X : G -> T) (c i : G) :
  self_attention (fun k => X (k + c)) i = self_attention X (i + c).
Proof.
have shift_inj : injective (fun k : G => k + c) by exact: addIr.
have := tokens_permute X (perm shift_inj) i; rewrite permE => <-.
by rewrite /self_attention /output; apply: eq_bigr => k _; rewrite !permE;
   congr (_ *: _); apply: eq_softmax => j; rewrite permE.
Qed.

End SelfAttention.
End Symmetries.
