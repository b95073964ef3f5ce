(** * Limits: the mean at β → 0, the hard maximum at β → ∞, the shift and the convolution at α → ∞ *)

From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp.classical Require Import boolp classical_sets functions.
From mathcomp.analysis Require Import reals topology normedtype sequences exp.
From regard Require Import softmax product factorization borders tail leak convolution.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory numFieldNormedType.Exports.
Local Open Scope classical_set_scope.
Local Open Scope ring_scope.

(** ** Limits of finite sums and products, and of the exponential *)
Section Tools.
Context (R : realType) (K : finType) (F : set (set R)) {FF : Filter F}.

Lemma cvg_finite_sum (f : K -> R -> R) (l : K -> R) :
  (forall k, f k x @[x --> F] --> l k) -> (\sum_k f k x) @[x --> F] --> \sum_k l k.
Proof.
move=> fl; elim: (index_enum K) => [|k r IH].
  by rewrite big_nil; under eq_fun do rewrite big_nil; exact: cvg_cst.
by rewrite big_cons; under eq_fun do rewrite big_cons; apply: cvgD.
Qed.

Lemma cvg_finite_prod (f : K -> R -> R) (l : K -> R) :
  (forall k, f k x @[x --> F] --> l k) -> (\prod_k f k x) @[x --> F] --> \prod_k l k.
Proof.
move=> fl; elim: (index_enum K) => [|k r IH].
  by rewrite big_nil; under eq_fun do rewrite big_nil; exact: cvg_cst.
by rewrite big_cons; under eq_fun do rewrite big_cons; apply: cvgM.
Qed.

End Tools.

(** The limit of a ratio. *)
Lemma cvg_ratio (R : realType) (F : set (set R)) {FF : Filter F} (f g : R -> R) (a b : R) :
  b != 0 -> f x @[x --> F] --> a -> g x @[x --> F] --> b -> (f x / g x) @[x --> F] --> a / b.
Proof. by move=> b0 fa gb; apply: (cvgM fa (cvgV b0 gb)). Qed.

Lemma expR_dies (R : realType) (d : R) : d < 0 -> expR (b * d) @[b --> +oo] --> (0 : R).
Proof.
move=> d0; apply/cvgrPdist_le => e e0; near=> b.
have nd0 : 0 < - d by rewrite oppr_gt0.
have b0 : 0 < b by near: b; apply: nbhs_pinfty_gt; exact: num_real.
rewrite sub0r normrN ger0_norm ?(ltW (expR_gt0 _)) // -[b * d]opprK expRN -mulrN.
have big : e^-1 <= expR (b * - d).
  have bd0 : 0 <= b * - d by rewrite mulr_ge0 // ltW.
  apply: le_trans (expR_ge1Dx bd0); apply: ler_paddl; first exact: ler01.
  rewrite -ler_pdivr_mulr //; near: b; apply: nbhs_pinfty_ge; exact: num_real.
by rewrite -[e]invrK lef_pinv ?posrE ?expR_gt0 ?invr_gt0.
Unshelve. all: by end_near. Qed.

Lemma expR_limit (R : realType) (d : R) : d <= 0 -> expR (b * d) @[b --> +oo] --> ((d == 0)%:R : R).
Proof.
rewrite le_eqVlt => /orP[/eqP->|d0]; last by rewrite lt_eqF // mulr0n; exact: expR_dies.
by rewrite eqxx; under eq_fun do rewrite mulr0 expR0; exact: cvg_cst.
Qed.

(** ** The temperature *)
Section Temperature.
Variables (R : realType) (K : finType) (s : K -> R) (k : K).

(** The keys with the largest score. *)
Definition best (j : K) : bool := [forall i, s i <= s j].

(** Hard attention: the best keys share evenly. *)
Definition hardmax (j : K) : R := (best j)%:R / #|best|%:R.

(** At β = 0 every key has the same weight. *)
Theorem beta_zero : softargmax 0 s k = #|K|%:R^-1.
Proof.
rewrite /softargmax /softmax mul0r expR0 mul1r; congr (_^-1).
by rewrite (eq_bigr (fun _ => 1)) ?sumr_const // => j _; rewrite mul0r expR0.
Qed.

(** As β → 0 the weights tend to those of the mean. *)
Theorem beta_to_zero : softargmax b s k @[b --> (0 : R)] --> (#|K|%:R^-1 : R).
Proof.
rewrite -beta_zero /softargmax /softmax.
have scaled j : expR (b * s j) @[b --> (0 : R)] --> expR (0 * s j).
  have : {for (0 : R), continuous (fun b : R => expR (b * s j))}; last by [].
  by apply: continuous_comp; [exact: mulrr_continuous | exact: continuous_expR].
apply: (@cvg_ratio _ _ (nbhs_filter (0 : R))) => //.
  exact: (total_neq0 (fun j => 0 * s j) k).
by apply: (@cvg_finite_sum _ _ _ (nbhs_filter (0 : R))) => j; exact: scaled.
Qed.

(** As β → ∞ the best keys take everything and share it evenly. *)
Theorem beta_to_infinity : softargmax b s k @[b --> +oo] --> hardmax k.
Proof.
have [m m_best] : exists m, best m.
  have := @arg_maxP _ _ _ k predT s erefl; case=> m _ hm; exists m; apply/forallP => j; exact: hm.
have gap_le0 j : s j - s m <= 0 by rewrite subr_le0; move/forallP: m_best; apply.
have gap0 j : (s j - s m == 0) = best j.
  rewrite subr_eq0; apply/eqP/forallP => [->|jb]; first exact/forallP.
  by apply/eqP; rewrite eq_le jb (forallP m_best).
have e b : softargmax b s k = expR (b * (s k - s m)) / \sum_j expR (b * (s j - s m)).
  rewrite /softargmax -(softmax_shift (fun j => b * s j) (- (b * s m))) /softmax.
  by rewrite mulrBr; congr (_ / _); apply: eq_bigr => j _; rewrite mulrBr.
under eq_fun do rewrite e.
have count : (#|best|%:R : R) = \sum_j (s j - s m == 0)%:R.
  by rewrite -sum1_card natr_sum big_mkcond /=; apply: eq_bigr => j _; rewrite gap0 -[j \in _]/(best j); case: (best j).
rewrite /hardmax count -gap0; apply: cvg_ratio; first last.
- by apply: cvg_finite_sum => j; exact: expR_limit.
- exact: expR_limit.
by rewrite -count pnatr_eq0 -lt0n; apply/card_gt0P; exists m.
Qed.

End Temperature.

(** ** The sharpness *)
Section Sharpness.
Variable R : realType.

(** Whatever the target, integer or not, inside or not: as α → ∞ the nearest keys share the attention evenly. *)
Theorem sharp_heads_hard (P : finType) (distance : P -> R) (p : P) :
  softmax (fun q => - (alpha * distance q ^+ 2)) p @[alpha --> +oo] --> hardmax (fun q => - distance q ^+ 2) p.
Proof.
under eq_fun => alpha do rewrite (eq_softmax (fun q => esym (mulrN alpha (distance q ^+ 2)))).
exact: (@beta_to_infinity _ _ (fun q => - distance q ^+ 2)).
Qed.

Lemma tail_to_zero : tail alpha @[alpha --> +oo] --> (0 : R).
Proof.
apply: (@squeeze_cvgr _ _ _ _ (fun _ => 0) _ (fun alpha => 4 * expR (alpha * -1))); last 2 first.
- exact: cvg_cst.
- have d0 : (-1 : R) < 0 by rewrite oppr_lt0 ltr01.
  have h : (4 * expR (x * -1)) @[x --> +oo] --> 4 * (0 : R) by apply: cvgMr; exact: expR_dies.
  by rewrite mulr0 in h.
near=> alpha; have a0 : 0 < alpha by near: alpha; apply: nbhs_pinfty_gt; exact: num_real.
have a1 : 1 <= alpha by near: alpha; apply: nbhs_pinfty_ge; exact: num_real.
rewrite (ltW (tail_gt0 a0)) /= mulrN1; apply: (le_trans (tail_le a0)).
have q0 : 0 < expR (- alpha) by exact: expR_gt0.
have half : expR (- alpha) <= 2^-1.
  rewrite expRN lef_pinv ?posrE ?ltr0n ?expR_gt0 //.
  by apply: le_trans (expR_ge1Dx (ltW a0)); rewrite -[2]/(1 + 1 : R) ler_add2l.
have h : 2^-1 <= 1 - expR (- alpha) by rewrite ler_subr_addl -ler_subr_addr {1}(splitr 1) mul1r addrK.
have -> : 4 * expR (- alpha) = 2 * (expR (- alpha) / 2^-1).
  by rewrite invrK [X in 2 * X]mulrC mulrA -natrM.
rewrite ler_pmul2l ?ltr0n // ler_pmul2l // lef_pinv ?posrE //; last by rewrite invr_gt0 ltr0n.
by apply: lt_le_trans h; rewrite invr_gt0 ltr0n.
Unshelve. all: by end_near. Qed.

(** The leak vanishes as α → ∞, over any number of axes. *)
Theorem leak_to_zero (A : finType) : leak (fun _ : A => alpha) @[alpha --> +oo] --> (0 : R).
Proof.
rewrite /leak.
have one (a : A) : (1 / (1 + tail alpha)) @[alpha --> +oo] --> (1 / (1 + 0) : R).
  apply: cvg_ratio; [by rewrite addr0 oner_neq0 | exact: cvg_cst |].
  by apply: cvgD; [exact: cvg_cst | exact: tail_to_zero].
have all : (\prod_(a : A) (1 / (1 + tail alpha))) @[alpha --> +oo] --> (\prod_(a : A) (1 / (1 + 0)) : R).
  by apply: cvg_finite_prod => a; exact: one.
have cst1 : (fun _ : R => 1 : R) @ +oo --> (1 : R) by exact: cvg_cst.
have h : (2 * (1 - \prod_(a : A) (1 / (1 + tail x)))) @[x --> +oo] --> 2 * (1 - \prod_(a : A) (1 / (1 + 0 : R))).
  by apply: cvgMr; apply: cvgB.
by rewrite addr0 divr1 big1_eq subrr mulr0 in h.
Qed.

(** As α → ∞ a row of Gaussian attention tends to the shift, for an integer target, every border and any number of
    axes. *)
Theorem rows_become_shifts (A : finType) (b : A -> border) (n before after : A -> nat) (t : A -> int)
    (j : {dffun forall a : A, 'I_(n a)}) : (forall a, 0 < before a + n a + after a)%N ->
  grid_row b before after (fun _ => alpha) (fun a => (t a)%:~R) j @[alpha --> +oo] -->
  grid_shift R b before after t j.
Proof.
move=> inhabited; apply/cvgrPdist_le => e e0; near=> alpha.
have a0 : 0 < alpha by near: alpha; apply: nbhs_pinfty_gt; exact: num_real.
apply: (@le_trans _ _ (leak (fun _ : A => alpha))).
  apply: le_trans (grid_leak b (alpha := fun _ => alpha) (fun _ => a0) inhabited t).
  by rewrite /L1 (bigD1 j) //= distrC ler_addl sumr_ge0.
apply: (le_trans (ler_norm _)); rewrite -[leLHS]normrN -[X in `|X|]add0r.
by near: alpha; move/cvgrPdist_le: (@leak_to_zero A) => /(_ e e0).
Unshelve. all: by end_near. Qed.

(** As α → ∞ the converted layer tends to the convolution, for every input. *)
Theorem converted_becomes_convolution (A : finType) (b : A -> border) (n before after kernel stride dilation : A -> nat)
    (Cout Cgroup Cin : finType) (group : Cout -> Cgroup -> Cin) W (bias : Cout -> R) x c
    (o : {dffun forall a : A, 'I_(outputs n before after kernel stride dilation a)}) :
  (forall a, [&& 0 < n a, 0 < stride a & reach kernel dilation a < before a + n a + after a]%N) ->
  converted b (n := n) group W bias x (fun _ => alpha) c o @[alpha --> +oo] -->
  convolution b group W bias x c o.
Proof.
move=> fits; pose N := weight_norm W * input_norm x.
have bound : (leak (fun _ : A => alpha) * N) @[alpha --> +oo] --> 0 * N.
  by apply: cvgMl; exact: leak_to_zero.
rewrite mul0r in bound; apply/cvgrPdist_le => e e0; near=> alpha.
have a0 : 0 < alpha by near: alpha; apply: nbhs_pinfty_gt; exact: num_real.
rewrite distrC; apply: (le_trans (error_bound b group W bias x fits (alpha := fun _ => alpha) (fun _ => a0) c o)).
rewrite -mulrA; apply: (le_trans (ler_norm _)); rewrite -[leLHS]normrN -[X in `|X|]add0r.
by near: alpha; move/cvgrPdist_le: bound => /(_ e e0).
Unshelve. all: by end_near. Qed.

End Sharpness.
