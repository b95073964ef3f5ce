(** * Factorization: over a grid, the softmax of a sum over axes is the product of softmaxes

    A key of the grid is one coordinate per axis. [P a] are the coordinates that axis [a] attends to (with padding,
    where there is any), [J a] the inputs that exist, and [home a] says which input a coordinate is brought home to
    (none: it is dropped). *)

From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp.analysis Require Import reals sequences exp.
From regard Require Import softmax product.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Lemma expR_sum (R : realType) (I : finType) (f : I -> R) : expR (\sum_i f i) = \prod_i expR (f i).
Proof. by apply: (big_morph (@expR R)) => [x y|]; rewrite ?expRD ?expR0. Qed.

(** What arrives at input [j]: the weight of all coordinates that [home] brings there. *)
Definition fold (R : realType) (P J : finType) (home : P -> option J) (w : P -> R) (j : J) : R :=
  \sum_(p | home p == Some j) w p.

Section Factorization.
Variables (R : realType) (A : finType) (P J : A -> finType).
Variables (score : forall a, P a -> R) (home : forall a, P a -> option (J a)).
Notation keys := {dffun forall a : A, P a}.
Notation inputs := {dffun forall a : A, J a}.

(** A score that is a sum over the axes. *)
Definition total_score (p : keys) : R := \sum_a score (p a).

(** A key of the grid comes home where every axis does; it is dropped where one axis drops it. *)
Definition home_all (p : keys) : option inputs :=
  [pick j : inputs | [forall a, home (p a) == Some (j a)]].

Lemma home_allE (p : keys) (j : inputs) : (home_all p == Some j) = [forall a, home (p a) == Some (j a)].
Proof.
rewrite /home_all; case: pickP => [i /forallP hi|none]; last by rewrite none.
apply/eqP/forallP => [[<-] //|hj]; congr Some; apply/ffunP => a.
by have := hi a; rewrite (eqP (hj a)) => /eqP [->].
Qed.

(** The normalizer is a product over the axes, because the keys of a grid are all combinations of coordinates. *)
Lemma normalizer_factorizes :
  \sum_(p : keys) expR (total_score p) = \prod_a \sum_(q : P a) expR (score q).
Proof. by rewrite -sum_of_products; apply: eq_bigr => p _; rewrite expR_sum. Qed.

(** The softmax over the whole grid is the product of the softmaxes of its axes, exactly. *)
Theorem softmax_factorizes (p : keys) : softmax total_score p = \prod_a softmax (@score a) (p a).
Proof. by rewrite /softmax normalizer_factorizes expR_sum prodf_div. Qed.

(** Bringing padding home factorizes too: for every rule that treats the axes one by one. *)
Theorem fold_factorizes (w : forall a, P a -> R) (j : inputs) :
  fold home_all (fun p : keys => \prod_a w a (p a)) j = \prod_a fold (@home a) (@w a) (j a).
Proof.
rewrite /fold.
transitivity (\sum_(p : keys) \prod_a (w a (p a) * (home (p a) == Some (j a))%:R)).
  rewrite big_mkcond /=; apply: eq_bigr => p _; rewrite big_split /= home_allE.
  case: forallP => [all_home|not_all].
    by rewrite [X in _ * X]big1 ?mulr1 // => a _; rewrite all_home.
  have [a hom] : exists a, ~~ (home (p a) == Some (j a)).
    by apply/existsP; rewrite -negb_forall; apply/negP => /forallP.
  by rewrite [X in _ * X](bigD1 a) //= (negbTE hom) mul0r mulr0.
rewrite (sum_of_products (fun a q => w a q * (home q == Some (j a))%:R)).
apply: eq_bigr => a _; rewrite [RHS]big_mkcond /=.
by apply: eq_bigr => q _; case: ifP; rewrite ?mulr1 ?mulr0.
Qed.

(** Attention over a grid, padding brought home, is the Kronecker product of one matrix per axis: for any number of
    axes, any score that is a sum over axes, and any border. *)
Theorem attention_factorizes (j : inputs) :
  fold home_all (softmax total_score) j = \prod_a fold (@home a) (softmax (@score a)) (j a).
Proof. by rewrite -fold_factorizes; apply: eq_bigr => p _; rewrite softmax_factorizes. Qed.

End Factorization.

(** Two axes, as on the theory page: A = A_rows ⊗ A_cols. *)
Theorem softmax_of_pairs (R : realType) (I J : finType) (f : I -> R) (g : J -> R) (i : I) (j : J) :
  softmax (fun p : I * J => f p.1 + g p.2) (i, j) = softmax f i * softmax g j.
Proof.
rewrite /softmax /= expRD.
have -> : \sum_(p : I * J) expR (f p.1 + g p.2) = (\sum_a expR (f a)) * (\sum_b expR (g b)).
  rewrite big_distrl /= -(pair_bigA _ (fun a b => expR (f a + g b))) /=.
  by apply: eq_bigr => a _; rewrite big_distrr; apply: eq_bigr => b _; rewrite expRD.
by rewrite invfM mulrACA.
Qed.
