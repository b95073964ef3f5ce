(** * K² heads of Gaussian encoding express any K×K convolution

    The main theorem of the sources, with the condition on width that they leave out: heads are at least
    min(D_in, D_out) wide. In any number of axes, with any stride, dilation and padding; and narrower heads fail. *)

From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp.classical Require Import boolp classical_sets functions.
From mathcomp.analysis Require Import reals topology normedtype sequences exp.
From regard Require Import softmax product factorization borders tail leak convolution limits.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory numFieldNormedType.Exports.
Local Open Scope classical_set_scope.
Local Open Scope ring_scope.

Section Width.
Variables (R : realType) (Din Dh Dout : nat).

(** A matrix is a product through width D_h exactly where its rank is at most D_h. *)
Theorem factors_through (M : 'M[R]_(Din, Dout)) :
  (\rank M <= Dh)%N <-> exists (Wv : 'M[R]_(Din, Dh)) (Wo : 'M[R]_(Dh, Dout)), Wv *m Wo = M.
Proof.
split=> [rank_le|[Wv [Wo <-]]]; last exact: leq_trans (mulmx_max_rank Wv Wo).
exists (col_ebase M *m pid_mx (\rank M)), (pid_mx (\rank M) *m row_ebase M).
by rewrite !mulmxA -(mulmxA (col_ebase M)) pid_mx_id // mulmx_ebase.
Qed.

(** Every matrix is a product through width D_h where D_h ≥ min(D_in, D_out). *)
Corollary wide_enough (M : 'M[R]_(Din, Dout)) : (minn Din Dout <= Dh)%N ->
  exists (Wv : 'M[R]_(Din, Dh)) (Wo : 'M[R]_(Dh, Dout)), Wv *m Wo = M.
Proof.
by move=> wide; apply/factors_through; rewrite (leq_trans _ wide) // leq_min rank_leq_row rank_leq_col.
Qed.

End Width.

Section MultiHead.
Variables (R : realType) (Din Dh Dout : nat) (H K : finType).

(** One output of a multi-head layer: b + Σ_h (Σ_k A_hk X_k) W_v^h W_out^h. *)
Definition multi_head (weights : H -> K -> R) (Wv : H -> 'M[R]_(Din, Dh)) (Wo : H -> 'M[R]_(Dh, Dout))
    (bias : 'rV[R]_Dout) (X : K -> 'rV[R]_Din) : 'rV[R]_Dout :=
  bias + \sum_h (\sum_k weights h k *: X k) *m Wv h *m Wo h.

End MultiHead.

Section MainTheorem.
Variables (R : realType) (A : finType) (b : A -> border) (n before after kernel stride dilation : A -> nat).
Notation grid := {dffun forall a : A, 'I_(n a)}.
Notation taps := {dffun forall a : A, 'I_(kernel a)}.
Notation out_grid := {dffun forall a : A, 'I_(outputs n before after kernel stride dilation a)}.

(** There is one head for each tap: K² for a K×K kernel, in general the product of the kernel's sizes. *)
Theorem number_of_heads : #|{: taps}| = (\prod_a kernel a)%N.
Proof.
apply/eqP; rewrite -(eqr_nat [numDomainType of int]) natr_prod; apply/eqP.
transitivity (\sum_(g : taps) \prod_(a : A) (1 : int)).
  by rewrite -sum1_card natr_sum; apply: eq_big => [g|g _]; rewrite ?inE ?big1_eq.
rewrite (sum_of_products (fun (a : A) (_ : 'I_(kernel a)) => 1 : int)).
by apply: eq_bigr => a _; rewrite sumr_const card_ord.
Qed.

Variables (Din Dh Dout : nat) (W : taps -> 'M[R]_(Din, Dout)) (bias : 'rV[R]_Dout).

(** The convolution with matrices [W u], one output pixel: b + Σ_u (padded input at the tap) W_u. *)
Definition conv_pixel (X : grid -> 'rV[R]_Din) (o : out_grid) (c : 'I_Dout) : R :=
  convolution b (fun (_ : 'I_Dout) (d : 'I_Din) => d) (fun c d u => W u d c) (fun c => bias 0 c)
    (fun d j => X j 0 d) c o.

(** The heads' attention at sharpness α: head [u] of output [o] looks at the place its tap reads. *)
Definition tap_weights (alpha : R) (o : out_grid) (u : taps) (j : grid) : R :=
  grid_row b before after (fun _ => alpha) (fun a => (target o u a)%:~R) j.

Hypothesis fits : forall a, [&& 0 < n a, 0 < stride a & reach kernel dilation a < before a + n a + after a]%N.

Lemma multi_head_converted alpha (Wv : taps -> 'M[R]_(Din, Dh)) (Wo : taps -> 'M[R]_(Dh, Dout)) X o c :
  (forall u, Wv u *m Wo u = W u) ->
  multi_head (tap_weights alpha o) Wv Wo bias X 0 c =
  converted b (n := n) (fun (_ : 'I_Dout) (d : 'I_Din) => d) (fun c d u => W u d c) (fun c => bias 0 c)
    (fun d j => X j 0 d) (fun _ => alpha) c o.
Proof.
move=> factored; rewrite /multi_head /converted mxE summxE; congr (_ + _).
apply: eq_bigr => u _; rewrite -mulmxA factored mxE; apply: eq_bigr => d _.
by rewrite mulrC summxE; congr (_ * _); apply: eq_bigr => j _; rewrite mxE.
Qed.

(** Heads at least min(D_in, D_out) wide: there are value and output matrices, the same for every input, with which the
    layer tends to the convolution as α → ∞. *)
Theorem heads_express_convolution : (minn Din Dout <= Dh)%N ->
  exists (Wv : taps -> 'M[R]_(Din, Dh)) (Wo : taps -> 'M[R]_(Dh, Dout)), forall X o c,
    multi_head (tap_weights alpha o) Wv Wo bias X 0 c @[alpha --> +oo] --> conv_pixel X o c.
Proof.
move=> wide; pose f u := cid (wide_enough (W u) wide).
exists (fun u => sval (f u)), (fun u => sval (cid (svalP (f u)))) => X o c.
have factored u : sval (f u) *m sval (cid (svalP (f u))) = W u by exact: (svalP (cid (svalP (f u)))).
under eq_fun => alpha do rewrite (multi_head_converted alpha X o c factored).
exact: converted_becomes_convolution.
Qed.

(** With such matrices the layer is off by at most leak · max Σ|W| · max|X| at a finite sharpness. *)
Theorem heads_error : (minn Din Dout <= Dh)%N ->
  exists (Wv : taps -> 'M[R]_(Din, Dh)) (Wo : taps -> 'M[R]_(Dh, Dout)), forall alpha X o c, 0 < alpha ->
    `|multi_head (tap_weights alpha o) Wv Wo bias X 0 c - conv_pixel X o c| <=
    leak (fun _ : A => alpha) * weight_norm (fun c d u => W u d c) * input_norm (fun d j => X j 0 d).
Proof.
move=> wide; pose f u := cid (wide_enough (W u) wide).
exists (fun u => sval (f u)), (fun u => sval (cid (svalP (f u)))) => alpha X o c a0.
rewrite multi_head_converted; first exact: error_bound.
by move=> u; exact: (svalP (cid (svalP (f u)))).
Qed.

End MainTheorem.

Section Narrow.
Variables (R : realType) (Din Dh Dout : nat).

(** Narrower heads fail: for D_h < min(D_in, D_out) there is a 1×1 convolution that one head cannot express, whatever
    its attention: on an image of equal pixels [x] every attention gives x W_v W_out. *)
Theorem narrow_heads_fail : (Dh < minn Din Dout)%N ->
  exists M : 'M[R]_(Din, Dout), forall (Wv : 'M[R]_(Din, Dh)) (Wo : 'M[R]_(Dh, Dout)),
  exists x : 'rV[R]_Din, forall (K : finType) (weights : K -> R), \sum_k weights k = 1 ->
    (\sum_k weights k *: x) *m Wv *m Wo != x *m M.
Proof.
move=> narrow; exists (pid_mx (minn Din Dout)) => Wv Wo.
have [same|/existsP [i differs]] := boolP [forall i, row i (Wv *m Wo) == row i (pid_mx (minn Din Dout))].
  have : Wv *m Wo = pid_mx (minn Din Dout) by apply/row_matrixP => i; exact/eqP/(forallP same).
  move/(congr1 mxrank) => e; have := mulmx_max_rank Wv Wo.
  by rewrite e rank_pid_mx ?geq_minl ?geq_minr // leqNgt narrow.
exists (delta_mx 0 i) => K weights sum1; rewrite -scaler_suml sum1 scale1r -mulmxA.
by rewrite -!rowE.
Qed.

(** One-hot heads at distinct places: each tap's matrix passes through its head, so its rank is at most D_h. *)
Theorem tap_rank (H K : finType) (place : H -> K) (Wv : H -> 'M[R]_(Din, Dh)) (Wo : H -> 'M[R]_(Dh, Dout))
    (W : H -> 'M[R]_(Din, Dout)) : injective place ->
  (forall X : K -> 'rV[R]_Din, \sum_h X (place h) *m Wv h *m Wo h = \sum_h X (place h) *m W h) ->
  forall h, (\rank (W h) <= Dh)%N.
Proof.
move=> place_inj same h; apply/factors_through; exists (Wv h), (Wo h).
apply/row_matrixP => i; rewrite !rowE.
have := same (fun k => if k == place h then delta_mx 0 i else 0).
rewrite (bigD1 h) //= [RHS](bigD1 h) //= eqxx !big1 ?addr0 => [|g gh|g gh]; first by rewrite mulmxA.
all: by rewrite (inj_eq place_inj) (negbTE gh) !mul0mx.
Qed.

End Narrow.

Section OneHotHeads.
Variables (R : realType) (Din Dout : nat) (Place : zmodType) (H Shift : finType).
Variables (f : H -> Shift) (offset : Shift -> Place) (W : Shift -> 'M[R]_(Din, Dout)) (Z : Place -> 'rV[R]_Din) (q : Place).

(** One-hot heads at key - query = f(h), f one to one onto the shifts, are exactly the convolution over those shifts, for
    odd and even kernels. *)
Theorem one_hot_heads : bijective f ->
  \sum_h Z (q + offset (f h)) *m W (f h) = \sum_u Z (q + offset u) *m W u.
Proof. by move=> f_bij; rewrite [RHS](reindex f) //; exact: onW_bij. Qed.

(** With query - key = f(h), as the sources write it, the set of shifts must be symmetric: there is a map [minus] of the
    shifts with offset (minus u) = - offset u, as for odd kernels. Then the head at f(h) has the weight at -f(h). *)
Theorem one_hot_heads_flipped (minus : Shift -> Shift) : bijective f -> involutive minus ->
  (forall u, offset (minus u) = - offset u) ->
  \sum_h Z (q - offset (f h)) *m W (minus (f h)) = \sum_u Z (q + offset u) *m W u.
Proof.
move=> f_bij minusK opp; rewrite [RHS](reindex minus) /=; last by apply: onW_bij; exists minus.
rewrite [RHS](reindex f) /=; last exact: onW_bij.
by apply: eq_bigr => h _; rewrite opp.
Qed.

End OneHotHeads.
