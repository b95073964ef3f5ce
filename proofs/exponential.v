(** * The exponential of mathcomp-analysis is that of Coq's standard library

    The theorems are about [expR]; numbers are certified for [exp]. On Coq's reals the two are the same function. *)

From Coq Require Import Reals Lra.
From mathcomp Require Import all_ssreflect all_algebra ring.
From mathcomp.classical Require Import boolp classical_sets functions.
From mathcomp.analysis Require Import Rstruct reals topology normedtype sequences exp.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory numFieldNormedType.Exports.
Local Open Scope classical_set_scope.
Local Open Scope ring_scope.

Notation reals := [realType of R].

(* Why: the ratio of two such functions has g(x) = g(x/n)^n ≥ (1 - x²/n²)^n ≥ 1 - x²/n for every n. *)
Section Unique.
Variables (F : realType) (f g : F -> F).
Hypotheses (fD : forall x y, f (x + y) = f x * f y) (gD : forall x y, g (x + y) = g x * g y).
Hypotheses (f_ge : forall x, 1 + x <= f x) (g_ge : forall x, 1 + x <= g x).

Let ratio x := f x * g (- x).

Lemma ratioD x y : ratio (x + y) = ratio x * ratio y.
Proof. by rewrite /ratio fD opprD gD mulrACA. Qed.

Lemma ratio0 : ratio 0 = 1.
Proof.
have one h : (forall x y, h (x + y) = h x * h y) -> (forall x, 1 + x <= h x) -> h (0 : F) = 1.
  move=> hD h_ge; have := hD 0 0; rewrite addr0 => e.
  have h1 : 1 <= h 0 by have := h_ge 0; rewrite addr0.
  have h0 : h 0 != 0 by rewrite gt_eqF // (lt_le_trans ltr01).
  by apply: (mulfI h0); rewrite -e mulr1.
by rewrite /ratio oppr0 !one // mul1r.
Qed.

Lemma ratioX x n : ratio (n%:R * x) = ratio x ^+ n.
Proof. by elim: n => [|n IH]; rewrite ?mul0r ?ratio0 // -addn1 natrD mulrDl mul1r ratioD IH addn1 exprSr. Qed.

Lemma bernoulli (y : F) n : 0 <= y <= 1 -> 1 - n%:R * y <= (1 - y) ^+ n.
Proof.
case/andP=> y0 y1; elim: n => [|n IH]; first by rewrite mul0r subr0.
rewrite exprS; have y1' : 0 <= 1 - y by rewrite subr_ge0.
apply: le_trans (ler_wpmul2l y1' IH).
rewrite -addn1 natrD -subr_ge0.
have -> : (1 - y) * (1 - n%:R * y) - (1 - (n%:R + 1) * y) = n%:R * y ^+ 2 by ring.
by rewrite mulr_ge0 ?sqr_ge0 ?ler0n.
Qed.

Lemma ratio_ge1 x : 1 <= ratio x.
Proof.
apply/ler_addgt0Pr => e e0.
have nonneg : 0 <= x ^+ 2 / e + `|x| + 1.
  by rewrite addr_ge0 ?ler01 // addr_ge0 ?normr_ge0 // divr_ge0 ?sqr_ge0 // ltW.
have [n big] : exists n : nat, x ^+ 2 / e + `|x| + 1 < n%:R.
  by exists (Num.ExtraDef.archi_bound (x ^+ 2 / e + `|x| + 1)); exact: archi_boundP.
have n0 : 0 < n%:R :> F by exact: le_lt_trans nonneg big.
pose y := x / n%:R; have y_small : `|y| <= 1.
  rewrite /y normrM normfV (gtr0_norm n0) ler_pdivr_mulr // mul1r ltW //.
  by apply: le_lt_trans big; rewrite addrAC ler_addr addr_ge0 ?ler01 // divr_ge0 ?sqr_ge0 ?(ltW e0).
have y2 : 0 <= y ^+ 2 <= 1.
  by rewrite sqr_ge0 /= -(real_normK (num_real y)) expr2 -[leRHS]mulr1 ler_pmul ?normr_ge0.
have one : 1 - y ^+ 2 <= ratio y.
  have -> : 1 - y ^+ 2 = (1 + y) * (1 - y) by ring.
  move: y_small; rewrite ler_norml => /andP[ym yp].
  by apply: ler_pmul; rewrite ?f_ge ?g_ge // ?subr_ge0 // -ler_subl_addl sub0r.
have -> : x = n%:R * y by rewrite /y mulrC divfK // gt_eqF.
rewrite ratioX -ler_subl_addr.
apply: (@le_trans _ _ ((1 - y ^+ 2) ^+ n)); last first.
  have small : 0 <= 1 - y ^+ 2 by rewrite subr_ge0; case/andP: y2.
  by apply: ler_expn2r => //; rewrite nnegrE //; exact: le_trans one.
apply: le_trans (bernoulli n y2); rewrite ler_add2l ler_opp2.
have -> : n%:R * y ^+ 2 = x ^+ 2 / n%:R.
  by rewrite /y; field; rewrite gt_eqF.
rewrite ler_pdivr_mulr // mulrC -ler_pdivr_mulr //; apply: ltW; apply: le_lt_trans big.
by rewrite -addrA ler_addl addr_ge0 ?ler01.
Qed.

(** Two functions that turn sums into products and lie above 1 + x are the same. *)
Theorem exponentials_agree x : f x = g x.
Proof.
have r1 : ratio x = 1.
  apply/eqP; rewrite eq_le ratio_ge1 andbT.
  have := ratioD x (- x); rewrite subrr ratio0 => e.
  rewrite e -[leLHS]mulr1 ler_wpmul2l ?ratio_ge1 //.
  exact: le_trans ler01 (ratio_ge1 x).
have g1 : g x * g (- x) = 1.
  rewrite -gD subrr; apply/eqP.
  have := gD 0 0; rewrite addr0 => e; have h1 : 1 <= g 0 by have := g_ge 0; rewrite addr0.
  have h0 : g 0 != 0 by rewrite gt_eqF // (lt_le_trans ltr01).
  by apply/eqP; apply: (mulfI h0); rewrite -e mulr1.
have gN0 : g (- x) != 0 by apply/eqP => z; move/eqP: g1; rewrite z mulr0 eq_sym oner_eq0.
by apply: (mulIf gN0); rewrite g1.
Qed.

End Unique.

Lemma expR_le (F : realType) (y : F) : 0 <= y -> y < 1 -> expR y <= (1 - y)^-1.
Proof.
move=> y0 y1; have small : `|y| < 1 by rewrite ger0_norm.
have geo : series (geometric 1 y) --> 1 / (1 - y) by exact: cvg_geometric_series.
rewrite -div1r -(cvg_lim _ geo) //; apply: lim_series_le.
- exact: is_cvg_series_exp_coeff.
- exact: cvgP geo.
move=> n; rewrite /exp_coeff /= mul1r ler_pimulr ?exprn_ge0 // invf_le1 ?ltr0n ?fact_gt0 //.
by rewrite ler1n fact_gt0.
Qed.

(** 1 + x ≤ e^x for every x, negative ones too. *)
Lemma expR_ge (F : realType) (x : F) : 1 + x <= expR x.
Proof.
have [x0|x0] := leP 0 x; first exact: expR_ge1Dx.
have [x1|x1] := leP (1 + x) 0; first exact: le_trans x1 (ltW (expR_gt0 _)).
rewrite -[x in leRHS]opprK expRN -[leLHS]invrK lef_pinv ?posrE ?expR_gt0 ?invr_gt0 //.
have := expR_le (y := - x); rewrite opprK; apply; first by rewrite oppr_ge0 ltW.
by rewrite ltr_oppl -subr_gt0 opprK addrC.
Qed.

(** On Coq's reals the exponential of mathcomp-analysis is the one of the standard library. *)
Theorem expR_is_exp (x : R) : @expR real_realType x = Rtrigo_def.exp x.
Proof.
apply: (@exponentials_agree real_realType (@expR real_realType) Rtrigo_def.exp).
- exact: expRD.
- exact: exp_plus.
- exact: expR_ge.
- by move=> y; apply/RleP; exact: exp_ineq1_le.
Qed.
