(** * Sums over a grid of any number of axes

    A point of a grid is one coordinate per axis: a dependent finite function over the axes [A], where axis [a] has the
    coordinates [K a]. *)

From mathcomp Require Import all_ssreflect all_algebra.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import GRing.Theory.
Local Open Scope ring_scope.

Section Product.
Variables (R : comRingType) (A : finType) (K : A -> finType).
Notation grid := {dffun forall a : A, K a}.

Let tagging (g : grid) : {ffun A -> {a : A & K a}} := [ffun a => Tagged K (g a)].

Let untag (f : {ffun A -> {a : A & K a}}) (ok : forall a, tag (f a) = a) : grid :=
  [ffun a => ecast b (K b) (ok a) (tagged (f a))].

Let tagging_untag f ok : tagging (@untag f ok) = f.
Proof.
apply/ffunP => a; rewrite !ffunE; move: (ok a); case: (f a) => b k /= e.
by case: a / e.
Qed.

Let tagging_inj : injective tagging.
Proof.
move=> g h /ffunP e; apply/ffunP => a; have := e a; rewrite !ffunE.
by move/eqP; rewrite -tag_eqE /tag_eq eqxx /= tagged_asE => /eqP.
Qed.

(** A sum over the grid of a product over the axes is the product over the axes of sums over the axis. *)
Theorem sum_of_products (F : forall a, K a -> R) :
  \sum_(g : grid) \prod_a F a (g a) = \prod_a \sum_(k : K a) F a k.
Proof.
pose Q (a : A) (u : {a : A & K a}) := tag u == a.
transitivity (\prod_a \sum_(u | Q a u) F (tag u) (tagged u)); last first.
  apply: eq_bigr => a _; transitivity (\sum_(b | b == a) \sum_(k : K b) F b k); last by rewrite big_pred1_eq.
  by rewrite sig_big_dep /=; apply: eq_bigl => u; rewrite andbT.
rewrite bigA_distr_big_dep /=.
pose back f := [pick g | tagging g == f].
rewrite (reindex_omap tagging back); last first.
  move=> f /familyP fQ; rewrite /back; case: pickP => [g /eqP <- //|none].
  have ok a : tag (f a) = a by apply/eqP; exact: fQ.
  by have := none (untag ok); rewrite tagging_untag eqxx.
apply: eq_big => [g|g _]; last by apply: eq_bigr => a _; rewrite ffunE.
apply/esym/andP; split; first by apply/familyP => a; rewrite ffunE unfold_in /Q /=.
rewrite /back; case: pickP => [h /eqP/tagging_inj -> //|/(_ g)]; by rewrite eqxx.
Qed.

End Product.
