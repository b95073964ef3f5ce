(** * Output error: the converted layer against the convolution

    One Gaussian head per tap. Head [u] of output [o] looks at o·stride + u·dilation - before; padding is attended, then
    brought home. Its output differs from the convolution's by at most
    leak · (largest absolute row sum of the weights) · max|x|, for any input, stride, dilation, groups and padding. *)

From mathcomp Require Import all_ssreflect all_algebra zify.
From mathcomp.classical Require Import boolp classical_sets functions mathcomp_extra.
From mathcomp.analysis Require Import reals topology normedtype sequences exp.
From regard Require Import softmax product factorization borders tail leak.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory.
Local Open Scope ring_scope.

Section Convolution.
Variables (R : realType) (A : finType) (b : A -> border).
(** Per axis: inputs, padding before and after, taps of the kernel, stride, dilation. *)
Variables (n before after kernel stride dilation : A -> nat).

(** How far one tap can be from the first. *)
Definition reach (a : A) : nat := (dilation a * (kernel a).-1)%N.

(** ⌊(n + before + after - dilation (kernel - 1) - 1) / stride⌋ + 1 outputs along an axis. *)
Definition outputs (a : A) : nat := ((before a + n a + after a - reach a).-1 %/ stride a).+1.

Notation grid := {dffun forall a : A, 'I_(n a)}.
Notation out_grid := {dffun forall a : A, 'I_(outputs a)}.
Notation taps := {dffun forall a : A, 'I_(kernel a)}.

(** The coordinate that tap [u] of output [o] reads. *)
Definition target (o : out_grid) (u : taps) (a : A) : int :=
  (o a * stride a + u a * dilation a)%:Z - (before a)%:Z.

(** Channels: output channel [c] reads the channels [group c d] of the input, for each of its own channels [d]. *)
Variables (Cout Cgroup Cin : finType) (group : Cout -> Cgroup -> Cin).
Variables (W : Cout -> Cgroup -> taps -> R) (bias : Cout -> R) (x : Cin -> grid -> R).

(** The padded input at any coordinate: the input it copies, or zero. *)
Definition padded_input (c : Cin) (t : A -> int) : R :=
  if [pick j : grid | [forall a, home (b a) (n a) (t a) == Some (j a)]] is Some j then x c j else 0.

(** The convolution, as [regard.reference.convolution] and torch compute it. *)
Definition convolution (c : Cout) (o : out_grid) : R :=
  bias c + \sum_u \sum_d W c d u * padded_input (group c d) (target o u).

(** The converted layer: each tap's head attends with the weights of its row. *)
Definition converted (alpha : A -> R) (c : Cout) (o : out_grid) : R :=
  bias c + \sum_u \sum_d W c d u *
    \sum_j grid_row b before after alpha (fun a => (target o u a)%:~R) j * x (group c d) j.

(** The absolute weights of one output channel. *)
Definition weight_sum (c : Cout) : R := \sum_u \sum_d `|W c d u|.

Hypothesis fits : forall a, [&& 0 < n a, 0 < stride a & reach a < before a + n a + after a]%N.

(** Every tap of every output reads a padded coordinate that exists: nothing needs to be clamped. *)
Theorem target_exists (o : out_grid) (u : taps) (a : A) :
  nearest (n a) (before a) (after a) (target o u a) = target o u a.
Proof.
have /and3P[_ s0 r] := fits a.
have ho : (o a * stride a <= (before a + n a + after a - reach a).-1)%N.
  by apply: leq_trans (leq_trunc_div _ (stride a)); rewrite leq_mul2r -ltnS ltn_ord orbT.
have hu : (u a * dilation a <= reach a)%N.
  by rewrite /reach mulnC leq_mul2l; apply/orP; right; have := ltn_ord (u a); lia.
by apply: clamp_id; rewrite /target; lia.
Qed.

Lemma shifted_input (c : Cin) (o : out_grid) (u : taps) :
  \sum_j grid_shift R b before after (target o u) j * x c j = padded_input c (target o u).
Proof.
rewrite /padded_input /grid_shift.
have e (j : grid) : [forall a, home (b a) (n a) (nearest (n a) (before a) (after a) (target o u a)) == Some (j a)] =
                    [forall a, home (b a) (n a) (target o u a) == Some (j a)].
  by apply: eq_forallb => a; rewrite target_exists.
case: pickP => [j hj|none]; last first.
  by rewrite big1 // => j _; rewrite e none mul0r.
rewrite (bigD1 j) //= e hj mul1r big1 ?addr0 // => i ij; rewrite e.
case: forallP => [hi|_]; last by rewrite mul0r.
case/negP: ij; apply/eqP/ffunP => a; have := hi a; move/forallP: hj => /(_ a) /eqP ->.
by move=> /eqP [->].
Qed.

Variable alpha : A -> R.
Hypothesis alpha_gt0 : forall a, 0 < alpha a.

(** One head is at most leak · max|x| from the value its tap reads. *)
Theorem head_error (c : Cin) (o : out_grid) (u : taps) (largest : R) :
  (forall j, `|x c j| <= largest) ->
  `|\sum_j grid_row b before after alpha (fun a => (target o u a)%:~R) j * x c j - padded_input c (target o u)|
    <= leak alpha * largest.
Proof.
move=> x_le; rewrite -shifted_input -sumrB; apply: (le_trans (ler_norm_sum _ _ _)).
have inhabited a : (0 < before a + n a + after a)%N by have := fits a; lia.
have n0 a : (0 < n a)%N by have := fits a; lia.
have largest_ge0 : 0 <= largest.
  exact: (le_trans (normr_ge0 _) (x_le [ffun a => Ordinal (n0 a)])).
apply: le_trans (ler_wpmul2r largest_ge0 (grid_leak b alpha_gt0 inhabited (target o u))).
rewrite /L1 mulr_suml; apply: ler_sum => j _.
by rewrite -mulrBl normrM ler_wpmul2l ?normr_ge0.
Qed.

(** The output error, channel by channel: |converted - convolution| ≤ leak · Σ|W| · max|x|. *)
Theorem output_error (c : Cout) (o : out_grid) (largest : R) :
  (forall d j, `|x d j| <= largest) ->
  `|converted alpha c o - convolution c o| <= leak alpha * weight_sum c * largest.
Proof.
move=> x_le; rewrite /converted /convolution opprD addrACA subrr add0r -sumrB.
apply: (le_trans (ler_norm_sum _ _ _)); rewrite mulrAC mulr_sumr; apply: ler_sum => u _.
rewrite -sumrB; apply: (le_trans (ler_norm_sum _ _ _)); rewrite mulr_sumr; apply: ler_sum => d _.
by rewrite -mulrBr normrM [leLHS]mulrC ler_wpmul2r ?normr_ge0 // head_error.
Qed.

(** The largest absolute row sum of the weights, and the largest absolute input. *)
Definition weight_norm : R := \big[Num.max/0]_c weight_sum c.
Definition input_norm : R := \big[Num.max/0]_(e : Cin * grid) `|x e.1 e.2|.

(** The output error with the two maxima that the library's [error_bound] takes, before its rounding term:
    |converted - convolution| ≤ leak · max_c Σ|W_c| · max|x|. *)
Theorem error_bound (c : Cout) (o : out_grid) :
  `|converted alpha c o - convolution c o| <= leak alpha * weight_norm * input_norm.
Proof.
have inhabited a : (0 < before a + n a + after a)%N by have := fits a; lia.
have x_le d (j : grid) : `|x d j| <= input_norm.
  exact: (@le_bigmax _ R _ 0 (fun e : Cin * grid => `|x e.1 e.2|) (d, j)).
have x0 : 0 <= input_norm by rewrite /input_norm; elim/big_ind: _ => // u v u0 v0; rewrite le_maxr u0.
have l0 := leak_ge0 alpha_gt0.
apply: (le_trans (output_error c o x_le)).
by rewrite ler_wpmul2r // ler_wpmul2l // (@le_bigmax _ R _ 0 weight_sum c).
Qed.

End Convolution.

(** Channels of a convolution with groups: channel [d] of the group that output channel [c] belongs to. *)
Definition group_channel (groups out_per_group in_per_group : nat)
    (c : 'I_groups * 'I_out_per_group) (d : 'I_in_per_group) : 'I_groups * 'I_in_per_group := (c.1, d).
