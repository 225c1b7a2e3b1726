/* wrong_calls ELASTIC PICKS FOLDER: every way to call the library wrongly that we could think of. Each must give its
 * status and a message that names the argument, and the handle must go on working. FOLDER holds damaged archives. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <torchferry/torchferry.h>

static int wrong = 0, failures = 0;
static tf_model model;

enum { N = 2 };
static double F[N * 9], v[N * 3], s[N], force[N * 9], pushed[N * 3], energy[N];
static const int64_t shape_F[] = {N, 3, 3}, shape_v[] = {N, 3}, shape_s[] = {N};

#define TENSOR(data, rank, shape) {data, TF_FLOAT64, rank, shape, NULL, {TF_CPU, 0}}
static const tf_tensor good_in[] = {TENSOR(F, 3, shape_F), TENSOR(v, 2, shape_v), TENSOR(s, 1, shape_s)};
static const tf_tensor good_out[] = {TENSOR(force, 3, shape_F), TENSOR(pushed, 2, shape_v), TENSOR(energy, 1, shape_s)};
static tf_tensor in[3], out[3];

static void reset(void) {
  memcpy(in, good_in, sizeof in);
  memcpy(out, good_out, sizeof out);
}

static void complain(const char* what, const char* got) {
  printf("%s: %s\n", what, got);
  ++failures;
}

static void check_usable(const char* after) {
  reset();
  force[1] = NAN;
  if (tf_call(model, NULL, 3, in, 3, out) != TF_OK) complain(after, tf_last_error(model));
  if (force[1] != 2.5 * F[3]) complain(after, "the next call gave another number");
}

/* The handle whose message is looked at: null for calls without one. */
static void refuse(const char* what, tf_status expected, tf_status got, const char* named, tf_model handle) {
  ++wrong;
  if (got != expected) {
    printf("%s: %s instead of %s\n", what, tf_status_name(got), tf_status_name(expected));
    ++failures;
  }
  if (!strstr(tf_last_error(handle), named)) complain(what, tf_last_error(handle));
  check_usable(what);
}
#define REFUSE(expected, call, named) refuse(#call, expected, call, named, model)
#define REFUSE_FREE(expected, call, named) refuse(#call, expected, call, named, NULL)

static tf_status call(void) { return tf_call(model, NULL, 3, in, 3, out); }

static const char* beside(const char* folder, const char* name) {
  static char path[1000];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

/* An input outside the range that was checked, for a model that was loaded to mind it. */
static void outside_the_envelope(const char* elastic) {
  tf_options options;
  tf_model strict = NULL, warning = NULL, kept = model;
  tf_default_options(&options);
  options.envelope = TF_ENVELOPE_ERROR;
  if (tf_load(elastic, "cpu", &options, &strict) != TF_OK) complain("loading", tf_last_error(NULL));
  options.envelope = TF_ENVELOPE_WARN;
  if (tf_load(elastic, "cpu", &options, &warning) != TF_OK) complain("loading", tf_last_error(NULL));
  reset();
  const double before = v[4];
  v[4] = NAN;
  model = strict;
  const tf_status got = call();
  if (got != TF_ERROR_ENVELOPE || !strstr(tf_last_error(strict), "'v'")) complain("outside", tf_last_error(strict));
  ++wrong;
  model = warning;
  if (call() != TF_OK || !strstr(tf_last_warning(), "'v'")) complain("warned", tf_last_warning());
  v[4] = before;
  if (call() != TF_OK || strlen(tf_last_warning())) complain("inside", tf_last_warning());
  model = kept;
  tf_close(strict);
  tf_close(warning);
  check_usable("outside_the_envelope");
}

static void loading(const char* elastic, const char* folder) {
  tf_model other;
  tf_options options;
  REFUSE_FREE(TF_ERROR_ARGUMENT, tf_load(NULL, "cpu", NULL, &other), "'path'");
  REFUSE_FREE(TF_ERROR_ARGUMENT, tf_load(elastic, "cpu", NULL, NULL), "'model'");
  REFUSE_FREE(TF_ERROR_FILE, tf_load(beside(folder, "nowhere.pt"), "cpu", NULL, &other), "nowhere.pt");
  if (other != NULL) complain("tf_load", "a handle after a failure");
  REFUSE_FREE(TF_ERROR_FILE, tf_load(folder, "cpu", NULL, &other), "a folder");
  REFUSE_FREE(TF_ERROR_ARCHIVE, tf_load(beside(folder, "empty.pt"), "cpu", NULL, &other), "empty");
  REFUSE_FREE(TF_ERROR_ARCHIVE, tf_load(beside(folder, "truncated.pt"), "cpu", NULL, &other), "damaged");
  REFUSE_FREE(TF_ERROR_ARCHIVE, tf_load(beside(folder, "flipped.pt"), "cpu", NULL, &other), "flipped.pt");
  REFUSE_FREE(TF_ERROR_ARCHIVE, tf_load(beside(folder, "text.pt"), "cpu", NULL, &other), "no TorchScript archive");
  REFUSE_FREE(TF_ERROR_ARCHIVE, tf_load(beside(folder, "foreign.pt"), "cpu", NULL, &other), "not a torchferry archive");
  REFUSE_FREE(TF_ERROR_ARCHIVE, tf_load(beside(folder, "added.pt"), "cpu", NULL, &other), "added: extra/stowaway");
  REFUSE_FREE(TF_ERROR_ARCHIVE, tf_load(beside(folder, "schema.pt"), "cpu", NULL, &other), "schema 2");
  REFUSE_FREE(TF_ERROR_ARGUMENT, tf_load(elastic, "gpu", NULL, &other), "'device'");
  REFUSE_FREE(TF_ERROR_ARGUMENT, tf_load(elastic, "cuda:x", NULL, &other), "'device'");
  REFUSE_FREE(TF_ERROR_UNAVAILABLE, tf_load(elastic, "cuda:99", NULL, &other), "cuda:99");
  memset(&options, 0, sizeof options);
  REFUSE_FREE(TF_ERROR_ARGUMENT, tf_load(elastic, "cpu", &options, &other), "tf_default_options");
  tf_default_options(&options);
  options.intra_op_threads = -3;
  REFUSE_FREE(TF_ERROR_ARGUMENT, tf_load(elastic, "cpu", &options, &other), "intra_op_threads");
  tf_default_options(&options);
  options.keep_memory = 2;
  REFUSE_FREE(TF_ERROR_ARGUMENT, tf_load(elastic, "cpu", &options, &other), "keep_memory");
  options.keep_memory = 0;
  options.trust = 2;
  REFUSE_FREE(TF_ERROR_ARGUMENT, tf_load(elastic, "cpu", &options, &other), "trust");
  options.trust = TF_TRUST_GRAPHS;
  options.envelope = 3;
  REFUSE_FREE(TF_ERROR_ARGUMENT, tf_load(elastic, "cpu", &options, &other), "envelope");
  REFUSE_FREE(TF_ERROR_ARGUMENT, tf_default_options(NULL), "'options'");
}

static void handles(const char* elastic) {
  tf_model closed, invented = (tf_model)(uintptr_t)0x1234;
  const char* text;
  int32_t count;
  REFUSE_FREE(TF_ERROR_HANDLE, tf_name(NULL, &text), "'model'");
  REFUSE_FREE(TF_ERROR_HANDLE, tf_name(invented, &text), "never was");
  REFUSE_FREE(TF_ERROR_HANDLE, tf_close(NULL), "null");
  if (tf_load(elastic, NULL, NULL, &closed) != TF_OK || tf_close(closed) != TF_OK) complain("close", "failed");
  REFUSE_FREE(TF_ERROR_HANDLE, tf_call(closed, NULL, 3, good_in, 3, good_out), "closed");
  REFUSE_FREE(TF_ERROR_HANDLE, tf_close(closed), "closed");
  REFUSE_FREE(TF_ERROR_HANDLE, tf_input_count(closed, NULL, &count), "closed");
  REFUSE(TF_ERROR_ARGUMENT, tf_name(model, NULL), "'name'");
  REFUSE(TF_ERROR_ARGUMENT, tf_contract_json(model, NULL), "'json'");
}

static void names(void) {
  tf_variable variable;
  int32_t count;
  const char* text;
  const char *known[] = {"F", "v", "s"}, *unknown[] = {"F", "v", "strain"}, *twice[] = {"F", "v", "v"};
  const char *holes[] = {"F", NULL, "s"}, *outputs[] = {"force", "pushed", "energy"}, *no_output[] = {"stress"};
  REFUSE(TF_ERROR_NAME, tf_input_count(model, "jacobian", &count), "'jacobian'");
  REFUSE(TF_ERROR_NAME, tf_call(model, "backward", 3, in, 3, out), "'backward'");
  REFUSE(TF_ERROR_ARGUMENT, tf_input(model, NULL, 3, &variable), "'index'");
  REFUSE(TF_ERROR_ARGUMENT, tf_output(model, NULL, -1, &variable), "'index'");
  REFUSE(TF_ERROR_ARGUMENT, tf_input(model, NULL, 0, NULL), "'variable'");
  REFUSE(TF_ERROR_ARGUMENT, tf_method_name(model, 7, &text), "'index'");
  REFUSE(TF_ERROR_ARGUMENT, tf_size_name(model, 0, &text), "'index'");
  REFUSE(TF_ERROR_ARGUMENT, tf_size_count(model, NULL), "'count'");
  REFUSE(TF_ERROR_ARGUMENT, tf_parameter(model, 2, &variable), "'index'");
  REFUSE(TF_ERROR_ARGUMENT, tf_input_unit(model, NULL, 3, &text), "'index'");
  REFUSE(TF_ERROR_ARGUMENT, tf_output_unit(model, NULL, 0, NULL), "'unit'");
  REFUSE(TF_ERROR_NAME, tf_output_unit(model, "backward", 0, &text), "'backward'");
  REFUSE(TF_ERROR_ARGUMENT, tf_parameter_unit(model, -1, &text), "'index'");
  REFUSE(TF_ERROR_NAME, tf_call_named(model, NULL, 3, unknown, in, 3, outputs, out), "'strain'");
  REFUSE(TF_ERROR_NAME, tf_call_named(model, NULL, 3, twice, in, 3, outputs, out), "'v' is given twice");
  REFUSE(TF_ERROR_ARGUMENT, tf_call_named(model, NULL, 3, holes, in, 3, outputs, out), "input_names[1]");
  REFUSE(TF_ERROR_COUNT, tf_call_named(model, NULL, 2, known, in, 3, outputs, out), "'s' is missing");
  REFUSE(TF_ERROR_NAME, tf_call_named(model, NULL, 3, known, in, 1, no_output, out), "'stress'");
  REFUSE(TF_ERROR_ARGUMENT, tf_call_named(model, NULL, 3, NULL, in, 3, outputs, out), "input_names");
}

/* Outputs in one array: members of a structure, and numbers that take turns. What is apart is written, and the rest is not. */
static void share_one_array(void) {
  static double rows[N * 13], turns[2 * 9 * N];
  static int64_t force_row[] = {13, 3, 1}, pushed_row[] = {13, 1}, energy_row[] = {13};
  static const int64_t force_turn[] = {2, 6 * N, 2 * N}, pushed_turn[] = {2, 2 * N};
#define ROWS(at)                                                                                        \
  reset(), out[0].data = rows, out[0].strides = force_row, out[1].data = rows + (at), out[1].strides = pushed_row, \
      out[2].data = rows + 12, out[2].strides = energy_row
  ROWS(9);
  if (call() != TF_OK) complain("members of a structure", tf_last_error(model));
  if (rows[13 + 1] != force[9 + 1] || rows[13 + 11] != pushed[5] || rows[13 + 12] != energy[1])
    complain("members of a structure", "other numbers");
  ROWS(8), REFUSE(TF_ERROR_STRIDE, call(), "reaches into the memory of output");
  ROWS(10), REFUSE(TF_ERROR_STRIDE, call(), "reaches into the memory of output");
#define TURNS(at) \
  reset(), out[0].data = turns, out[0].strides = force_turn, out[1].data = turns + (at), out[1].strides = pushed_turn
  TURNS(1);
  if (call() != TF_OK) complain("numbers that take turns", tf_last_error(model));
  if (turns[2 * (1 + N)] != force[9 + 1] || turns[1 + 2 * (1 + 2 * N)] != pushed[5])
    complain("numbers that take turns", "other numbers");
  TURNS(2), REFUSE(TF_ERROR_STRIDE, call(), "reaches into the memory of output");
}

static void tensors(void) {
  static const int64_t one_row[] = {1, 3, 3}, other[] = {N, 3, 4}, long_v[] = {N + 1, 3}, negative[] = {-1, 3, 3};
  static const int64_t backwards[] = {9, -3, 1}, shared[] = {0, 3, 1}, huge[] = {INT64_MAX / 8, 3, 3}, none[] = {0};
  REFUSE(TF_ERROR_COUNT, tf_call(model, NULL, 2, in, 3, out), "n_inputs");
  REFUSE(TF_ERROR_COUNT, tf_call(model, NULL, 3, in, 4, out), "n_outputs");
  REFUSE(TF_ERROR_COUNT, tf_call(model, NULL, -1, in, 3, out), "n_inputs");
  REFUSE(TF_ERROR_ARGUMENT, tf_call(model, NULL, 3, NULL, 3, out), "'inputs'");
  REFUSE(TF_ERROR_ARGUMENT, tf_call(model, NULL, 3, in, 3, NULL), "'outputs'");
#define WITH(change, expected, named) reset(), change, REFUSE(expected, call(), named)
  WITH(in[1].data = NULL, TF_ERROR_ARGUMENT, "input 1 ('v')");
  WITH(in[1].data = (char*)v + 1, TF_ERROR_ARGUMENT, "input 1 ('v')");
  WITH(in[1].shape = NULL, TF_ERROR_ARGUMENT, "'shape'");
  WITH(in[0].rank = -1, TF_ERROR_SHAPE, "'rank'");
  WITH(in[0].rank = 1000, TF_ERROR_SHAPE, "'rank'");
  WITH((in[0].rank = 1, in[0].shape = shape_F + 1), TF_ERROR_SHAPE, "input 0 ('F')");
  WITH(in[0].shape = other, TF_ERROR_SHAPE, "[2, 3, 4]");
  WITH(in[0].shape = negative, TF_ERROR_SHAPE, "shape[0]");
  WITH(in[0].shape = huge, TF_ERROR_SHAPE, "input 0 ('F')");
  WITH(in[1].shape = long_v, TF_ERROR_SHAPE, "input 1 ('v') has a batch");
  WITH(in[2].shape = none, TF_ERROR_SHAPE, "input 2 ('s') has a batch");
  WITH(in[2].dtype = TF_FLOAT32, TF_ERROR_DTYPE, "input 2 ('s')");
  WITH(in[2].dtype = 77, TF_ERROR_DTYPE, "77");
  WITH(in[0].device.type = TF_CUDA, TF_ERROR_DEVICE, "input 0 ('F')");
  WITH(in[0].device.type = 9, TF_ERROR_DEVICE, "device type 9");
  WITH(in[0].strides = backwards, TF_ERROR_STRIDE, "strides[1]");
  WITH(out[0].shape = one_row, TF_ERROR_BUFFER, "output 0 ('force')");
  WITH(out[1].shape = long_v, TF_ERROR_SHAPE, "output 1 ('pushed')");
  WITH(out[2].data = NULL, TF_ERROR_ARGUMENT, "output 2 ('energy')");
  WITH(out[2].dtype = TF_INT64, TF_ERROR_DTYPE, "output 2 ('energy')");
  WITH(out[0].device.type = TF_CUDA, TF_ERROR_DEVICE, "output 0 ('force')");
  WITH(out[0].strides = shared, TF_ERROR_STRIDE, "share memory");
  WITH(out[1].data = force, TF_ERROR_STRIDE, "reaches into the memory of output");
  WITH(out[1].data = force + 2, TF_ERROR_STRIDE, "reaches into the memory of output");
  WITH(out[2].data = pushed + 3 * N - 1, TF_ERROR_STRIDE, "output 1 ('pushed')");
  share_one_array();
  /* A batch of zero is no wrong call, but a whole one; it writes nothing. */
  static const int64_t no_F[] = {0, 3, 3}, no_v[] = {0, 3}, no_s[] = {0};
  const tf_tensor nothing[] = {TENSOR(NULL, 3, no_F), TENSOR(NULL, 2, no_v), TENSOR(NULL, 1, no_s)};
  if (tf_call(model, NULL, 3, nothing, 3, nothing) != TF_OK) complain("a batch of zero", tf_last_error(model));
  REFUSE(TF_ERROR_SHAPE, tf_call(model, NULL, 3, nothing, 3, good_out), "output 0 ('force')");
}

static void parameters(const char* elastic) {
  static double two[2] = {1, 2};
  static const int64_t pair[] = {2};
  const tf_tensor wrong_shape = TENSOR(two, 1, pair), scalar = TENSOR(two, 0, NULL);
  tf_tensor single = scalar;
  single.dtype = TF_FLOAT32;
  tf_model frozen;
  REFUSE(TF_ERROR_NAME, tf_set_parameter(model, "stiff", &scalar), "'stiff'");
  REFUSE(TF_ERROR_ARGUMENT, tf_set_parameter(model, NULL, &scalar), "'name'");
  REFUSE(TF_ERROR_ARGUMENT, tf_set_parameter(model, "stiffness", NULL), "'value'");
  REFUSE(TF_ERROR_SHAPE, tf_set_parameter(model, "stiffness", &wrong_shape), "stiffness");
  REFUSE(TF_ERROR_DTYPE, tf_set_parameter(model, "stiffness", &single), "stiffness");
  REFUSE(TF_ERROR_BUFFER, tf_get_parameter(model, "shift", &scalar), "shift");
  if (tf_load(elastic, NULL, NULL, &frozen) != TF_OK) complain("load", tf_last_error(NULL));
  refuse("frozen", TF_ERROR_FROZEN, tf_set_parameter(frozen, "stiffness", &scalar), "settable_parameters", frozen);
  tf_close(frozen);
}

static void results(const char* picks_path) {
  tf_result result, freed;
  tf_tensor output;
  REFUSE(TF_ERROR_ARGUMENT, tf_call_borrow(model, NULL, 3, in, NULL), "'result'");
  if (tf_call_borrow(model, NULL, 3, in, &result) != TF_OK) complain("borrow", tf_last_error(model));
  freed = result;
  REFUSE_FREE(TF_ERROR_ARGUMENT, tf_result_get(result, 3, &output), "'index'");
  /* torch's own memory has torch's own strides: element [0][0][1] is the transposed one's. */
  if (tf_result_get(result, 0, &output) != TF_OK || output.rank != 3 ||
      ((double*)output.data)[output.strides[2]] != 2.5 * F[3])
    complain("tf_result_get", "another number");
  if (tf_result_free(result) != TF_OK) complain("tf_result_free", tf_last_error(NULL));
  REFUSE_FREE(TF_ERROR_HANDLE, tf_result_get(freed, 0, &output), "closed");
  REFUSE_FREE(TF_ERROR_HANDLE, tf_result_free(freed), "closed");

  /* A model that fails inside is a status as well. */
  tf_model picks;
  static double table[3] = {1, 2, 3}, picked;
  static int64_t index = 17;
  static const int64_t row[] = {3};
  const tf_tensor given[] = {TENSOR(table, 1, row), {&index, TF_INT64, 0, NULL, NULL, {TF_CPU, 0}}};
  const tf_tensor wanted = TENSOR(&picked, 0, NULL);
  if (tf_load(picks_path, NULL, NULL, &picks) != TF_OK) complain("load", tf_last_error(NULL));
  refuse("index", TF_ERROR_MODEL, tf_call(picks, NULL, 2, given, 1, &wanted), "out of bounds", picks);
  index = 1;
  if (tf_call(picks, NULL, 2, given, 1, &wanted) != TF_OK || picked != 2) complain("picks", tf_last_error(picks));
  tf_close(picks);
  REFUSE(TF_ERROR_ARGUMENT, tf_to(model, NULL), "'device'");
  REFUSE(TF_ERROR_UNAVAILABLE, tf_to(model, "cuda:98"), "cuda:98");
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  if (tf_abi_version() != TF_ABI_VERSION) complain("tf_abi_version", "another one than the header's");
  for (int i = 0; i < N * 9; ++i) F[i] = 0.25 * i - 1;
  for (int i = 0; i < N * 3; ++i) v[i] = 0.5 * i;
  for (int i = 0; i < N; ++i) s[i] = i + 1;
  tf_options options;
  tf_default_options(&options);
  options.settable_parameters = 1;
  if (tf_load(argv[1], "cpu", &options, &model) != TF_OK) {
    printf("%s\n", tf_last_error(NULL));
    return 1;
  }
  reset();
  check_usable("the first call");
  loading(argv[1], argv[3]);
  outside_the_envelope(argv[1]);
  handles(argv[1]);
  names();
  tensors();
  parameters(argv[1]);
  results(argv[2]);
  if (tf_close(model) != TF_OK) complain("tf_close", tf_last_error(model));
  printf("%d wrong calls, %d failures\n", wrong, failures);
  return failures > 0;
}
