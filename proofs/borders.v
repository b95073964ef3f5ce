(** * Borders: which input a padded coordinate copies

    The padded coordinates of an axis of [n] inputs run from [-before] to [n - 1 + after]. Five borders, as in
    [regard.functional.axis_matrix] and [regard.reference]. *)

From mathcomp Require Import all_ssreflect all_algebra zify.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory.
Local Open Scope ring_scope.

Inductive border := native | zeros | reflect_ | replicate | circular.

(** The coordinate in [low .. high] nearest to [c]. *)
Definition clamp (low high c : int) : int := Num.min (Num.max c low) high.

(** The input that coordinate [c] copies. [native] and [zeros] copy nothing from outside. *)
Definition source (b : border) (n : nat) (c : int) : int :=
  let period := (2 * (n - 1))%:Z in
  match b with
  | native | zeros => c
  | replicate => clamp 0 (n%:Z - 1) c
  | circular => (c %% n)%Z
  | reflect_ => if n == 1%N then 0 else Num.min (c %% period)%Z (period - (c %% period)%Z)
  end.

(** The same as an input of the axis; [None] where there is none, and the weight is dropped. *)
Definition home (b : border) (n : nat) (c : int) : option 'I_n :=
  if source b n c is Posz i then insub i else None.

(** The coordinate of padded position [p]. *)
Definition coordinate (before : nat) (p : nat) : int := p%:Z - before%:Z.

Lemma clamp_range (low high c : int) : low <= high -> low <= clamp low high c <= high.
Proof. by rewrite /clamp => lh; rewrite le_minr lh le_maxr lexx orbT /= le_minl lexx orbT. Qed.

Lemma clamp_id (low high c : int) : low <= c <= high -> clamp low high c = c.
Proof. by rewrite /clamp => /andP[lc ch]; rewrite (max_idPl lc) (min_idPl ch). Qed.

Lemma home_some b n c (i : int) : source b n c = i -> 0 <= i < n%:Z -> exists j : 'I_n, home b n c = Some j /\ j%:Z = i.
Proof. by rewrite /home => ->; case: i => // i /= lt_in; exists (Ordinal lt_in); rewrite insubT. Qed.

(** An input that exists is its own home, for every border. *)
Theorem home_inside b n (j : 'I_n) : home b n j%:Z = Some j.
Proof.
have [lt_jn] : (j < n)%N /\ True by [].
suff e : source b n j%:Z = j%:Z by rewrite /home e /= valK.
have le_j : j%:Z <= n%:Z - 1 by rewrite ler_subr_addr -PoszD lez_nat addn1.
case: b => //=.
- case: eqP => [n1|/eqP n1]; first by case: j {le_j} lt_jn; rewrite n1 => -[].
  rewrite modz_small; last by lia.
  by lia.
- by rewrite clamp_id // lez_nat.
- by rewrite modz_small // lez_nat ltz_nat.
Qed.

(** Reflect, replicate and circular padding always copy an input: no attention is dropped. *)
Theorem home_total b n (c : int) : (0 < n)%N -> b <> native -> b <> zeros -> exists j : 'I_n, home b n c = Some j.
Proof.
move=> n0 not_native not_zeros; suff range : 0 <= source b n c < n%:Z.
  by have [j [e _]] := home_some erefl range; exists j.
case: b not_native not_zeros => // _ _ /=.
- case: eqP => [->//|n1]; have p0 : (0 < 2 * (n - 1))%N by lia.
  have m0 : 0 <= (c %% (2 * (n - 1))%:Z)%Z by rewrite modz_ge0 // eqz_nat -lt0n.
  have mp : (c %% (2 * (n - 1))%:Z)%Z < (2 * (n - 1))%:Z by rewrite ltz_pmod // ltz_nat.
  by move: m0 mp; case: (c %% _)%Z => // m _ mp; lia.
- by rewrite /clamp; lia.
- by rewrite modz_ge0 ?ltz_pmod // ?ltz_nat // eqz_nat -lt0n.
Qed.

(** Zero padding drops exactly what lies outside. *)
Theorem home_zeros n (c : int) : home zeros n c = None <-> ~~ (0 <= c < n%:Z).
Proof.
rewrite /home /=; case: c => // c; rewrite lez_nat ltz_nat /=.
by case: (ltnP c n) => h; [rewrite insubT|rewrite insubF ?ltnNge ?h].
Qed.
