(** * Certified numbers: T, T/(1+T), leak over 1, 2 and 3 axes, and the output error, at some sharpnesses α

    Written by certificates.py; every bound is proved here. certificates.toml holds the same numbers, and the tests hold
    the library's [leak] and [error_bound] to them. The error is that of a convolution over two axes whose weights have
    the absolute sum 7/2, for inputs of at most 9/4. *)

From Coq Require Import Reals Lra.
From Interval Require Import Tactic.
From regard Require Import enclosure.
Local Open Scope R_scope.

(** T from N terms of its series and the bound on the rest. *)
Ltac certify_T N :=
  match goal with |- _ <= T ?a <= _ =>
    let a_gt0 := fresh in let lo := fresh in let hi := fresh in
    assert (a_gt0 : 0 < a) by lra; destruct (T_enclosed N a_gt0) as [lo hi];
    split; [refine (Rle_trans _ _ _ _ lo) | refine (Rle_trans _ _ _ hi _)]; clear;
    cbv [bumps square Z.of_nat Z.mul Pos.of_succ_nat Pos.succ Pos.mul Pos.add]; interval with (i_prec 160)
  end.

(** What is computed from T, by the bounds on T. *)
Ltac certify_from T_bounds :=
  unfold error_of, elsewhere; try rewrite leak_ofE by lra;
  let t := fresh in let b := fresh in
  pose proof T_bounds as b; revert b; match goal with |- _ <= T ?a <= _ -> _ => generalize (T a) end; intros t b;
  cbv [pow]; interval with (i_prec 160).

(** α = 1/8 *)
Theorem T_1_8 : 4.0132565492620010048e+0 <= T (1/8) <= 4.0132565492620010049e+0.
Proof. certify_T 22%nat. Qed.
Theorem elsewhere_1_8 : 8.0052885979928366e-1 <= elsewhere (1/8) <= 8.0052885979928367e-1.
Proof. certify_from T_1_8. Qed.
Theorem leak1_1_8 : 1.6010577195985673e+0 <= leak_of 1 (1/8) <= 1.6010577195985674e+0.
Proof. certify_from T_1_8. Qed.
Theorem leak2_1_8 : 1.9204225284540523e+0 <= leak_of 2 (1/8) <= 1.9204225284540524e+0.
Proof. certify_from T_1_8. Qed.
Theorem leak3_1_8 : 1.9841265910164397e+0 <= leak_of 3 (1/8) <= 1.9841265910164398e+0.
Proof. certify_from T_1_8. Qed.
Theorem error_1_8 : 1.5123327411575662e+1 <= error_of 2 (1/8) (7/2) (9/4) <= 1.5123327411575663e+1.
Proof. certify_from T_1_8. Qed.

(** α = 1/4 *)
Theorem T_1_4 : 2.5449077018110321053e+0 <= T (1/4) <= 2.5449077018110321054e+0.
Proof. certify_T 15%nat. Qed.
Theorem elsewhere_1_4 : 7.1790520822612186e-1 <= elsewhere (1/4) <= 7.1790520822612187e-1.
Proof. certify_from T_1_4. Qed.
Theorem leak1_1_4 : 1.4358104164522437e+0 <= leak_of 1 (1/4) <= 1.4358104164522438e+0.
Proof. certify_from T_1_4. Qed.
Theorem leak2_1_4 : 1.8408450569081046e+0 <= leak_of 2 (1/4) <= 1.8408450569081047e+0.
Proof. certify_from T_1_4. Qed.
Theorem leak3_1_4 : 1.9551032194687083e+0 <= leak_of 3 (1/4) <= 1.9551032194687084e+0.
Proof. certify_from T_1_4. Qed.
Theorem error_1_4 : 1.4496654823151324e+1 <= error_of 2 (1/4) (7/2) (9/4) <= 1.4496654823151325e+1.
Proof. certify_from T_1_4. Qed.

(** α = 1/2 *)
Theorem T_1_2 : 1.5066282880429055448e+0 <= T (1/2) <= 1.5066282880429055449e+0.
Proof. certify_T 11%nat. Qed.
Theorem elsewhere_1_2 : 6.0105772173313829e-1 <= elsewhere (1/2) <= 6.0105772173313830e-1.
Proof. certify_from T_1_2. Qed.
Theorem leak1_1_2 : 1.2021154434662765e+0 <= leak_of 1 (1/2) <= 1.2021154434662766e+0.
Proof. certify_from T_1_2. Qed.
Theorem leak2_1_2 : 1.6816901172224917e+0 <= leak_of 2 (1/2) <= 1.6816901172224918e+0.
Proof. certify_from T_1_2. Qed.
Theorem leak3_1_2 : 1.8730127301698831e+0 <= leak_of 3 (1/2) <= 1.8730127301698832e+0.
Proof. certify_from T_1_2. Qed.
Theorem error_1_2 : 1.3243309673127122e+1 <= error_of 2 (1/2) (7/2) (9/4) <= 1.3243309673127123e+1.
Proof. certify_from T_1_2. Qed.

(** α = 3/4 *)
Theorem T_3_4 : 1.0466613042760716428e+0 <= T (3/4) <= 1.0466613042760716429e+0.
Proof. certify_T 9%nat. Qed.
Theorem elsewhere_3_4 : 5.1139937130256544e-1 <= elsewhere (3/4) <= 5.1139937130256545e-1.
Proof. certify_from T_3_4. Qed.
Theorem leak1_3_4 : 1.0227987426051308e+0 <= leak_of 1 (3/4) <= 1.0227987426051309e+0.
Proof. certify_from T_3_4. Qed.
Theorem leak2_3_4 : 1.5225388512729433e+0 <= leak_of 2 (3/4) <= 1.5225388512729434e+0.
Proof. certify_from T_3_4. Qed.
Theorem leak3_3_4 : 1.7667121825533608e+0 <= leak_of 3 (3/4) <= 1.7667121825533609e+0.
Proof. certify_from T_3_4. Qed.
Theorem error_3_4 : 1.1989993453774429e+1 <= error_of 2 (3/4) (7/2) (9/4) <= 1.1989993453774430e+1.
Proof. certify_from T_3_4. Qed.

(** α = 1 *)
Theorem T_1 : 7.7263720482665215303e-1 <= T 1 <= 7.7263720482665215304e-1.
Proof. certify_T 7%nat. Qed.
Theorem elsewhere_1 : 4.3586877378115792e-1 <= elsewhere 1 <= 4.3586877378115793e-1.
Proof. certify_from T_1. Qed.
Theorem leak1_1 : 8.7173754756231585e-1 <= leak_of 1 1 <= 8.7173754756231586e-1.
Proof. certify_from T_1. Qed.
Theorem leak2_1 : 1.3635119192096512e+0 <= leak_of 2 1 <= 1.3635119192096513e+0.
Proof. certify_from T_1. Qed.
Theorem leak3_1 : 1.6409371985100631e+0 <= leak_of 3 1 <= 1.6409371985100632e+0.
Proof. certify_from T_1. Qed.
Theorem error_1 : 1.0737656363776003e+1 <= error_of 2 1 (7/2) (9/4) <= 1.0737656363776004e+1.
Proof. certify_from T_1. Qed.

(** α = 3/2 *)
Theorem T_3_2 : 4.5122056664386793727e-1 <= T (3/2) <= 4.5122056664386793728e-1.
Proof. certify_T 6%nat. Qed.
Theorem elsewhere_3_2 : 3.1092487042639759e-1 <= elsewhere (3/2) <= 3.1092487042639760e-1.
Proof. certify_from T_3_2. Qed.
Theorem leak1_3_2 : 6.2184974085279519e-1 <= leak_of 1 (3/2) <= 6.2184974085279520e-1.
Proof. certify_from T_3_2. Qed.
Theorem leak2_3_2 : 1.0503509316062461e+0 <= leak_of 2 (3/2) <= 1.0503509316062462e+0.
Proof. certify_from T_3_2. Qed.
Theorem leak3_3_2 : 1.3456204451471232e+0 <= leak_of 3 (3/2) <= 1.3456204451471233e+0.
Proof. certify_from T_3_2. Qed.
Theorem error_3_2 : 8.2715135863991881e+0 <= error_of 2 (3/2) (7/2) (9/4) <= 8.2715135863991882e+0.
Proof. certify_from T_3_2. Qed.

(** α = 2 *)
Theorem T_2 : 2.7134152218901522522e-1 <= T 2 <= 2.7134152218901522523e-1.
Proof. certify_T 5%nat. Qed.
Theorem elsewhere_2 : 2.1342929295805210e-1 <= elsewhere 2 <= 2.1342929295805211e-1.
Proof. certify_from T_2. Qed.
Theorem leak1_2 : 4.2685858591610420e-1 <= leak_of 1 2 <= 4.2685858591610421e-1.
Proof. certify_from T_2. Qed.
Theorem leak2_2 : 7.6261304564706034e-1 <= leak_of 2 2 <= 7.6261304564706035e-1.
Proof. certify_from T_2. Qed.
Theorem leak3_2 : 1.0267076684301257e+0 <= leak_of 3 2 <= 1.0267076684301258e+0.
Proof. certify_from T_2. Qed.
Theorem error_2 : 6.0055777344706002e+0 <= error_of 2 2 (7/2) (9/4) <= 6.0055777344706003e+0.
Proof. certify_from T_2. Qed.

(** α = 3 *)
Theorem T_3 : 9.9586425164193600014e-2 <= T 3 <= 9.9586425164193600015e-2.
Proof. certify_T 4%nat. Qed.
Theorem elsewhere_3 : 9.0567164967795097e-2 <= elsewhere 3 <= 9.0567164967795098e-2.
Proof. certify_from T_3. Qed.
Theorem leak1_3 : 1.8113432993559019e-1 <= leak_of 1 3 <= 1.8113432993559020e-1.
Proof. certify_from T_3. Qed.
Theorem leak2_3 : 3.4586383713057276e-1 <= leak_of 2 3 <= 3.4586383713057277e-1.
Proof. certify_from T_3. Qed.
Theorem leak3_3 : 4.9567425987236376e-1 <= leak_of 3 3 <= 4.9567425987236377e-1.
Proof. certify_from T_3. Qed.
Theorem error_3 : 2.7236777174032605e+0 <= error_of 2 3 (7/2) (9/4) <= 2.7236777174032606e+0.
Proof. certify_from T_3. Qed.

(** α = 5 *)
Theorem T_5 : 1.3475898120478179127e-2 <= T 5 <= 1.3475898120478179128e-2.
Proof. certify_T 3%nat. Qed.
Theorem elsewhere_5 : 1.3296712971141831e-2 <= elsewhere 5 <= 1.3296712971141832e-2.
Proof. certify_from T_5. Qed.
Theorem leak1_5 : 2.6593425942283662e-2 <= leak_of 1 5 <= 2.6593425942283663e-2.
Proof. certify_from T_5. Qed.
Theorem leak2_5 : 5.2833246732893461e-2 <= leak_of 2 5 <= 5.2833246732893462e-2.
Proof. certify_from T_5. Qed.
Theorem leak3_5 : 7.8724164158036322e-2 <= leak_of 3 5 <= 7.8724164158036323e-2.
Proof. certify_from T_5. Qed.
Theorem error_5 : 4.1606181802153600e-1 <= error_of 2 5 (7/2) (9/4) <= 4.1606181802153601e-1.
Proof. certify_from T_5. Qed.

(** α = 8 *)
Theorem T_8 : 6.7092525583035200874e-4 <= T 8 <= 6.7092525583035200875e-4.
Proof. certify_T 2%nat. Qed.
Theorem elsewhere_8 : 6.7047541693971376e-4 <= elsewhere 8 <= 6.7047541693971377e-4.
Proof. certify_from T_8. Qed.
Theorem leak1_8 : 1.3409508338794275e-3 <= leak_of 1 8 <= 1.3409508338794276e-3.
Proof. certify_from T_8. Qed.
Theorem leak2_8 : 2.6810025931894141e-3 <= leak_of 2 8 <= 2.6810025931894142e-3.
Proof. certify_from T_8. Qed.
Theorem leak3_8 : 4.0201558807373565e-3 <= leak_of 3 8 <= 4.0201558807373566e-3.
Proof. certify_from T_8. Qed.
Theorem error_8 : 2.1112895421366636e-2 <= error_of 2 8 (7/2) (9/4) <= 2.1112895421366637e-2.
Proof. certify_from T_8. Qed.

(** α = 12 *)
Theorem T_12 : 1.2288424706656422367e-5 <= T 12 <= 1.2288424706656422368e-5.
Proof. certify_T 2%nat. Qed.
Theorem elsewhere_12 : 1.2288273703130246e-5 <= elsewhere 12 <= 1.2288273703130247e-5.
Proof. certify_from T_12. Qed.
Theorem leak1_12 : 2.4576547406260493e-5 <= leak_of 1 12 <= 2.4576547406260494e-5.
Proof. certify_from T_12. Qed.
Theorem leak2_12 : 4.9152792809179780e-5 <= leak_of 2 12 <= 4.9152792809179781e-5.
Proof. certify_from T_12. Qed.
Theorem leak3_12 : 7.3728736212468961e-5 <= leak_of 3 12 <= 7.3728736212468962e-5.
Proof. certify_from T_12. Qed.
Theorem error_12 : 3.8707824337229077e-4 <= error_of 2 12 (7/2) (9/4) <= 3.8707824337229078e-4.
Proof. certify_from T_12. Qed.

(** α = 16 *)
Theorem T_16 : 2.2507034943851822902e-7 <= T 16 <= 2.2507034943851822903e-7.
Proof. certify_T 2%nat. Qed.
Theorem elsewhere_16 : 2.2507029878186743e-7 <= elsewhere 16 <= 2.2507029878186744e-7.
Proof. certify_from T_16. Qed.
Theorem leak1_16 : 4.5014059756373486e-7 <= leak_of 1 16 <= 4.5014059756373487e-7.
Proof. certify_from T_16. Qed.
Theorem leak2_16 : 9.0028109381419094e-7 <= leak_of 2 16 <= 9.0028109381419095e-7.
Proof. certify_from T_16. Qed.
Theorem leak3_16 : 1.3504214887513910e-6 <= leak_of 3 16 <= 1.3504214887513911e-6.
Proof. certify_from T_16. Qed.
Theorem error_16 : 7.0897136137867537e-6 <= error_of 2 16 (7/2) (9/4) <= 7.0897136137867538e-6.
Proof. certify_from T_16. Qed.

(** α = 20 *)
Theorem T_20 : 4.1223072448771156559e-9 <= T 20 <= 4.1223072448771156560e-9.
Proof. certify_T 1%nat. Qed.
Theorem elsewhere_20 : 4.1223072278836987e-9 <= elsewhere 20 <= 4.1223072278836988e-9.
Proof. certify_from T_20. Qed.
Theorem leak1_20 : 8.2446144557673974e-9 <= leak_of 1 20 <= 8.2446144557673975e-9.
Proof. certify_from T_20. Qed.
Theorem leak2_20 : 1.6489228877547961e-8 <= leak_of 2 20 <= 1.6489228877547962e-8.
Proof. certify_from T_20. Qed.
Theorem leak3_20 : 2.4733843265341691e-8 <= leak_of 3 20 <= 2.4733843265341692e-8.
Proof. certify_from T_20. Qed.
Theorem error_20 : 1.2985267741069019e-7 <= error_of 2 20 (7/2) (9/4) <= 1.2985267741069020e-7.
Proof. certify_from T_20. Qed.

(** α = 30 *)
Theorem T_30 : 1.8715245937680349209e-13 <= T 30 <= 1.8715245937680349210e-13.
Proof. certify_T 1%nat. Qed.
Theorem elsewhere_30 : 1.8715245937676846e-13 <= elsewhere 30 <= 1.8715245937676847e-13.
Proof. certify_from T_30. Qed.
Theorem leak1_30 : 3.7430491875353693e-13 <= leak_of 1 30 <= 3.7430491875353694e-13.
Proof. certify_from T_30. Qed.
Theorem leak2_30 : 7.4860983750700381e-13 <= leak_of 2 30 <= 7.4860983750700382e-13.
Proof. certify_from T_30. Qed.
Theorem leak3_30 : 1.1229147562604006e-12 <= leak_of 3 30 <= 1.1229147562604007e-12.
Proof. certify_from T_30. Qed.
Theorem error_30 : 5.8953024703676550e-12 <= error_of 2 30 (7/2) (9/4) <= 5.8953024703676551e-12.
Proof. certify_from T_30. Qed.
