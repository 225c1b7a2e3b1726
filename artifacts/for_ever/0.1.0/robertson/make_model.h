/* make_model: written by torchferry 0.1.0 from the graphs 15b3018dbeb4abb6 (sha256).

   Every function takes a batch of `count` elements. An array of a variable is its first number, and its strides, in
   numbers: that of the batch first, then those of its own dimensions; null for numbers that lie one after the other,
   element by element. Outputs do not overlap each other or an input, but for one that is the same array with the same
   strides. What has no numbers may be null. `parameters` has a pointer to the numbers of each parameter, in the order of the enumeration; null, for all
   of them or for one, means the value that was exported; no output may overlap one. `workspace` has the bytes that the enumeration says, and is
   null where that is 0. Nothing is allocated, nothing is kept: functions can be called from any thread.
   A call of the same count, strides and parameters can be prepared: _prepare checks the arguments once, and keeps what stays in
   `call`, the host's memory of _call_size bytes; _run then takes the arrays' first numbers alone. What they overlap is not
   checked again: no more than the arrays of _prepare. Values of parameters are those at _prepare, but for one that is read as a
   table. Each thread that runs has a `call` of its own.
   Compiled with OpenMP (-fopenmp), a function without a workspace spreads blocks of elements over its threads.
 */
#ifndef TORCHFERRY_MAKE_MODEL_H
#define TORCHFERRY_MAKE_MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct make_model_array {
  void *data;
  const ptrdiff_t *strides;
} make_model_array;

/* What a function returns. */
enum {
  MAKE_MODEL_OK = 0,
  /* Some element has not converged: see its status. */
  MAKE_MODEL_NOT_CONVERGED = 1,
  /* Nothing was computed: an argument is null, or the count is negative; */
  MAKE_MODEL_ERROR_ARGUMENT = -1,
  /* strides with which numbers of an output would share their place, or that reach further than memory; */
  MAKE_MODEL_ERROR_STRIDES = -2,
  /* an output overlaps another output, an input, or a parameter that is read as a table. */
  MAKE_MODEL_ERROR_OVERLAP = -3
};

/* Parameters, by their place. */
enum {
  MAKE_MODEL_k = 0, /* k, 3 float64 */
  MAKE_MODEL_PARAMETERS = 1
};

/* forward: inputs by their place, then outputs. */
enum {
  MAKE_MODEL_FORWARD_IN_y = 0, /* y, 3 float64 */
  MAKE_MODEL_FORWARD_INPUTS = 1
};
enum {
  MAKE_MODEL_FORWARD_OUT_rate = 0, /* rate, 3 float64 */
  MAKE_MODEL_FORWARD_OUTPUTS = 1
};
#define MAKE_MODEL_FORWARD_WORKSPACE 0

int make_model_forward(ptrdiff_t count, const make_model_array *inputs, const make_model_array *outputs,
    const void *const *parameters, int32_t *status, void *workspace);
size_t make_model_forward_call_size(void);
int make_model_forward_prepare(void *call, ptrdiff_t count, const make_model_array *inputs, const make_model_array *outputs,
    const void *const *parameters);
int make_model_forward_run(void *call, const void *const *inputs, void *const *outputs, int32_t *status, void *workspace);

/* jacobian: inputs by their place, then outputs. */
enum {
  MAKE_MODEL_JACOBIAN_IN_y = 0, /* y, 3 float64 */
  MAKE_MODEL_JACOBIAN_INPUTS = 1
};
enum {
  MAKE_MODEL_JACOBIAN_OUT_rate = 0, /* rate, 3 float64 */
  MAKE_MODEL_JACOBIAN_OUT_d_rate___d_y = 1, /* d rate / d y, 3 x 3 float64 */
  MAKE_MODEL_JACOBIAN_OUT_d_rate___d_k = 2, /* d rate / d k, 3 x 3 float64 */
  MAKE_MODEL_JACOBIAN_OUTPUTS = 3
};
#define MAKE_MODEL_JACOBIAN_WORKSPACE 0

int make_model_jacobian(ptrdiff_t count, const make_model_array *inputs, const make_model_array *outputs,
    const void *const *parameters, int32_t *status, void *workspace);
size_t make_model_jacobian_call_size(void);
int make_model_jacobian_prepare(void *call, ptrdiff_t count, const make_model_array *inputs, const make_model_array *outputs,
    const void *const *parameters);
int make_model_jacobian_run(void *call, const void *const *inputs, void *const *outputs, int32_t *status, void *workspace);

#ifdef __cplusplus
}
#endif

#endif
