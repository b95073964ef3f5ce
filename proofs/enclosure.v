(** * Numbers for T, leak and error: from a series to finitely many exponentials

    On Coq's reals, T lies between a partial sum and the partial sum plus a geometric remainder, both written with the
    exponential of the standard library, which the [interval] tactic evaluates. *)

From Coq Require Import Reals ZArith List.
From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp.analysis Require Import Rstruct reals sequences exp.
From regard Require Import tail leak exponential.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory.
Delimit Scope R_scope with coqR.
Local Open Scope ring_scope.

(** T, the share T/(1+T) that lies elsewhere, [leak] over some axes, and the output error of a convolution with that
    [leak]: the definitions of the theorems, on Coq's reals. *)
Definition T (a : R) : R := @tail real_realType a.
Definition elsewhere (a : R) : R := (T a / (1 + T a))%coqR.
Definition leak_of (axes : nat) (a : R) : R := @leak real_realType [finType of 'I_axes] (fun _ => a).
Definition error_of (axes : nat) (a weight_norm input_norm : R) : R := (leak_of axes a * weight_norm * input_norm)%coqR.

(** The squares 1, 4, 9, … of the first N distances, and the sum of their exponentials. *)
Definition square (r : nat) : Z := Z.mul (Z.of_nat r.+1) (Z.of_nat r.+1).
Fixpoint bumps (a : R) (r N : nat) : R :=
  match N with O => 0%coqR | S M => (exp (- (a * IZR (square r))) + bumps a (S r) M)%coqR end.

Lemma bumpE (a : R) r : bump (a : real_realType) r = Rtrigo_def.exp (- (a * IZR (square r)))%coqR.
Proof.
rewrite /bump expR_is_exp; congr (Rtrigo_def.exp (- (_ * _))%coqR).
by rewrite /square mult_IZR -INR_IZR_INZ INRE expr2.
Qed.

Lemma bumpsE (a : R) r N : bumps a r N = \sum_(r <= i < (r + N)%N) bump (a : real_realType) i.
Proof.
elim: N r => [|N IH] r /=; first by rewrite addn0 big_geq.
by rewrite IH -bumpE addSnnS [RHS]big_ltn // addnS ltnS leq_addr.
Qed.

(** T is at least twice a partial sum, and at most that plus a geometric remainder. *)
Theorem T_enclosed (N : nat) (a : R) : (0 < a)%coqR ->
  (2 * bumps a 0 N <= T a <= 2 * (bumps a 0 N + exp (- (a * IZR (square N))) / (1 - exp (- a))))%coqR.
Proof.
move=> /RltP a0; have q1 : 1 - Rtrigo_def.exp (- a)%coqR != 0 :> R.
  by rewrite -expR_is_exp subr_eq0 eq_sym lt_eqF // expR_lt1 oppr_lt0.
split; apply/RleP.
  by have := partial_sum_le_tail N a0; rewrite bumpsE add0n.
have := tail_le_partial N a0; rewrite bumpsE add0n bumpE expR_is_exp.
by rewrite -RdivE.
Qed.

Lemma T_gt0 (a : R) : (0 < a)%coqR -> (0 < T a)%coqR.
Proof. by move=> /RltP a0; apply/RltP; exact: tail_gt0. Qed.

(** [leak] over several axes of equal sharpness. *)
Theorem leak_ofE (axes : nat) (a : R) : (0 < a)%coqR -> leak_of axes a = (2 * (1 - (1 / (1 + T a)) ^ axes))%coqR.
Proof.
move=> /RltP a0; rewrite /leak_of /leak prodr_const card_ord RpowE RdivE //.
by rewrite gt_eqF // addr_gt0 ?ltr01 // tail_gt0.
Qed.
