(** * Leak: how far a row of Gaussian attention is from a shift

    [T = tail α]. At most T/(1+T) of a row's weight lies off the target, and the row is at most 2T/(1+T) from the shift
    in L1: per axis, for every border, for an integer target, clamped to the coordinates that exist. Over several axes
    the L1 distance is at most 2 (1 - Π 1/(1+T_a)), which is [regard]'s [leak]. *)

From mathcomp Require Import all_ssreflect all_algebra zify ring.
From mathcomp.classical Require Import boolp classical_sets functions.
From mathcomp.analysis Require Import reals topology normedtype sequences exp.
From regard Require Import softmax product factorization borders tail.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory.
Local Open Scope ring_scope.

(** ** Any weights: nonnegative, with sum one *)
Section Weights.
Variables (R : realType) (P J : finType) (home : P -> option J) (w : P -> R) (t : P).

(** The L1 distance of two rows of weights. *)
Definition L1 (I : finType) (u v : I -> R) : R := \sum_i `|u i - v i|.

(** All the weight on one key. *)
Definition one_hot (p : P) : R := (p == t)%:R.

(** The shift after padding is brought home: a one at the target's home, or nothing. *)
Definition shift (j : J) : R := (home t == Some j)%:R.

Hypotheses (w_ge0 : forall p, 0 <= w p) (w_sum1 : \sum_p w p = 1).

Lemma w_target_le1 : w t <= 1.
Proof. by rewrite -w_sum1 (bigD1 t) //= ler_addl sumr_ge0. Qed.

(** What is not at the target is the rest. *)
Lemma sum_elsewhere : \sum_(p | p != t) w p = 1 - w t.
Proof. by rewrite -w_sum1 [X in _ = X - _](bigD1 t) //= addrAC subrr add0r. Qed.

(** A row is 2 (1 - w_t) from the one-hot row in L1: what the target lacks, and as much again elsewhere. *)
Theorem L1_one_hot : L1 w one_hot = 2 * (1 - w t).
Proof.
rewrite /L1 (bigD1 t) //= /one_hot eqxx ler0_norm ?subr_le0 ?w_target_le1 // opprB.
rewrite (eq_bigr w) ?sum_elsewhere; first by rewrite mulr_natl mulr2n.
by move=> p pt; rewrite (negbTE pt) subr0 ger0_norm.
Qed.

Lemma fold_one_hot j : fold home one_hot j = shift j.
Proof.
rewrite /fold /one_hot /shift; case: eqP => [ht|ht].
  by rewrite (bigD1 t) ?ht ?eqxx //= big1 ?addr0 // => p /andP[_ /negbTE->].
rewrite big1 // => p /eqP hp; case: eqP => [pt|//]; by rewrite pt in hp.
Qed.

(** Bringing padding home never makes two rows differ more. *)
Theorem fold_L1 (u v : P -> R) : L1 (fold home u) (fold home v) <= L1 u v.
Proof.
rewrite /L1 /fold.
apply: (@le_trans _ _ (\sum_j \sum_(p | home p == Some j) `|u p - v p|)).
  by apply: ler_sum => j _; rewrite -sumrB; exact: ler_norm_sum.
rewrite (exchange_big_dep predT) //=; apply: ler_sum => p _.
case: (home p) => [j|]; last by rewrite big_pred0.
by rewrite (big_pred1 j) // => i; rewrite /= eq_sym; apply/eqP/eqP => [[]|->].
Qed.

(** Brought home, a row is still at most 2 (1 - w_t) from the shift. *)
Theorem L1_shift : L1 (fold home w) shift <= 2 * (1 - w t).
Proof.
rewrite -L1_one_hot; apply: le_trans (fold_L1 w one_hot).
by rewrite le_eqVlt; apply/orP; left; apply/eqP/eq_bigr => j _; rewrite fold_one_hot.
Qed.

(** Brought home, at most 1 - w_t of a row lies elsewhere than at the target's home. *)
Theorem elsewhere_le : \sum_(j | home t != Some j) fold home w j <= 1 - w t.
Proof.
rewrite -sum_elsewhere /fold [leLHS](exchange_big_dep (fun p => p != t)) /=; last first.
  by move=> j p hj /eqP hp; apply: contra hj => /eqP <-; rewrite hp.
apply: ler_sum => p pt; case hp: (home p) => [j|]; last by rewrite big_pred0 // => j; rewrite andbF.
rewrite big_mkcond /= (bigD1 j) //= big1 ?addr0 => [|i ij]; last by case: ifP => // /andP[_ /eqP[e]]; rewrite e eqxx in ij.
by case: ifP.
Qed.

End Weights.

(** ** The target keeps at least 1/(1+T) *)

(** Keys at distinct whole coordinates whose scores fall at least as fast as α times the squared distance to the key t:
    that key has at least 1/(1+T) of the weight. *)
Theorem target_weight (R : realType) (alpha : R) (P : finType) (c : P -> int) (s : P -> R) (t : P) :
  0 < alpha -> injective c -> (forall p, s p <= s t - alpha * (c p - c t)%:~R ^+ 2) ->
  1 / (1 + tail alpha) <= softmax s t.
Proof.
move=> a0 c_inj falls; have T0 := tail_gt0 a0.
have T1 : 0 < 1 + tail alpha by rewrite addr_gt0 ?ltr01.
rewrite /softmax ler_pdivr_mulr // mulrAC ler_pdivl_mulr ?mul1r ?(total_gt0 s t) //.
rewrite [leLHS](bigD1 t) //= mulrDr mulr1 ler_add2l.
apply: le_trans (ler_wpmul2l (ltW (expR_gt0 (s t))) (sum_off_target t a0 c_inj)).
rewrite mulr_sumr; apply: ler_sum => p _; rewrite -expRD; exact: le_expR.
Qed.

(** ** One axis *)
Section Axis.
Variables (R : realType) (b : border) (n before after : nat) (alpha : R).
Notation padded := 'I_(before + n + after).

(** -α (j - t)², for the padded coordinate j of each key. *)
Definition gaussian_score (t : R) (p : padded) : R := - (alpha * ((coordinate before p)%:~R - t) ^+ 2).

Definition bring_home (p : padded) : option 'I_n := home b n (coordinate before p).

(** One row of the axis matrix: the softmax over the padded coordinates, brought home. *)
Definition axis_row (t : R) : 'I_n -> R := fold bring_home (softmax (gaussian_score t)).

(** The coordinate that exists nearest to t. *)
Definition nearest (t : int) : int := clamp (- before%:Z) (n%:Z - 1 + after%:Z) t.

(** The row of the shift: a one at the home of the target. *)
Definition shift_row (t : int) (j : 'I_n) : R := (home b n (nearest t) == Some j)%:R.

Hypothesis inhabited : (0 < before + n + after)%N.

Lemma nearest_exists t : exists p : padded, coordinate before p = nearest t.
Proof.
have lt_p : (absz (nearest t + before%:Z)%R < before + n + after)%N by rewrite /nearest /clamp; lia.
by exists (Ordinal lt_p); rewrite /coordinate /nearest /clamp /=; lia.
Qed.

Lemma coordinate_inj : injective (fun p : padded => coordinate before p).
Proof. by move=> p q /addIr [e]; exact: val_inj. Qed.

Hypothesis alpha_gt0 : 0 < alpha.

(** Seen from the nearest coordinate c, (j - t)² ≥ (c - t)² + (j - c)². *)
Lemma score_falls t (p q : padded) : coordinate before p = nearest t ->
  gaussian_score t%:~R q <=
  gaussian_score t%:~R p - alpha * (coordinate before q - coordinate before p)%:~R ^+ 2.
Proof.
move=> hp; rewrite /gaussian_score -opprD ler_opp2 -mulrDr ler_pmul2l //.
rewrite -!rmorphB -!rmorphX -rmorphD ler_int hp.
have := ltn_ord q; rewrite /nearest /clamp /coordinate !expr2.
by move: (nat_of_ord q) => {hp p}q hq; lia || nia.
Qed.

Lemma axis_target_weight t (p : padded) : coordinate before p = nearest t ->
  1 / (1 + tail alpha) <= softmax (gaussian_score t%:~R) p.
Proof. by move=> hp; apply: (target_weight alpha_gt0 coordinate_inj) => q; exact: score_falls. Qed.

Lemma one_minus : 1 - 1 / (1 + tail alpha) = tail alpha / (1 + tail alpha).
Proof.
have T1 : 1 + tail alpha != 0 by rewrite gt_eqF // addr_gt0 ?ltr01 ?tail_gt0.
by rewrite -{1}(divff T1) -mulrBl addrAC subrr add0r.
Qed.

(** At most T/(1+T) of a row's weight lies off the target: for an integer target and every border. *)
Theorem axis_elsewhere (t : int) :
  \sum_(j | home b n (nearest t) != Some j) axis_row t%:~R j <= tail alpha / (1 + tail alpha).
Proof.
have [p hp] := nearest_exists t; rewrite -one_minus -hp.
apply: (le_trans (@elsewhere_le _ _ _ bring_home (softmax (gaussian_score t%:~R)) p _ _)).
- by move=> q; exact: softmax_ge0.
- exact: softmax_sum1 p.
- by rewrite ler_add2l ler_opp2 axis_target_weight.
Qed.

(** A row is at most 2T/(1+T) from the shift, in L1: for an integer target and every border. *)
Theorem axis_leak (t : int) : L1 (axis_row t%:~R) (shift_row t) <= 2 * tail alpha / (1 + tail alpha).
Proof.
have [p hp] := nearest_exists t; rewrite -mulrA -one_minus /shift_row -hp.
apply: (le_trans (@L1_shift _ _ _ bring_home (softmax (gaussian_score t%:~R)) p _ _)).
- by move=> q; exact: softmax_ge0.
- exact: softmax_sum1 p.
- by rewrite ler_pmul2l ?ltr0n // ler_add2l ler_opp2 axis_target_weight.
Qed.

End Axis.

(** Attention over the inputs that exist reads, in the sharp limit, what replicate padding copies: its shift is the same.
    *)
Theorem native_is_replicate n (t : int) : home native n (nearest n 0 0 t) = home replicate n t.
Proof. by rewrite /home /= /nearest oppr0 addr0. Qed.

(** ** Several axes *)
Section Grid.
Variables (R : realType) (A : finType) (b : A -> border) (n before after : A -> nat) (alpha : A -> R).
Notation inputs := {dffun forall a : A, 'I_(n a)}.

(** 2 (1 - Π_a 1/(1+T_a)), what the library calls [leak]. *)
Definition leak : R := 2 * (1 - \prod_a (1 / (1 + tail (alpha a)))).

(** One row of attention over the whole grid, from a query that looks at [t]: padding attended, then brought home. *)
Definition grid_row (t : A -> R) : inputs -> R :=
  fold (home_all (fun a => @bring_home (b a) (n a) (before a) (after a)))
       (softmax (total_score (fun a => @gaussian_score R (n a) (before a) (after a) (alpha a) (t a)))).

(** The row of the shift: a one at the home of the target, if every axis has one. *)
Definition grid_shift (t : A -> int) (j : inputs) : R :=
  [forall a, home (b a) (n a) (nearest (n a) (before a) (after a) (t a)) == Some (j a)]%:R.

(** The whole row is the product of the rows of the axes. *)
Theorem grid_row_factorizes (t : A -> R) (j : inputs) :
  grid_row t j = \prod_a axis_row (b a) (n:=n a) (before a) (after a) (alpha a) (t a) (j a).
Proof. exact: attention_factorizes. Qed.

Hypotheses (alpha_gt0 : forall a, 0 < alpha a) (inhabited : forall a, (0 < before a + n a + after a)%N).

Lemma grid_target t : exists p : {dffun forall a : A, 'I_(before a + n a + after a)},
  (forall a, coordinate (before a) (p a) = nearest (n a) (before a) (after a) (t a)).
Proof.
have ex a := nearest_exists (inhabited a) (t a).
by exists [ffun a => sval (cid (ex a))] => a; rewrite ffunE; case: cid.
Qed.

Lemma grid_target_weight t (p : {dffun forall a : A, 'I_(before a + n a + after a)}) :
  (forall a, coordinate (before a) (p a) = nearest (n a) (before a) (after a) (t a)) ->
  \prod_a (1 / (1 + tail (alpha a))) <=
  softmax (total_score (fun a => @gaussian_score R (n a) (before a) (after a) (alpha a) (t a)%:~R)) p.
Proof.
move=> hp; rewrite softmax_factorizes; apply: ler_prod => a _.
rewrite axis_target_weight // andbT.
by rewrite divr_ge0 ?ler01 // addr_ge0 ?ler01 // ltW ?tail_gt0.
Qed.

(** [leak] is never negative. *)
Theorem leak_ge0 : 0 <= leak.
Proof.
rewrite /leak mulr_ge0 ?ler0n // subr_ge0; apply: (@le_trans _ _ (\prod_(a : A) 1)); last by rewrite big1_eq.
apply: ler_prod => a _.
have T0 := tail_gt0 (alpha_gt0 a); have T1 : 0 < 1 + tail (alpha a) by rewrite addr_gt0 ?ltr01.
apply/andP; split; first by rewrite divr_ge0 ?ler01 // ltW.
by rewrite ler_pdivr_mulr // mul1r ler_addl ltW.
Qed.

(** A row over the whole grid is at most [leak] from the shift, in L1. *)
Theorem grid_leak (t : A -> int) : L1 (grid_row (fun a => (t a)%:~R)) (grid_shift t) <= leak.
Proof.
have [p hp] := grid_target t; rewrite /leak.
have -> : L1 (grid_row (fun a => (t a)%:~R)) (grid_shift t) =
          L1 (grid_row (fun a => (t a)%:~R)) (shift R (home_all (fun a => @bring_home (b a) (n a) (before a) (after a))) p).
  apply: eq_bigr => j _; congr `|_ - _|; rewrite /grid_shift /shift home_allE; congr (_%:R).
  by congr nat_of_bool; apply: eq_forallb => a; rewrite /bring_home hp.
apply: le_trans; first apply: (@L1_shift _ _ _ _ (softmax (total_score _)) p).
- by move=> q; exact: softmax_ge0.
- exact: softmax_sum1 p.
- by rewrite ler_pmul2l ?ltr0n // ler_add2l ler_opp2 grid_target_weight.
Qed.

(** Half of [leak] is attention that lies elsewhere than at the target. *)
Theorem grid_elsewhere (t : A -> int) :
  \sum_(j : inputs | ~~ [forall a, home (b a) (n a) (nearest (n a) (before a) (after a) (t a)) == Some (j a)])
    grid_row (fun a => (t a)%:~R) j <= leak / 2.
Proof.
have [p hp] := grid_target t.
rewrite /leak mulrAC divff ?mul1r ?pnatr_eq0 //.
have e (j : inputs) : ~~ [forall a, home (b a) (n a) (nearest (n a) (before a) (after a) (t a)) == Some (j a)] =
     (home_all (fun a => @bring_home (b a) (n a) (before a) (after a)) p != Some j).
  by rewrite home_allE; congr (~~ _); apply: eq_forallb => a; rewrite /bring_home hp.
rewrite (eq_bigl _ _ e); apply: le_trans; first apply: (@elsewhere_le _ _ _ _ (softmax (total_score _)) p).
- by move=> q; exact: softmax_ge0.
- exact: softmax_sum1 p.
- by rewrite ler_add2l ler_opp2 grid_target_weight.
Qed.

End Grid.

(** For one axis [leak] is 2T/(1+T). *)
Theorem leak_one_axis (R : realType) (alpha : R) : 0 < alpha ->
  leak (fun _ : 'I_1 => alpha) = 2 * tail alpha / (1 + tail alpha).
Proof. by move=> a0; rewrite /leak big_ord1 one_minus // mulrA. Qed.
