(** * The tail T = 2 Σ_{r ≥ 1} e^{-α r²}

    All the weight off the target on an endless axis, relative to the target's. It is finite for every sharpness α > 0
    and bounds every sum over distinct whole distances. *)

From mathcomp Require Import all_ssreflect all_algebra zify.
From mathcomp.classical Require Import boolp classical_sets functions.
From mathcomp.analysis Require Import reals topology normedtype sequences exp.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory numFieldNormedType.Exports.
Local Open Scope classical_set_scope.
Local Open Scope ring_scope.

Lemma le_expR (R : realType) (x y : R) : x <= y -> expR x <= expR y.
Proof. by rewrite ler_expR. Qed.

Section Tail.
Variable R : realType.
Implicit Types (alpha : R) (r N : nat).

(** The weight at distance r + 1, relative to the target's: e^{-α (r+1)²}. *)
Definition bump alpha : R ^nat := fun r => expR (- (alpha * r.+1%:R ^+ 2)).

(** T = 2 Σ_{r ≥ 1} e^{-α r²} *)
Definition tail alpha : R := 2 * lim (series (bump alpha)).

Lemma bump_gt0 alpha r : 0 < bump alpha r.
Proof. exact: expR_gt0. Qed.

Lemma bump_ge0 alpha r : 0 <= bump alpha r.
Proof. exact/ltW/bump_gt0. Qed.

(** (r+1)² ≥ r+1: the bumps fall at least as fast as a geometric series. *)
Lemma bump_geometric alpha r : 0 <= alpha -> bump alpha r <= expR (- alpha) * expR (- alpha) ^+ r.
Proof.
move=> a0; rewrite -exprS -expRMm; apply: le_expR.
rewrite mulrN ler_opp2 mulrC ler_wpmul2l // expr2 ler_pemull ?ler0n //.
by rewrite ler1n.
Qed.

Lemma series_bump_nondecreasing alpha : nondecreasing_seq (series (bump alpha)).
Proof. by apply: nondecreasing_series => r _; exact: bump_ge0. Qed.

Lemma expRN_lt1 alpha : 0 < alpha -> `|expR (- alpha)| < 1.
Proof. by move=> a0; rewrite ger0_norm ?(ltW (expR_gt0 _)) // expR_lt1 oppr_lt0. Qed.

Lemma series_bump_le alpha N : 0 < alpha -> series (bump alpha) N <= expR (- alpha) / (1 - expR (- alpha)).
Proof.
move=> a0; set q := expR (- alpha); have q1 := expRN_lt1 a0.
have geo : series (geometric q q) --> q / (1 - q) by exact: cvg_geometric_series.
have le_geo : series (bump alpha) N <= series (geometric q q) N.
  rewrite /series /=; apply: ler_sum => r _; exact: bump_geometric (ltW a0).
apply: (le_trans le_geo); rewrite -(cvg_lim _ geo) //.
apply: nondecreasing_cvg_le; last by apply: cvgP geo.
by apply: nondecreasing_series => r _; rewrite /= mulr_ge0 ?exprn_ge0 // ltW // expR_gt0.
Qed.

(** The series converges for every α > 0. *)
Theorem tail_converges alpha : 0 < alpha -> cvg (series (bump alpha)).
Proof.
move=> a0; apply: nondecreasing_is_cvg; first exact: series_bump_nondecreasing.
exists (expR (- alpha) / (1 - expR (- alpha))) => _ [N _ <-]; exact: series_bump_le.
Qed.

(** Every partial sum stays below T / 2. *)
Lemma partial_sum_le_tail alpha N : 0 < alpha -> 2 * (\sum_(0 <= r < N) bump alpha r) <= tail alpha.
Proof.
move=> a0; rewrite ler_pmul2l ?ltr0n //.
exact: (nondecreasing_cvg_le (series_bump_nondecreasing alpha) (tail_converges a0)).
Qed.

(** T is positive: at a finite sharpness some attention always lies elsewhere. *)
Theorem tail_gt0 alpha : 0 < alpha -> 0 < tail alpha.
Proof.
move=> a0; apply: (lt_le_trans _ (partial_sum_le_tail 1 a0)).
by rewrite big_nat1 mulr_gt0 ?ltr0n // bump_gt0.
Qed.

(** T is at most twice a geometric series: T ≤ 2 e^{-α} / (1 - e^{-α}). *)
Theorem tail_le alpha : 0 < alpha -> tail alpha <= 2 * (expR (- alpha) / (1 - expR (- alpha))).
Proof.
move=> a0; rewrite ler_pmul2l ?ltr0n //; apply: limr_le; first exact: tail_converges.
by apply: nearW => N; exact: series_bump_le.
Qed.

(** What is cut off after N terms is at most a geometric series: the way T is enclosed by numbers. *)
Theorem tail_le_partial alpha N : 0 < alpha ->
  tail alpha <= 2 * (\sum_(0 <= r < N) bump alpha r + bump alpha N / (1 - expR (- alpha))).
Proof.
move=> a0; rewrite ler_pmul2l ?ltr0n //; apply: limr_le; first exact: tail_converges.
set q := expR (- alpha); have q1 := expRN_lt1 a0; have q0 : 0 < q := expR_gt0 _.
have q1' : q < 1 by move: q1; rewrite ger0_norm // ltW.
apply: nearW => M; rewrite /series /=.
apply: (@le_trans _ _ (\sum_(0 <= r < (N + M)%N) bump alpha r)).
  rewrite (big_cat_nat _ _ _ (leq0n M) (leq_addl N M)) /= ler_addl.
  by apply: sumr_ge0 => r _; exact: bump_ge0.
rewrite (big_cat_nat _ _ _ (leq0n N) (leq_addr M N)) /= ler_add2l.
have -> : \sum_(N <= r < (N + M)%N) bump alpha r = \sum_(0 <= r < M) bump alpha (r + N)%N.
  by rewrite -{1}[N]add0n big_addn addKn.
apply: (@le_trans _ _ (\sum_(0 <= r < M) bump alpha N * q ^+ r)).
  apply: ler_sum => r _; rewrite /q -expRMm -expRD; apply: le_expR.
  rewrite mulrN -opprD ler_opp2 [X in _ + X]mulrC -mulrDr ler_pmul2l //.
  by rewrite -!natrX -natrD ler_nat; nia.
rewrite -mulr_sumr ler_wpmul2l ?bump_ge0 //.
have geo : series (geometric 1 q) --> 1 / (1 - q) by exact: cvg_geometric_series.
rewrite -[leRHS]div1r -(cvg_lim _ geo) //.
have -> : \sum_(0 <= r < M) q ^+ r = series (geometric 1 q) M.
  by rewrite /series /=; apply: eq_bigr => r _; rewrite mul1r.
apply: nondecreasing_cvg_le; last by apply: cvgP geo.
by apply: nondecreasing_series => r _; rewrite /= mul1r exprn_ge0 // ltW.
Qed.

(** A finite set of keys at distinct whole distances of 1 or more has at most T/2 of weight together. *)
Lemma sum_of_distinct alpha (K : finType) (D : pred K) (d : K -> nat) : 0 < alpha ->
  {in D &, injective d} -> \sum_(k in D) bump alpha (d k) <= tail alpha / 2.
Proof.
move=> a0 d_inj; pose N := (\max_k d k).+1.
apply: (@le_trans _ _ (\sum_(0 <= r < N) bump alpha r)); last first.
  by rewrite ler_pdivl_mulr ?ltr0n // mulrC partial_sum_le_tail.
rewrite big_mkord (partition_big (fun k => inord (d k) : 'I_N) predT) //=.
have dN k : (d k < N)%N by rewrite ltnS; exact: leq_bigmax.
apply: ler_sum => r _.
have [k /andP[Dk /eqP kr]|none] := pickP (fun k => (k \in D) && (inord (d k) == r)); last first.
  by rewrite big_pred0 // bump_ge0.
rewrite (big_pred1 k) /= => [|l]; first by rewrite -kr inordK.
apply/andP/eqP => [[Dl /eqP lr]|->]; last by rewrite kr.
by apply: d_inj => //; have := congr1 val (etrans lr (esym kr)); rewrite /= !inordK.
Qed.

(** Keys at distinct whole coordinates [c k], seen from the key [t]: all the others together weigh at most T. *)
Theorem sum_off_target alpha (K : finType) (c : K -> int) (t : K) : 0 < alpha -> injective c ->
  \sum_(k | k != t) expR (- (alpha * ((c k - c t)%:~R) ^+ 2)) <= tail alpha.
Proof.
move=> a0 c_inj; pose d k := `|c k - c t|%N.-1; pose right k := c t < c k.
have bumpE k : k != t -> expR (- (alpha * ((c k - c t)%:~R) ^+ 2)) = bump alpha (d k).
  move=> kt; rewrite /bump /d prednK; last by rewrite absz_gt0 subr_eq0 (inj_eq c_inj).
  by congr (expR (- (_ * _))); rewrite natr_absz intr_norm real_normK ?num_real.
have half (side : bool) : \sum_(k in [pred k | (k != t) && (right k == side)]) bump alpha (d k) <= tail alpha / 2.
  apply: sum_of_distinct => // k l; rewrite !inE /right /d => /andP[kt ks] /andP[lt ls] e.
  move: kt lt; rewrite -!(inj_eq c_inj) => kt lt; apply: c_inj; move: kt lt ks ls e.
  by case: side; lia.
rewrite (eq_bigr _ bumpE) (bigID right) /= [leRHS](splitr (tail alpha)).
apply: ler_add.
  by apply: le_trans (half true); rewrite le_eqVlt; apply/orP; left; apply/eqP/eq_bigl => k; rewrite inE eqb_id.
by apply: le_trans (half false); rewrite le_eqVlt; apply/orP; left; apply/eqP/eq_bigl => k; rewrite inE eqbF_neg.
Qed.

End Tail.
