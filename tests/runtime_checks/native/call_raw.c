/* call_raw ARCHIVE BATCH: float64 inputs from standard input, one variable after the other; outputs to standard output. */
#include <stdio.h>
#include <stdlib.h>
#include <torchferry/torchferry.h>

static void check(tf_status status, tf_model model) {
  if (status == TF_OK) return;
  fprintf(stderr, "%s: %s\n", tf_status_name(status), tf_last_error(model));
  exit(1);
}

/* A contiguous array of a whole batch of one variable; the caller fills or reads it. */
static tf_tensor allocate(const tf_variable* variable, int64_t batch) {
  int64_t* shape = malloc((size_t)(variable->rank + 1) * sizeof *shape);
  int64_t count = shape[0] = batch;
  for (int32_t i = 0; i < variable->rank; ++i) count *= shape[i + 1] = variable->shape[i];
  tf_tensor tensor = {malloc((size_t)count * sizeof(double)), variable->dtype, variable->rank + 1, shape, NULL, {TF_CPU, 0}};
  return tensor;
}

static size_t elements(const tf_tensor* tensor) {
  size_t count = 1;
  for (int32_t i = 0; i < tensor->rank; ++i) count *= (size_t)tensor->shape[i];
  return count;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  tf_model model;
  check(tf_load(argv[1], "cpu", NULL, &model), NULL);
  int32_t n_in, n_out;
  check(tf_input_count(model, NULL, &n_in), model);
  check(tf_output_count(model, NULL, &n_out), model);
  tf_tensor* in = malloc((size_t)n_in * sizeof *in);
  tf_tensor* out = malloc((size_t)n_out * sizeof *out);
  tf_variable variable;
  for (int32_t i = 0; i < n_in; ++i) {
    check(tf_input(model, NULL, i, &variable), model);
    in[i] = allocate(&variable, atoll(argv[2]));
    if (fread(in[i].data, sizeof(double), elements(&in[i]), stdin) != elements(&in[i])) return 3;
  }
  for (int32_t i = 0; i < n_out; ++i) {
    check(tf_output(model, NULL, i, &variable), model);
    out[i] = allocate(&variable, atoll(argv[2]));
  }
  check(tf_call(model, NULL, n_in, in, n_out, out), model);
  for (int32_t i = 0; i < n_out; ++i) fwrite(out[i].data, sizeof(double), elements(&out[i]), stdout);
  check(tf_close(model), model);
  return 0;
}
