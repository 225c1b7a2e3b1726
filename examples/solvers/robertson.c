/* SUNDIALS CVODE on Robertson's problem, right-hand side and Jacobian from one archive: robertson ARCHIVE
 * The same with functions that are written by hand: robertson --by-hand */
#include <cvode/cvode.h>
#include <nvector/nvector_serial.h>
#include <stdio.h>
#include <string.h>
#include <sundials/sundials_context.h>
#include <sunlinsol/sunlinsol_dense.h>
#include <sunmatrix/sunmatrix_dense.h>
#include <torchferry/torchferry.h>

enum { N = 3 };

static const int64_t vector[] = {1, N}, matrix[] = {1, N, N}; /* a batch of one */
static const int64_t by_columns[] = {N * N, 1, N};            /* as SUNDIALS keeps a matrix */

static int failed(tf_model model) {
  fprintf(stderr, "robertson: %s\n", tf_last_error(model));
  return -1; /* CVODE ends the integration with CV_RHSFUNC_FAIL or CV_LSETUP_FAIL */
}

static int rate(realtype t, N_Vector y, N_Vector ydot, void* model) {
  (void)t;
  const tf_tensor in = {N_VGetArrayPointer(y), TF_FLOAT64, 2, vector, NULL, {TF_CPU, 0}};
  const tf_tensor out = {N_VGetArrayPointer(ydot), TF_FLOAT64, 2, vector, NULL, {TF_CPU, 0}};
  return tf_call(model, "forward", 1, &in, 1, &out) == TF_OK ? 0 : failed(model);
}

static int jacobian(realtype t, N_Vector y, N_Vector fy, SUNMatrix J, void* model, N_Vector a, N_Vector b, N_Vector c) {
  (void)t, (void)fy, (void)a, (void)b, (void)c;
  const char *input = "y", *block = "rate/y";
  const tf_tensor in = {N_VGetArrayPointer(y), TF_FLOAT64, 2, vector, NULL, {TF_CPU, 0}};
  const tf_tensor out = {SM_DATA_D(J), TF_FLOAT64, 3, matrix, by_columns, {TF_CPU, 0}};
  return tf_call_named(model, "jacobian", 1, &input, &in, 1, &block, &out) == TF_OK ? 0 : failed(model);
}

static int rate_by_hand(realtype t, N_Vector y, N_Vector ydot, void* unused) {
  (void)t, (void)unused;
  const realtype *v = N_VGetArrayPointer(y), first = 0.04 * v[0] - 1e4 * v[1] * v[2], second = 3e7 * v[1] * v[1];
  realtype* out = N_VGetArrayPointer(ydot);
  out[0] = -first, out[1] = first - second, out[2] = second;
  return 0;
}

static int jacobian_by_hand(realtype t, N_Vector y, N_Vector fy, SUNMatrix J, void* unused, N_Vector a, N_Vector b,
                            N_Vector c) {
  (void)t, (void)fy, (void)unused, (void)a, (void)b, (void)c;
  const realtype* v = N_VGetArrayPointer(y);
  const realtype first[N] = {0.04, -1e4 * v[2], -1e4 * v[1]}, second[N] = {0, 6e7 * v[1], 0};
  for (int j = 0; j < N; ++j) {
    SM_ELEMENT_D(J, 0, j) = -first[j];
    SM_ELEMENT_D(J, 1, j) = first[j] - second[j];
    SM_ELEMENT_D(J, 2, j) = second[j];
  }
  return 0;
}

int main(int argc, char** argv) {
  if (argc != 2) return fprintf(stderr, "usage: robertson ARCHIVE | --by-hand\n"), 2;
  const int by_hand = strcmp(argv[1], "--by-hand") == 0;
  tf_model model = NULL;
  if (!by_hand && tf_load(argv[1], "cpu", NULL, &model) != TF_OK) return failed(NULL), 1;
  if (!by_hand && tf_run_cases(model, NULL, NULL) != TF_OK) return failed(model), 1;

  SUNContext context;
  SUNContext_Create(NULL, &context);
  N_Vector y = N_VNew_Serial(N, context), atol = N_VNew_Serial(N, context);
  memcpy(N_VGetArrayPointer(y), (realtype[]){1, 0, 0}, N * sizeof(realtype));
  memcpy(N_VGetArrayPointer(atol), (realtype[]){1e-8, 1e-14, 1e-6}, N * sizeof(realtype));
  void* solver = CVodeCreate(CV_BDF, context);
  SUNMatrix A = SUNDenseMatrix(N, N, context);
  SUNLinearSolver linear = SUNLinSol_Dense(y, A, context);
  int status = CVodeInit(solver, by_hand ? rate_by_hand : rate, 0, y);
  if (!status) status = CVodeSVtolerances(solver, 1e-4, atol);
  if (!status) status = CVodeSetUserData(solver, model);
  if (!status) status = CVodeSetLinearSolver(solver, linear, A);
  if (!status) status = CVodeSetJacFn(solver, by_hand ? jacobian_by_hand : jacobian);
  if (!status) status = CVodeSetMaxNumSteps(solver, 5000);

  realtype end = 0.4, t;
  for (int i = 0; i < 12 && status >= 0; ++i, end *= 10) {
    status = CVode(solver, end, y, &t, CV_NORMAL);
    const realtype* v = N_VGetArrayPointer(y);
    if (status >= 0) printf("%.6e %.17e %.17e %.17e\n", t, v[0], v[1], v[2]);
  }
  long steps = 0, rates = 0, jacobians = 0, iterations = 0;
  CVodeGetNumSteps(solver, &steps);
  CVodeGetNumRhsEvals(solver, &rates);
  CVodeGetNumJacEvals(solver, &jacobians);
  CVodeGetNumNonlinSolvIters(solver, &iterations);
  printf("steps %ld, rates %ld, jacobians %ld, iterations %ld\n", steps, rates, jacobians, iterations);

  SUNLinSolFree(linear), SUNMatDestroy(A), N_VDestroy(y), N_VDestroy(atol), CVodeFree(&solver), SUNContext_Free(&context);
  if (model) tf_close(model);
  return status >= 0 ? 0 : 1;
}
