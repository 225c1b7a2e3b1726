/* make_model: what is computed, of TF_NOW elements; make_model.c includes it once for each number of them. */


/* forward: 8 operations. */
#define TF_PART TF_FUNCTION
TF_PART void TF_(forward_0)(struct forward_frame *restrict f, const struct forward_uniform *restrict g) {
  TF_SIMD
  for (int l = 0; l < TF_NOW; l++) {
    /* at robertson.py:28 */
    const double v10 = g->d[0] * f->d[0][l];
    const double v12 = g->d[1] * f->d[1][l];
    const double v14 = f->d[2][l] * v12;
    const double v16 = v10 - v14;
    /* at robertson.py:29 */
    const double v18 = g->d[2] * f->d[1][l];
    const double v20 = f->d[1][l] * v18;
    f->d[5][l] = v20;
    /* at robertson.py:30 */
    const double v22 = -v16;
    f->d[3][l] = v22;
    const double v24 = v16 - v20;
    f->d[4][l] = v24;
  }
  (void)f;
  (void)g;
}

TF_PART void TF_(forward_body)(struct forward_frame *restrict f, const struct forward_uniform *restrict g) {
  TF_(forward_0)(f, g);
  (void)f;
  (void)g;
}

#undef TF_PART

/* jacobian: 19 operations. */
#define TF_PART TF_FUNCTION
TF_PART void TF_(jacobian_0)(struct jacobian_frame *restrict f, const struct jacobian_uniform *restrict g) {
  TF_SIMD
  for (int l = 0; l < TF_NOW; l++) {
    /* at robertson.py:28 */
    const double v10 = g->d[0] * f->d[0][l];
    const double v12 = g->d[1] * f->d[1][l];
    f->d[8][l] = v12;
    const double v14 = f->d[2][l] * v12;
    const double v16 = v10 - v14;
    /* at robertson.py:29 */
    const double v18 = g->d[2] * f->d[1][l];
    const double v20 = f->d[1][l] * v18;
    f->d[5][l] = v20;
    /* at robertson.py:30 */
    const double v22 = -v16;
    f->d[3][l] = v22;
    const double v24 = v16 - v20;
    f->d[4][l] = v24;
    const double v38 = f->d[1][l] * f->d[2][l];
    f->d[16][l] = v38;
    const double v39 = g->d[1] * f->d[2][l];
    f->d[7][l] = v39;
    const double v40 = -v12;
    f->d[11][l] = v40;
    const double v41 = -v38;
    f->d[19][l] = v41;
    const double v42 = -v39;
    const double v43 = v18 + v18;
    f->d[13][l] = v43;
    const double v44 = f->d[1][l] * f->d[1][l];
    f->d[23][l] = v44;
    const double v45 = -f->d[0][l];
    f->d[15][l] = v45;
    const double v47 = v42 - v43;
    f->d[10][l] = v47;
    const double v48 = -v44;
    f->d[20][l] = v48;
  }
  (void)f;
  (void)g;
}

TF_PART void TF_(jacobian_1)(struct jacobian_frame *restrict f, const struct jacobian_uniform *restrict g) {
  TF_SIMD
  for (int l = 0; l < TF_NOW; l++) {
    f->d[6][l] = g->d[3];
    f->d[9][l] = g->d[0];
    f->d[12][l] = 0.0;
    f->d[14][l] = 0.0;
  }
  (void)f;
  (void)g;
}

TF_PART void TF_(jacobian_2)(struct jacobian_frame *restrict f, const struct jacobian_uniform *restrict g) {
  TF_SIMD
  for (int l = 0; l < TF_NOW; l++) {
    f->d[17][l] = 0.0;
    f->d[18][l] = f->d[0][l];
    f->d[21][l] = 0.0;
    f->d[22][l] = 0.0;
  }
  (void)f;
  (void)g;
}

TF_PART void TF_(jacobian_body)(struct jacobian_frame *restrict f, const struct jacobian_uniform *restrict g) {
  TF_(jacobian_0)(f, g);
  TF_(jacobian_1)(f, g);
  TF_(jacobian_2)(f, g);
  (void)f;
  (void)g;
}

#undef TF_PART
