/* make_model: written by torchferry 0.1.0; see make_model.h. Compile it without contraction and without fast math:
   -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math, with -march=native for the machine at hand. */
#include "make_model.h"

#include <math.h>


#define TF_LANES 16
#define TF_FUNCTION static
#define TF_LARGE static
#define TF_TABLE static const
/* Unrolled first, a loop over the lanes is not vectorised. Rows that a function is told are apart. */
#if defined(__clang__)
#define TF_SIMD _Pragma("clang loop unroll(disable)")
#define TF_SIMD_APART _Pragma("clang loop unroll(disable) vectorize(assume_safety)")
#define TF_INLINE static inline __attribute__((always_inline))
#define TF_APART __attribute__((noinline))
#elif defined(__GNUC__)
#define TF_SIMD _Pragma("GCC ivdep") _Pragma("GCC unroll 1")
#define TF_SIMD_APART TF_SIMD
#define TF_INLINE static inline __attribute__((always_inline))
#define TF_APART __attribute__((noinline))
#else
#define TF_SIMD
#define TF_SIMD_APART
#define TF_INLINE static
#define TF_APART
#endif

/* Each number from the first on, of each lane of a block, in the order that the compiler makes vectors of. */
#if defined(__clang__)
#define TF_EACH(first, numbers) \
  for (int l = 0; l < TF_LANES; l++) \
    for (int i = (first); i < (numbers); i++)
#else
#define TF_EACH(first, numbers) \
  for (int i = (first); i < (numbers); i++) \
    for (int l = 0; l < TF_LANES; l++)
#endif

/* Compiled with OpenMP, blocks of elements go to its threads, as many as it has in the host: each with a frame of its
   own, so not where the frame is the caller's workspace. */
#if defined(_OPENMP)
#define TF_PARALLEL _Pragma("omp parallel reduction(| : failed) if (count >= 64 * TF_LANES)")
#define TF_BLOCKS _Pragma("omp for schedule(static)")
#else
#define TF_PARALLEL
#define TF_BLOCKS
#endif

/* Numbers of an element at most, and dimensions of their own. */
#define TF_RANK 2

struct tf_variable {
  int size; /* of a number, in bytes */
  int rank;
  int shape[TF_RANK + 1];
};

struct tf_extent {
  const char *low, *high; /* of the first element: its first byte, and the one behind its last */
  ptrdiff_t row;          /* bytes from one element to the next */
};

static ptrdiff_t tf_stride(const struct tf_variable *v, const make_model_array *array, int dimension) {
  ptrdiff_t stride = 1;
  if (array->strides) return array->strides[dimension];
  for (int d = v->rank; d > dimension; d--) stride *= v->shape[d - 1];
  return stride;
}

/* Whether the address of every number of an array is one that a pointer can have. */
static int tf_reachable(ptrdiff_t count, const struct tf_variable *v, const make_model_array *array) {
  if (!array->strides) return 1;
  for (int d = 0; d <= v->rank; d++) {
    const ptrdiff_t length = d ? v->shape[d - 1] : count, stride = array->strides[d];
    const ptrdiff_t most = PTRDIFF_MAX / (TF_RANK + 2) / v->size / (length > 1 ? length : 1);
    if (stride > most || stride < -most) return 0;
  }
  return 1;
}

static int tf_empty(const struct tf_variable *v) {
  for (int d = 0; d < v->rank; d++)
    if (v->shape[d] == 0) return 1;
  return 0;
}

static struct tf_extent tf_extent_of(const struct tf_variable *v, const make_model_array *array) {
  struct tf_extent found;
  found.low = (const char *)array->data;
  found.high = found.low + v->size;
  for (int d = 0; d < v->rank; d++) {
    const ptrdiff_t length = tf_stride(v, array, d + 1) * (v->shape[d] - 1) * v->size;
    if (length < 0) found.low += length;
    else found.high += length;
  }
  found.row = tf_stride(v, array, 0) * v->size;
  return found;
}

/* Whether no two numbers of an array share their place: each stride steps over all that the smaller ones reach. */
static int tf_apart(ptrdiff_t count, const struct tf_variable *v, const make_model_array *array) {
  int used[TF_RANK + 1] = {0};
  ptrdiff_t reach = 0;
  if (!array->strides) return 1;
  for (int turn = 0; turn <= v->rank; turn++) {
    int least = -1;
    ptrdiff_t smallest = 0;
    for (int d = 0; d <= v->rank; d++) {
      const ptrdiff_t stride = tf_stride(v, array, d), size = stride < 0 ? -stride : stride;
      if (!used[d] && (least < 0 || size < smallest)) {
        least = d;
        smallest = size;
      }
    }
    used[least] = 1;
    const ptrdiff_t length = least ? v->shape[least - 1] : count;
    if (length < 2) continue;
    if (smallest <= reach) return 0;
    reach += smallest * (length - 1);
  }
  return 1;
}

static int tf_disjoint(ptrdiff_t count, struct tf_extent a, struct tf_extent b) {
  const ptrdiff_t along_a = a.row * (count - 1), along_b = b.row * (count - 1);
  const char *low_a = along_a < 0 ? a.low + along_a : a.low, *high_a = along_a < 0 ? a.high : a.high + along_a;
  const char *low_b = along_b < 0 ? b.low + along_b : b.low, *high_b = along_b < 0 ? b.high : b.high + along_b;
  if (high_a <= low_b || high_b <= low_a) return 1;
  if (a.row != b.row || a.row == 0) return 0;
  /* Members of one structure: the same row, and apart in it. */
  const ptrdiff_t row = a.row < 0 ? -a.row : a.row;
  const ptrdiff_t between = ((b.low - a.low) % row + row) % row;
  return between >= a.high - a.low && between + (b.high - b.low) <= row;
}

static int tf_same(const struct tf_variable *v, const struct tf_variable *w, const make_model_array *a, const make_model_array *b) {
  if (a->data != b->data || v->size != w->size || v->rank != w->rank) return 0;
  for (int d = 0; d <= v->rank; d++)
    if (tf_stride(v, a, d) != tf_stride(w, b, d) || (d && v->shape[d - 1] != w->shape[d - 1])) return 0;
  return 1;
}

static int tf_check(ptrdiff_t count, int taken, const struct tf_variable *inputs, const make_model_array *in, int given,
                    const struct tf_variable *outputs, const make_model_array *out) {
  if (count < 0 || (taken && !in) || (given && !out)) return MAKE_MODEL_ERROR_ARGUMENT;
  if (count == 0) return MAKE_MODEL_OK;
  for (int i = 0; i < taken; i++)
    if (!in[i].data && !tf_empty(&inputs[i])) return MAKE_MODEL_ERROR_ARGUMENT;
  for (int i = 0; i < given; i++)
    if (!out[i].data && !tf_empty(&outputs[i])) return MAKE_MODEL_ERROR_ARGUMENT;
  for (int i = 0; i < taken; i++)
    if (!tf_reachable(count, &inputs[i], &in[i])) return MAKE_MODEL_ERROR_STRIDES;
  for (int i = 0; i < given; i++)
    if (!tf_reachable(count, &outputs[i], &out[i])) return MAKE_MODEL_ERROR_STRIDES;
  for (int i = 0; i < given; i++) {
    if (tf_empty(&outputs[i])) continue;
    const struct tf_extent one = tf_extent_of(&outputs[i], &out[i]);
    if (!tf_apart(count, &outputs[i], &out[i])) return MAKE_MODEL_ERROR_STRIDES;
    for (int j = 0; j < i; j++)
      if (!tf_empty(&outputs[j]) && !tf_disjoint(count, one, tf_extent_of(&outputs[j], &out[j]))) return MAKE_MODEL_ERROR_OVERLAP;
    for (int j = 0; j < taken; j++)
      if (!tf_empty(&inputs[j]) && !tf_same(&outputs[i], &inputs[j], &out[i], &in[j]) &&
          !tf_disjoint(count, one, tf_extent_of(&inputs[j], &in[j])))
        return MAKE_MODEL_ERROR_OVERLAP;
  }
  return MAKE_MODEL_OK;
}

/* Whether elements stand one behind the other, and their numbers as well. */
static int tf_dense(const struct tf_variable *v, const make_model_array *array) {
  ptrdiff_t stride = 1;
  for (int d = v->rank; d >= 0; d--) {
    if (tf_stride(v, array, d) != stride) return 0;
    if (d) stride *= v->shape[d - 1];
  }
  return 1;
}

/* How far each number of an element stands from its first. */
static void tf_offsets(const struct tf_variable *v, const make_model_array *array, ptrdiff_t *offsets) {
  int at[TF_RANK + 1] = {0}, numbers = 1;
  for (int d = 0; d < v->rank; d++) numbers *= v->shape[d];
  if (!array->strides) {
    for (int i = 0; i < numbers; i++) offsets[i] = i;
    return;
  }
  for (int i = 0; i < numbers; i++) {
    ptrdiff_t offset = 0;
    for (int d = 0; d < v->rank; d++) offset += at[d] * tf_stride(v, array, d + 1);
    offsets[i] = offset;
    for (int d = v->rank - 1; d >= 0 && ++at[d] == v->shape[d]; d--) at[d] = 0;
  }
}

/* What blocks to come read and write is sent for: processors do not see by themselves what will be written. */
#if defined(__GNUC__)
#define TF_AHEAD(data, bytes, written)         \
  for (int i = 0; far && i < (bytes); i += 64) \
    __builtin_prefetch((const void *)((uintptr_t)(data) + (uintptr_t)(2 * (bytes) + i)), written, 3)
#else
#define TF_AHEAD(data, bytes, written) (void)far
#endif

/* Lanes beyond the batch repeat its last element. */
static void tf_load_float64(double (*restrict rows)[TF_LANES], int numbers, const void *data, ptrdiff_t row,
                    const ptrdiff_t *offsets, int valid, int lanes) {
  const double *from = data;
  if (valid == TF_LANES) {
    for (int i = 0; i < numbers; i++)
      for (int l = 0; l < TF_LANES; l++) rows[i][l] = from[l * row + offsets[i]];
    return;
  }
  for (int i = 0; i < numbers; i++)
    for (int l = 0; l < lanes; l++) rows[i][l] = from[(l < valid ? l : valid - 1) * row + offsets[i]];
}

static void tf_store_float64(double (*restrict rows)[TF_LANES], int numbers, void *data, ptrdiff_t row,
                     const ptrdiff_t *offsets, int valid) {
  double *to = data;
  if (valid == TF_LANES) {
    for (int i = 0; i < numbers; i++)
      for (int l = 0; l < TF_LANES; l++) to[l * row + offsets[i]] = rows[i][l];
    return;
  }
  for (int i = 0; i < numbers; i++)
    for (int l = 0; l < valid; l++) to[l * row + offsets[i]] = rows[i][l];
}

#if defined(__GNUC__) && !defined(__clang__) && defined(__AVX__)
/* Four numbers of four elements change places in registers: gcc does not find how by itself. */
#include <string.h>
typedef double tf_four __attribute__((vector_size(32)));
typedef long long tf_order __attribute__((vector_size(32)));
#define TF_FOURS(numbers) ((numbers) / 4 * 4)
TF_INLINE void tf_turn(const double *from, ptrdiff_t step, double *to, ptrdiff_t row) {
  const tf_order even = {0, 4, 2, 6}, odd = {1, 5, 3, 7}, low = {0, 1, 4, 5}, high = {2, 3, 6, 7};
  tf_four v[4], w[4];
  for (int i = 0; i < 4; i++) memcpy(&v[i], from + i * step, sizeof v[i]);
  for (int i = 0; i < 4; i += 2) {
    w[i] = __builtin_shuffle(v[i], v[i + 1], even);
    w[i + 1] = __builtin_shuffle(v[i], v[i + 1], odd);
  }
  for (int i = 0; i < 2; i++) {
    v[i] = __builtin_shuffle(w[i], w[i + 2], low);
    v[i + 2] = __builtin_shuffle(w[i], w[i + 2], high);
  }
  for (int i = 0; i < 4; i++) memcpy(to + i * row, &v[i], sizeof v[i]);
}
#else
#define TF_FOURS(numbers) 0
#define tf_turn(from, step, to, row) ((void)0)
#endif

/* Where numbers stand one behind the other: with steps that the compiler knows it makes vectors of them, and more of them
   where there is nothing else in the function. */
TF_APART static void tf_load_float64_3(double (*restrict rows)[TF_LANES], const double *restrict from) {
  TF_EACH(0, 3)
  rows[i][l] = from[l * 3 + i];
}

TF_APART static void tf_store_float64_3(double (*restrict rows)[TF_LANES], double *restrict to) {
  TF_EACH(0, 3)
  to[l * 3 + i] = rows[i][l];
}

TF_APART static void tf_store_float64_9(double (*restrict rows)[TF_LANES], double *restrict to) {
  for (int l = 0; l < TF_LANES; l += 4)
    for (int i = 0; i < TF_FOURS(9); i += 4) tf_turn(&rows[i][l], TF_LANES, to + l * 9 + i, 9);
  TF_EACH(TF_FOURS(9), 9)
  to[l * 9 + i] = rows[i][l];
}

static const double tf_default_0[] = { 0.04, 10000.0, 30000000.0 };

struct forward_uniform {
  double d[3];
};

struct forward_frame {
  double d[6][TF_LANES];
};

TF_FUNCTION void forward_prepare(struct forward_uniform *restrict g, const void *const *restrict parameters) {
  g->d[0] = ((const double *)parameters[0])[0];
  g->d[1] = ((const double *)parameters[0])[1];
  g->d[2] = ((const double *)parameters[0])[2];
  (void)g;
  (void)parameters;
}


struct jacobian_uniform {
  double d[4];
};

struct jacobian_frame {
  double d[24][TF_LANES];
};

TF_FUNCTION void jacobian_prepare(struct jacobian_uniform *restrict g, const void *const *restrict parameters) {
  g->d[0] = ((const double *)parameters[0])[0];
  g->d[1] = ((const double *)parameters[0])[1];
  g->d[2] = ((const double *)parameters[0])[2];
  g->d[3] = -g->d[0];
  (void)g;
  (void)parameters;
}


/* What is computed, for a block of elements, and for one. */
#define TF_PASTED(name, lanes) name##_##lanes
#define TF_PASTE(name, lanes) TF_PASTED(name, lanes)
#define TF_(name) TF_PASTE(name, TF_NOW)
#define TF_NOW 16
#include "make_model_lanes.h"
#undef TF_NOW
#define TF_NOW 1
#include "make_model_lanes.h"

static const struct tf_variable forward_taken[] = { { 8, 1, { 3 } },  };
static const struct tf_variable forward_given[] = { { 8, 1, { 3 } },  };

/* What stays from call to call: strides of the batch, places of the numbers of an element, whether these stand side by side. */
struct forward_call {
  ptrdiff_t count, rows[2], offsets[6];
  int dense[2];
};

/* Checks the arguments of a call, and takes from them what stays. */
static int forward_plan(struct forward_call *c, struct forward_uniform *g, ptrdiff_t count, const make_model_array *inputs,
    const make_model_array *outputs, const void *const *parameters) {
  const struct tf_variable *const taken = forward_taken, *const given = forward_given;
  const int wrong = tf_check(count, 1, taken, inputs, 1, given, outputs);
  c->count = wrong ? -1 : count;
  if (wrong || count == 0) return wrong;
  const void *numbers[1];
  numbers[0] = parameters && parameters[0] ? parameters[0] : tf_default_0;
  if (!g) return MAKE_MODEL_ERROR_ARGUMENT;
  forward_prepare(g, numbers);
  tf_offsets(&taken[0], &inputs[0], c->offsets + 0);
  c->rows[0] = tf_stride(&taken[0], &inputs[0], 0);
  c->dense[0] = tf_dense(&taken[0], &inputs[0]);
  tf_offsets(&given[0], &outputs[0], c->offsets + 3);
  c->rows[1] = tf_stride(&given[0], &outputs[0], 0);
  c->dense[1] = tf_dense(&given[0], &outputs[0]);
  return MAKE_MODEL_OK;
}

static int forward_compute(const struct forward_call *c, struct forward_uniform *g, const void *const *inputs,
    void *const *outputs, int32_t *status, void *workspace) {
  const ptrdiff_t count = c->count;
  int failed = 0;
  (void)workspace;
  const int far = count > 174762; /* Beyond what a processor has beside it. */
  TF_PARALLEL
  {
    struct forward_frame frame, *const f = &frame;
    TF_BLOCKS
    for (ptrdiff_t start = 0; start < count; start += TF_LANES) {
      const int valid = count - start < TF_LANES ? (int)(count - start) : TF_LANES;
      const int lanes = valid == 1 ? 1 : TF_LANES;
      {
        const ptrdiff_t row = c->rows[0], *const offsets = c->offsets + 0;
        const double *const data = (const double *)inputs[0] + start * row;
        if (valid == TF_LANES && c->dense[0]) {
          TF_AHEAD(data, 24 * TF_LANES, 0);
          tf_load_float64_3(&f->d[0], data);
        } else if (lanes == 1) {
          for (int i = 0; i < 3; i++) f->d[0 + i][0] = data[offsets[i]];
        } else tf_load_float64(&f->d[0], 3, data, row, offsets, valid, lanes);
      }
      if (lanes == 1) forward_body_1(f, g);
      else forward_body_16(f, g);
      {
        const ptrdiff_t row = c->rows[1], *const offsets = c->offsets + 3;
        double *const data = (double *)outputs[0] + start * row;
        if (valid == TF_LANES && c->dense[1]) {
          TF_AHEAD(data, 24 * TF_LANES, 1);
          tf_store_float64_3(&f->d[3], data);
        } else if (lanes == 1) {
          for (int i = 0; i < 3; i++) data[offsets[i]] = f->d[3 + i][0];
        } else tf_store_float64(&f->d[3], 3, data, row, offsets, valid);
      }
    }
  }
  if (status)
    for (ptrdiff_t i = 0; i < count; i++) status[i] = 0;
  (void)inputs, (void)outputs;
  return failed ? MAKE_MODEL_NOT_CONVERGED : MAKE_MODEL_OK;
}

int make_model_forward(ptrdiff_t count, const make_model_array *inputs, const make_model_array *outputs,
    const void *const *parameters, int32_t *status, void *workspace) {
  struct forward_call call;
  struct forward_uniform same, *const g = &same;
  int code = forward_plan(&call, g, count, inputs, outputs, parameters);
  if (!code && count) {
    const void *in[1] = { NULL };
    void *out[1] = { NULL };
    for (int i = 0; i < 1; i++) in[i] = inputs[i].data;
    for (int i = 0; i < 1; i++) out[i] = outputs[i].data;
    code = forward_compute(&call, g, in, out, status, workspace);
  }
  return code;
}

struct forward_prepared {
  struct forward_call call;
  struct forward_uniform same;
};

size_t make_model_forward_call_size(void) { return sizeof(struct forward_prepared); }

int make_model_forward_prepare(void *call, ptrdiff_t count, const make_model_array *inputs, const make_model_array *outputs,
    const void *const *parameters) {
  struct forward_prepared *const p = call;
  if (!p) return MAKE_MODEL_ERROR_ARGUMENT;
  const int code = forward_plan(&p->call, &p->same, count, inputs, outputs, parameters);
  return code;
}

int make_model_forward_run(void *call, const void *const *inputs, void *const *outputs, int32_t *status, void *workspace) {
  struct forward_prepared *const p = call;
  if (!p || p->call.count < 0) return MAKE_MODEL_ERROR_ARGUMENT;
  const int code = forward_compute(&p->call, &p->same, inputs, outputs, status, workspace);
  return code;
}

static const struct tf_variable jacobian_taken[] = { { 8, 1, { 3 } },  };
static const struct tf_variable jacobian_given[] = { { 8, 1, { 3 } }, { 8, 2, { 3, 3 } }, { 8, 2, { 3, 3 } },  };

/* What stays from call to call: strides of the batch, places of the numbers of an element, whether these stand side by side. */
struct jacobian_call {
  ptrdiff_t count, rows[4], offsets[24];
  int dense[4];
};

/* Checks the arguments of a call, and takes from them what stays. */
static int jacobian_plan(struct jacobian_call *c, struct jacobian_uniform *g, ptrdiff_t count, const make_model_array *inputs,
    const make_model_array *outputs, const void *const *parameters) {
  const struct tf_variable *const taken = jacobian_taken, *const given = jacobian_given;
  const int wrong = tf_check(count, 1, taken, inputs, 3, given, outputs);
  c->count = wrong ? -1 : count;
  if (wrong || count == 0) return wrong;
  const void *numbers[1];
  numbers[0] = parameters && parameters[0] ? parameters[0] : tf_default_0;
  if (!g) return MAKE_MODEL_ERROR_ARGUMENT;
  jacobian_prepare(g, numbers);
  tf_offsets(&taken[0], &inputs[0], c->offsets + 0);
  c->rows[0] = tf_stride(&taken[0], &inputs[0], 0);
  c->dense[0] = tf_dense(&taken[0], &inputs[0]);
  tf_offsets(&given[0], &outputs[0], c->offsets + 3);
  c->rows[1] = tf_stride(&given[0], &outputs[0], 0);
  c->dense[1] = tf_dense(&given[0], &outputs[0]);
  tf_offsets(&given[1], &outputs[1], c->offsets + 6);
  c->rows[2] = tf_stride(&given[1], &outputs[1], 0);
  c->dense[2] = tf_dense(&given[1], &outputs[1]);
  tf_offsets(&given[2], &outputs[2], c->offsets + 15);
  c->rows[3] = tf_stride(&given[2], &outputs[2], 0);
  c->dense[3] = tf_dense(&given[2], &outputs[2]);
  return MAKE_MODEL_OK;
}

static int jacobian_compute(const struct jacobian_call *c, struct jacobian_uniform *g, const void *const *inputs,
    void *const *outputs, int32_t *status, void *workspace) {
  const ptrdiff_t count = c->count;
  int failed = 0;
  (void)workspace;
  const int far = count > 43690; /* Beyond what a processor has beside it. */
  TF_PARALLEL
  {
    struct jacobian_frame frame, *const f = &frame;
    TF_BLOCKS
    for (ptrdiff_t start = 0; start < count; start += TF_LANES) {
      const int valid = count - start < TF_LANES ? (int)(count - start) : TF_LANES;
      const int lanes = valid == 1 ? 1 : TF_LANES;
      {
        const ptrdiff_t row = c->rows[0], *const offsets = c->offsets + 0;
        const double *const data = (const double *)inputs[0] + start * row;
        if (valid == TF_LANES && c->dense[0]) {
          TF_AHEAD(data, 24 * TF_LANES, 0);
          tf_load_float64_3(&f->d[0], data);
        } else if (lanes == 1) {
          for (int i = 0; i < 3; i++) f->d[0 + i][0] = data[offsets[i]];
        } else tf_load_float64(&f->d[0], 3, data, row, offsets, valid, lanes);
      }
      if (lanes == 1) jacobian_body_1(f, g);
      else jacobian_body_16(f, g);
      {
        const ptrdiff_t row = c->rows[1], *const offsets = c->offsets + 3;
        double *const data = (double *)outputs[0] + start * row;
        if (valid == TF_LANES && c->dense[1]) {
          TF_AHEAD(data, 24 * TF_LANES, 1);
          tf_store_float64_3(&f->d[3], data);
        } else if (lanes == 1) {
          for (int i = 0; i < 3; i++) data[offsets[i]] = f->d[3 + i][0];
        } else tf_store_float64(&f->d[3], 3, data, row, offsets, valid);
      }
      {
        const ptrdiff_t row = c->rows[2], *const offsets = c->offsets + 6;
        double *const data = (double *)outputs[1] + start * row;
        if (valid == TF_LANES && c->dense[2]) {
          TF_AHEAD(data, 72 * TF_LANES, 1);
          tf_store_float64_9(&f->d[6], data);
        } else if (lanes == 1) {
          for (int i = 0; i < 9; i++) data[offsets[i]] = f->d[6 + i][0];
        } else tf_store_float64(&f->d[6], 9, data, row, offsets, valid);
      }
      {
        const ptrdiff_t row = c->rows[3], *const offsets = c->offsets + 15;
        double *const data = (double *)outputs[2] + start * row;
        if (valid == TF_LANES && c->dense[3]) {
          TF_AHEAD(data, 72 * TF_LANES, 1);
          tf_store_float64_9(&f->d[15], data);
        } else if (lanes == 1) {
          for (int i = 0; i < 9; i++) data[offsets[i]] = f->d[15 + i][0];
        } else tf_store_float64(&f->d[15], 9, data, row, offsets, valid);
      }
    }
  }
  if (status)
    for (ptrdiff_t i = 0; i < count; i++) status[i] = 0;
  (void)inputs, (void)outputs;
  return failed ? MAKE_MODEL_NOT_CONVERGED : MAKE_MODEL_OK;
}

int make_model_jacobian(ptrdiff_t count, const make_model_array *inputs, const make_model_array *outputs,
    const void *const *parameters, int32_t *status, void *workspace) {
  struct jacobian_call call;
  struct jacobian_uniform same, *const g = &same;
  int code = jacobian_plan(&call, g, count, inputs, outputs, parameters);
  if (!code && count) {
    const void *in[1] = { NULL };
    void *out[3] = { NULL };
    for (int i = 0; i < 1; i++) in[i] = inputs[i].data;
    for (int i = 0; i < 3; i++) out[i] = outputs[i].data;
    code = jacobian_compute(&call, g, in, out, status, workspace);
  }
  return code;
}

struct jacobian_prepared {
  struct jacobian_call call;
  struct jacobian_uniform same;
};

size_t make_model_jacobian_call_size(void) { return sizeof(struct jacobian_prepared); }

int make_model_jacobian_prepare(void *call, ptrdiff_t count, const make_model_array *inputs, const make_model_array *outputs,
    const void *const *parameters) {
  struct jacobian_prepared *const p = call;
  if (!p) return MAKE_MODEL_ERROR_ARGUMENT;
  const int code = jacobian_plan(&p->call, &p->same, count, inputs, outputs, parameters);
  return code;
}

int make_model_jacobian_run(void *call, const void *const *inputs, void *const *outputs, int32_t *status, void *workspace) {
  struct jacobian_prepared *const p = call;
  if (!p || p->call.count < 0) return MAKE_MODEL_ERROR_ARGUMENT;
  const int code = jacobian_compute(&p->call, &p->same, inputs, outputs, status, workspace);
  return code;
}
