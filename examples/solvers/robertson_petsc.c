/* Robertson's stiff kinetics by PETSc's TS, with rates and Jacobian from a kernel: prints time, state and steps.

     torchferry export examples/solvers/robertson.py:make_model --derivative rate:y --format c -o kernel
     cc -Ikernel robertson_petsc.c kernel/make_model.c $(pkg-config --cflags --libs petsc) -lm */
#include <petscts.h>

#include "make_model.h"

/* The rates of a state; `block` takes their derivatives too, or is null. */
static int evaluate(const double *y, double *rate, double *block) {
  const make_model_array in[] = { { (void *)y, NULL } };
  const make_model_array out[] = { { rate, NULL }, { block, NULL } };
  return block ? make_model_jacobian(1, in, out, NULL, NULL, NULL) : make_model_forward(1, in, out, NULL, NULL, NULL);
}

/* F(t, y, y') = y' - f(y). */
static PetscErrorCode find_residual(TS ts, PetscReal t, Vec y, Vec y_dot, Vec residual, void *context) {
  const PetscScalar *state, *change;
  PetscScalar *left, rate[3];
  PetscFunctionBeginUser;
  (void)ts, (void)t, (void)context;
  PetscCall(VecGetArrayRead(y, &state));
  PetscCall(VecGetArrayRead(y_dot, &change));
  PetscCall(VecGetArray(residual, &left));
  PetscCheck(evaluate(state, rate, NULL) == 0, PETSC_COMM_SELF, PETSC_ERR_LIB, "the kernel has no result");
  for (int i = 0; i < 3; i++) left[i] = change[i] - rate[i];
  PetscCall(VecRestoreArray(residual, &left));
  PetscCall(VecRestoreArrayRead(y_dot, &change));
  PetscCall(VecRestoreArrayRead(y, &state));
  PetscFunctionReturn(0);
}

/* dF/dy + shift dF/dy', a matrix whose numbers the kernel gives row by row. */
static PetscErrorCode find_jacobian(TS ts, PetscReal t, Vec y, Vec y_dot, PetscReal shift, Mat matrix, Mat other, void *context) {
  const PetscScalar *state;
  PetscScalar rate[3], block[9];
  const PetscInt places[] = { 0, 1, 2 };
  PetscFunctionBeginUser;
  (void)ts, (void)t, (void)y_dot, (void)matrix, (void)context;
  PetscCall(VecGetArrayRead(y, &state));
  PetscCheck(evaluate(state, rate, block) == 0, PETSC_COMM_SELF, PETSC_ERR_LIB, "the kernel has no result");
  PetscCall(VecRestoreArrayRead(y, &state));
  for (int i = 0; i < 9; i++) block[i] = -block[i];
  for (int i = 0; i < 3; i++) block[4 * i] += shift;
  PetscCall(MatSetValues(other, 3, places, 3, places, block, INSERT_VALUES));
  PetscCall(MatAssemblyBegin(other, MAT_FINAL_ASSEMBLY));
  PetscCall(MatAssemblyEnd(other, MAT_FINAL_ASSEMBLY));
  PetscFunctionReturn(0);
}

int main(int count, char **arguments) {
  TS ts;
  Vec y;
  Mat matrix;
  PetscInt steps, failures;
  PetscReal time;
  const PetscScalar *state;
  PetscCall(PetscInitialize(&count, &arguments, NULL, NULL));
  PetscCall(VecCreateSeq(PETSC_COMM_SELF, 3, &y));
  PetscCall(VecSetValue(y, 0, 1.0, INSERT_VALUES));
  PetscCall(VecAssemblyBegin(y));
  PetscCall(VecAssemblyEnd(y));
  PetscCall(MatCreateSeqDense(PETSC_COMM_SELF, 3, 3, NULL, &matrix));
  PetscCall(TSCreate(PETSC_COMM_SELF, &ts));
  PetscCall(TSSetType(ts, TSBDF));
  PetscCall(TSSetIFunction(ts, NULL, find_residual, NULL));
  PetscCall(TSSetIJacobian(ts, matrix, matrix, find_jacobian, NULL));
  PetscCall(TSSetTimeStep(ts, 1e-4));
  PetscCall(TSSetMaxTime(ts, 40.0));
  PetscCall(TSSetMaxSteps(ts, 100000));
  PetscCall(TSSetExactFinalTime(ts, TS_EXACTFINALTIME_MATCHSTEP));
  PetscCall(TSSetTolerances(ts, 1e-10, NULL, 1e-8, NULL));
  PetscCall(TSSetFromOptions(ts));
  PetscCall(TSSolve(ts, y));
  PetscCall(TSGetSolveTime(ts, &time));
  PetscCall(TSGetStepNumber(ts, &steps));
  PetscCall(TSGetSNESFailures(ts, &failures));
  PetscCall(VecGetArrayRead(y, &state));
  PetscCall(PetscPrintf(PETSC_COMM_SELF, "%.17g %.17g %.17g %.17g %d %d\n", (double)time, (double)state[0], (double)state[1],
      (double)state[2], (int)steps, (int)failures));
  PetscCall(VecRestoreArrayRead(y, &state));
  PetscCall(TSDestroy(&ts));
  PetscCall(MatDestroy(&matrix));
  PetscCall(VecDestroy(&y));
  PetscCall(PetscFinalize());
  return 0;
}
