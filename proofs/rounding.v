(** * Rounding: one row of an axis matrix applied in float32

    A row of weights times inputs is a sum of products. Computed in any order, each product and each sum rounded with
    relative error at most u, it is off by at most γ = n u / (1 - n u) of the sum of absolute products: the rounding term of
    [error_bound]. Float32 without underflow rounds with u = 2^-24. *)

From Coq Require Import Reals Lra Lia Psatz PeanoNat.
From Flocq Require Import Core Relative.
Local Open Scope R_scope.

(** An order of summation: a tree with the products at its leaves. *)
Inductive order := product (i : nat) | sum (left right : order).

(** How many products there are, and how many roundings one of them goes through at most. *)
Fixpoint terms (t : order) : nat := match t with product _ => 1 | sum l r => terms l + terms r end.
Fixpoint depth (t : order) : nat := match t with product _ => 1 | sum l r => S (Nat.max (depth l) (depth r)) end.

Section Rounding.
Variables (rounded : R -> R) (u : R).
Hypothesis u_ge0 : 0 <= u.
Hypothesis rounded_error : forall y, Rabs (rounded y - y) <= u * Rabs y.

(** Exact weights [w], stored with relative error [e]; inputs [x]. *)
Variables (w stored x : nat -> R) (e : R).
Hypothesis e_ge0 : 0 <= e.
Hypothesis stored_error : forall i, Rabs (stored i - w i) <= e * Rabs (w i).

Fixpoint exact (t : order) : R := match t with product i => w i * x i | sum l r => exact l + exact r end.
Fixpoint absolute (t : order) : R := match t with product i => Rabs (w i * x i) | sum l r => absolute l + absolute r end.
Fixpoint computed (t : order) : R :=
  match t with product i => rounded (stored i * x i) | sum l r => rounded (computed l + computed r) end.

(** What an error of e and d roundings can grow to. *)
Definition growth (d : nat) : R := (1 + e) * (1 + u) ^ d - 1.

Lemma growth_S d : growth (S d) = (1 + growth d) * (1 + u) - 1.
Proof. unfold growth; simpl; ring. Qed.

Lemma growth_ge0 d : 0 <= growth d.
Proof. induction d as [|d IH]; [unfold growth; simpl; lra | rewrite growth_S; nra]. Qed.

Lemma growth_le d d' : (d <= d')%nat -> growth d <= growth d'.
Proof. induction 1 as [|d' _ IH]; [lra | rewrite growth_S; pose proof (growth_ge0 d'); nra]. Qed.

Lemma absolute_ge0 t : 0 <= absolute t.
Proof. induction t as [i|l IHl r IHr]; simpl; [apply Rabs_pos | lra]. Qed.

Lemma exact_le t : Rabs (exact t) <= absolute t.
Proof. induction t as [i|l IHl r IHr]; simpl; [lra | eapply Rle_trans; [apply Rabs_triang | lra]]. Qed.

Lemma round_step y z g a : 0 <= g -> Rabs (y - z) <= g * a -> Rabs z <= a ->
  Rabs (rounded y - z) <= ((1 + g) * (1 + u) - 1) * a.
Proof.
intros g0 yz za; pose proof (rounded_error y) as ry.
assert (Rabs (rounded y - z) <= Rabs (rounded y - y) + Rabs (y - z)).
  { replace (rounded y - z) with ((rounded y - y) + (y - z)) by ring; apply Rabs_triang. }
assert (Rabs y <= (1 + g) * a).
  { replace y with (z + (y - z)) by ring; eapply Rle_trans; [apply Rabs_triang | lra]. }
assert (u * Rabs y <= u * ((1 + g) * a)) by (apply Rmult_le_compat_l; lra).
nra.
Qed.

(** Whatever the order of summation: off by at most (1+e)(1+u)^depth - 1 of the sum of absolute products. *)
Theorem sum_error t : Rabs (computed t - exact t) <= growth (depth t) * absolute t.
Proof.
induction t as [i|l IHl r IHr]; cbn [depth computed exact absolute]; rewrite growth_S.
all: apply round_step; [apply growth_ge0 | |].
- replace (stored i * x i - w i * x i) with ((stored i - w i) * x i) by ring.
  rewrite Rabs_mult, Rabs_mult.
  assert (Rabs (stored i - w i) * Rabs (x i) <= e * Rabs (w i) * Rabs (x i)).
    { apply Rmult_le_compat_r; [apply Rabs_pos | apply stored_error]. }
  unfold growth; simpl; lra.
- apply Rle_refl.
- pose proof (growth_le (depth l) _ (Nat.le_max_l (depth l) (depth r))) as gl.
  pose proof (growth_le (depth r) _ (Nat.le_max_r (depth l) (depth r))) as gr.
  pose proof (absolute_ge0 l) as al; pose proof (absolute_ge0 r) as ar.
  replace (computed l + computed r - (exact l + exact r)) with ((computed l - exact l) + (computed r - exact r)) by ring.
  eapply Rle_trans; [apply Rabs_triang |].
  assert (growth (depth l) * absolute l <= growth (Nat.max (depth l) (depth r)) * absolute l) by nra.
  assert (growth (depth r) * absolute r <= growth (Nat.max (depth l) (depth r)) * absolute r) by nra.
  nra.
- exact (exact_le (sum l r)).
Qed.

End Rounding.

(** γ_n = n u / (1 - n u), as the library's [rounding] computes it. *)
Definition gamma (u : R) (n : nat) : R := INR n * u / (1 - INR n * u).

(** (1 + u)^n - 1 ≤ γ_n while n u < 1. *)
Theorem growth_le_gamma u n : 0 <= u -> INR n * u < 1 -> (1 + u) ^ n - 1 <= gamma u n.
Proof.
intros u0; unfold gamma; induction n as [|n IH]; [simpl; intros; unfold Rdiv; lra |].
rewrite S_INR; intros small; pose proof (pos_INR n) as n0.
assert (INR n * u < 1) as below by nra; specialize (IH below).
assert ((1 + u) ^ n <= / (1 - INR n * u)) as power.
  { replace (/ (1 - INR n * u)) with (1 + INR n * u / (1 - INR n * u)) by (field; lra); lra. }
replace ((INR n + 1) * u / (1 - (INR n + 1) * u)) with (/ (1 - (INR n + 1) * u) - 1) by (field; lra).
apply Rplus_le_compat_r; simpl.
apply Rle_trans with ((1 + u) * / (1 - INR n * u)); [apply Rmult_le_compat_l; lra |].
apply Rmult_le_reg_r with ((1 - INR n * u) * (1 - (INR n + 1) * u)); [apply Rmult_lt_0_compat; lra |].
field_simplify; [nra | lra | lra].
Qed.

Lemma depth_le_terms t : (depth t <= terms t)%nat.
Proof.
assert (positive : forall s, (1 <= terms s)%nat) by (induction s; simpl; lia).
induction t as [i|l IHl r IHr]; simpl; [lia |].
pose proof (positive l); pose proof (positive r); lia.
Qed.

(** ** Float32 *)

(** Rounding to nearest with 24 digits, ties to even; the exponent is not bounded, so there is no underflow. *)
Definition float32 (y : R) : R := round radix2 (FLX_exp 24) ZnearestE y.

(** The unit of float32. *)
Definition unit32 : R := / 2 * bpow radix2 (- 24 + 1).

(** Float32 rounds with relative error at most 2^-24. *)
Theorem float32_error y : Rabs (float32 y - y) <= unit32 * Rabs y.
Proof. unfold float32, unit32; apply relative_error_N_FLX; reflexivity. Qed.

(** Weights that are not negative and sum to one at most, and inputs of at most B: the absolute products sum to at most
    B. *)
Theorem row_bounded (w x : nat -> R) (t : order) (B : R) :
  (forall i, 0 <= w i) -> (forall i, Rabs (x i) <= B) -> exact w (fun _ => 1) t <= 1 -> absolute w x t <= B.
Proof.
intros w0 xB sum1; apply Rle_trans with (exact w (fun _ => 1) t * B).
- clear sum1; induction t as [i|l IHl r IHr]; simpl; [|lra].
  rewrite Rabs_mult, (Rabs_pos_eq (w i)) by apply w0; pose proof (xB i); pose proof (w0 i); nra.
- pose proof (xB 0%nat); pose proof (Rabs_pos (x 0%nat)); nra.
Qed.

(** A row of n weights that sum to one at most, stored in float32 and applied in float32 in any order to inputs of at
    most B, is off by at most γ_{n+1} B. *)
Theorem float32_row (w x : nat -> R) (t : order) (B : R) :
  let u := unit32 in let n := S (terms t) in
  INR n * u < 1 -> (forall i, 0 <= w i) -> exact w (fun _ => 1) t <= 1 -> (forall i, Rabs (x i) <= B) ->
  Rabs (computed float32 (fun i => float32 (w i)) x t - exact w x t) <= gamma u n * B.
Proof.
intros u n small w0 sum1 xB.
assert (bounded : absolute w x t <= B) by (apply row_bounded; assumption).
assert (u_ge0 : 0 <= u) by (unfold u, unit32; apply Rmult_le_pos; [lra | apply bpow_ge_0]).
apply Rle_trans with (growth u u (depth t) * absolute w x t).
  { apply sum_error; try exact u_ge0; [exact float32_error | intro i; apply float32_error]. }
assert (g : growth u u (depth t) <= gamma u n).
  { apply Rle_trans with (growth u u (terms t)).
    - apply growth_le; try exact u_ge0; apply depth_le_terms.
    - unfold growth; change ((1 + u) * (1 + u) ^ terms t) with ((1 + u) ^ n); apply growth_le_gamma; assumption. }
assert (a0 : 0 <= absolute w x t) by apply absolute_ge0.
assert (g0 : 0 <= growth u u (depth t)) by (apply growth_ge0; exact u_ge0).
apply Rle_trans with (gamma u n * absolute w x t); [apply Rmult_le_compat_r; assumption |].
apply Rmult_le_compat_l; [lra | exact bounded].
Qed.
