(** * Encodings: a Gaussian score as a dot product

    A relative encoding of 1 + axes numbers per offset (three in an image) expresses the Gaussian score; content and
    place together are dot products of vectors with 1 + axes more columns. *)

From mathcomp Require Import all_ssreflect all_algebra ring.
From mathcomp.analysis Require Import reals sequences exp.
From regard Require Import softmax.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Encodings.
Variable R : realType.

(** The dot product of two row vectors. *)
Definition dot (m : nat) (u w : 'rV[R]_m) : R := (u *m w^T) 0 0.

(** A number, followed by a vector. *)
Definition cons_row (m : nat) (c : R) (u : 'rV[R]_m) : 'rV[R]_(1 + m) := row_mx c%:M u.

Lemma dot_row m m' (u w : 'rV[R]_m) (u' w' : 'rV[R]_m') : dot (row_mx u u') (row_mx w w') = dot u w + dot u' w'.
Proof. by rewrite /dot tr_row_mx mul_row_col mxE. Qed.

Lemma dot_cons m c c' (u w : 'rV[R]_m) : dot (cons_row c u) (cons_row c' w) = c * c' + dot u w.
Proof. by rewrite /cons_row dot_row /dot !mxE big_ord1 !mxE !mulr1n. Qed.

Lemma dotC m (u w : 'rV[R]_m) : dot u w = dot w u.
Proof. by rewrite /dot !mxE; apply: eq_bigr => i _; rewrite !mxE mulrC. Qed.

Lemma dotDl m (u u' w : 'rV[R]_m) : dot (u + u') w = dot u w + dot u' w.
Proof. by rewrite /dot mulmxDl mxE. Qed.

Lemma dotDr m (u w w' : 'rV[R]_m) : dot u (w + w') = dot u w + dot u w'.
Proof. by rewrite !(dotC u) dotDl. Qed.

Lemma dotZl m c (u w : 'rV[R]_m) : dot (c *: u) w = c * dot u w.
Proof. by rewrite /dot -scalemxAl mxE. Qed.

Lemma dotNl m (u w : 'rV[R]_m) : dot (- u) w = - dot u w.
Proof. by rewrite -scaleN1r dotZl mulN1r. Qed.

Lemma dotNr m (u w : 'rV[R]_m) : dot u (- w) = - dot u w.
Proof. by rewrite dotC dotNl dotC. Qed.

Section Relative.
Variables (axes : nat) (alpha : R) (Delta : 'rV[R]_axes).

(** r_δ = (‖δ‖², δ) *)
Definition encoding (delta : 'rV[R]_axes) : 'rV[R]_(1 + axes) := cons_row (dot delta delta) delta.

(** v = -α (1, -2Δ) *)
Definition pattern : 'rV[R]_(1 + axes) := cons_row (- alpha) ((2 * alpha) *: Delta).

(** v · r_δ = -α (‖δ - Δ‖² - ‖Δ‖²): the Gaussian score up to a constant, with c = -‖Δ‖². *)
Theorem encoding_score (delta : 'rV[R]_axes) :
  dot pattern (encoding delta) = - (alpha * (dot (delta - Delta) (delta - Delta) - dot Delta Delta)).
Proof.
rewrite dot_cons dotZl !(dotDl, dotDr, dotNl, dotNr) (dotC delta Delta).
by ring.
Qed.

(** So the weights are those of the Gaussian score, for any set of keys. *)
Theorem encoding_weights (K : finType) (delta : K -> 'rV[R]_axes) :
  softmax (fun k => dot pattern (encoding (delta k))) =1
  softmax (fun k => - (alpha * dot (delta k - Delta) (delta k - Delta))).
Proof.
apply: (@softmax_up_to_constant _ _ _ _ (alpha * dot Delta Delta)) => k.
by rewrite encoding_score mulrBr opprB addrC.
Qed.

End Relative.

Section ContentAndPlace.
Variables (width axes : nat) (beta : R) (S : 'M[R]_axes) (Delta : 'rV[R]_axes).
Hypothesis S_symmetric : S^T = S.

(** u S w^T: the score of a full sharpness matrix is -(δ - Δ) S (δ - Δ)^T; S = α I is the usual one. *)
Definition form (u w : 'rV[R]_axes) : R := dot (u *m S) w.

(** The query with 1 + axes more columns: (β q, -1, 2 (p + Δ) S). *)
Definition long_query (q : 'rV[R]_width) (p : 'rV[R]_axes) : 'rV[R]_(width + (1 + axes)) :=
  row_mx (beta *: q) (cons_row (-1) (2 *: ((p + Delta) *m S))).

(** The key with 1 + axes more columns: (k, p S p^T, p). *)
Definition long_key (k : 'rV[R]_width) (p : 'rV[R]_axes) : 'rV[R]_(width + (1 + axes)) :=
  row_mx k (cons_row (form p p) p).

Lemma formC (u w : 'rV[R]_axes) : form u w = form w u.
Proof.
rewrite /form /dot.
have -> : u *m S *m w^T = (w *m S *m u^T)^T by rewrite !trmx_mul trmxK S_symmetric mulmxA.
by rewrite mxE.
Qed.

Lemma form_expand (u w : 'rV[R]_axes) : form (u - w) (u - w) = form u u - 2 * form w u + form w w.
Proof.
rewrite {1}/form mulmxBl !(dotDl, dotDr, dotNl, dotNr) -!/(form _ _) (formC u w).
by ring.
Qed.

(** Content plus place is a dot product, up to a constant of the query. *)
Theorem long_dot (q k : 'rV[R]_width) (pq pk : 'rV[R]_axes) :
  dot (long_query q pq) (long_key k pk) =
  beta * dot q k - form (pk - pq - Delta) (pk - pq - Delta) + form (pq + Delta) (pq + Delta).
Proof.
rewrite dot_row dot_cons !dotZl -/(form _ _).
have -> : pk - pq - Delta = pk - (pq + Delta) by rewrite opprD addrA.
by rewrite form_expand; ring.
Qed.

(** Content plus place needs no attention of its own: the same weights come from plain dot products. *)
Theorem content_and_place (K : finType) (q : 'rV[R]_width) (pq : 'rV[R]_axes)
    (key : K -> 'rV[R]_width) (place : K -> 'rV[R]_axes) :
  softmax (fun k => beta * dot q (key k) - form (place k - pq - Delta) (place k - pq - Delta)) =1
  softmax (fun k => dot (long_query q pq) (long_key (key k) (place k))).
Proof.
move=> k; symmetry; move: k.
by apply: (@softmax_up_to_constant _ _ _ _ (form (pq + Delta) (pq + Delta))) => k; rewrite long_dot.
Qed.

End ContentAndPlace.

(** With S = α I the form is α times the dot product. *)
Theorem form_isotropic (axes : nat) (alpha : R) (u w : 'rV[R]_axes) : form alpha%:M u w = alpha * dot u w.
Proof. by rewrite /form mul_mx_scalar dotZl. Qed.

End Encodings.
