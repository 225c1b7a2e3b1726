/* Runs every case of cases.txt, which were computed by the model in PyTorch: with arrays of structures and with structures of
   arrays, by calls and by prepared ones. Exit code 0: every number is within its tolerance; 1: some are not; 2: cases.txt is not there or
   not whole. */
#include "make_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBERS_OF_FLOAT64, NUMBERS_OF_FLOAT32, NUMBERS_OF_INT64, NUMBERS_OF_INT32, NUMBERS_OF_BOOL };
static const size_t sizes[] = { sizeof(double), sizeof(float), sizeof(int64_t), sizeof(int32_t), 1 };

typedef struct variable {
  int kind, rank, shape[9];
} variable;

typedef int run(ptrdiff_t, const make_model_array *, const make_model_array *, const void *const *, int32_t *, void *);

typedef struct method {
  const char *name;
  run *function;
  /* Prepared calls; null where there are none: on a GPU. */
  size_t (*size)(void);
  int (*prepare)(void *, ptrdiff_t, const make_model_array *, const make_model_array *, const void *const *);
  int (*run)(void *, const void *const *, void *const *, int32_t *, void *);
  int inputs, outputs;
  const variable *in, *out;
  size_t workspace;
} method;

static const variable forward_in[] = { { NUMBERS_OF_FLOAT64, 1, { 3 } },  };
static const variable forward_out[] = { { NUMBERS_OF_FLOAT64, 1, { 3 } },  };
static const variable jacobian_in[] = { { NUMBERS_OF_FLOAT64, 1, { 3 } },  };
static const variable jacobian_out[] = { { NUMBERS_OF_FLOAT64, 1, { 3 } }, { NUMBERS_OF_FLOAT64, 2, { 3, 3 } }, { NUMBERS_OF_FLOAT64, 2, { 3, 3 } },  };
#if defined(WITHOUT_PREPARED_CALLS)
#define PREPARED(method) NULL, NULL, NULL
#else
#define PREPARED(method) method##_call_size, method##_prepare, method##_run
#endif
static const method methods[] = {
  { "forward", make_model_forward, PREPARED(make_model_forward), 1, 1, forward_in, forward_out, 0 },
  { "jacobian", make_model_jacobian, PREPARED(make_model_jacobian), 1, 3, jacobian_in, jacobian_out, 0 },
};

#define LARGEST 64
static char word[512];

static void stop(const char *what) {
  fprintf(stderr, "cases.txt is not whole: %s\n", what);
  exit(2);
}

static void *room(size_t bytes) {
  void *const found = malloc(bytes ? bytes : 1);
  if (!found) stop("no memory");
  return found;
}

static const char *next(FILE *file) {
  if (fscanf(file, "%511s", word) != 1) stop("it ends early");
  return word;
}

static double number(void *data, int kind, size_t at) {
  switch (kind) {
    case NUMBERS_OF_FLOAT64: return ((double *)data)[at];
    case NUMBERS_OF_FLOAT32: return (double)((float *)data)[at];
    case NUMBERS_OF_INT64: return (double)((int64_t *)data)[at];
    case NUMBERS_OF_INT32: return (double)((int32_t *)data)[at];
    default: return (double)((unsigned char *)data)[at];
  }
}

static void put(void *data, int kind, size_t at, const char *text) {
  switch (kind) {
    case NUMBERS_OF_FLOAT64: ((double *)data)[at] = strtod(text, NULL); break;
    case NUMBERS_OF_FLOAT32: ((float *)data)[at] = strtof(text, NULL); break;
    case NUMBERS_OF_INT64: ((int64_t *)data)[at] = (int64_t)strtoll(text, NULL, 10); break;
    case NUMBERS_OF_INT32: ((int32_t *)data)[at] = (int32_t)strtol(text, NULL, 10); break;
    default: ((unsigned char *)data)[at] = strtol(text, NULL, 10) != 0;
  }
}

static size_t numbers_of(const variable *v) {
  size_t count = 1;
  for (int d = 0; d < v->rank; d++) count *= (size_t)v->shape[d];
  return count;
}

/* The place of number `i` of element `e`, with the numbers of an element side by side, or far apart. */
static size_t placed(size_t e, size_t i, size_t rows, size_t numbers, int apart) {
  return apart ? i * rows + e : e * numbers + i;
}

static void lay_out(const variable *v, size_t rows, ptrdiff_t *strides, int apart) {
  ptrdiff_t step = apart ? (ptrdiff_t)rows : 1;
  for (int d = v->rank; d > 0; d--) {
    strides[d] = step;
    step *= v->shape[d - 1];
  }
  strides[0] = apart ? 1 : step;
}

static int differs(double got, double wanted, double rtol, double atol, double largest, double floored) {
  if (isnan(got) || isnan(wanted)) return !(isnan(got) && isnan(wanted));
  if (isinf(got) || isinf(wanted)) return got < wanted || got > wanted;
  return !(fabs(got - wanted) <= atol * largest + rtol * fabs(wanted) + floored);
}

/* A call, or one that is prepared before it runs. */
static int call(const method *m, ptrdiff_t rows, const make_model_array *in, const make_model_array *out, int32_t *status, void *workspace,
                int is_prepared) {
  if (!is_prepared) return m->function(rows, in, out, NULL, status, workspace);
  const void *from[LARGEST];
  void *to[LARGEST];
  for (int i = 0; i < m->inputs; i++) from[i] = in[i].data;
  for (int i = 0; i < m->outputs; i++) to[i] = out[i].data;
  void *const memory = room(m->size());
  int code = m->prepare(memory, rows, in, out, NULL);
  if (code >= 0) code = m->run(memory, from, to, status, workspace);
  free(memory);
  return code;
}

int main(int count, char **arguments) {
  FILE *const file = fopen(count > 1 ? arguments[1] : "cases.txt", "r");
  int failed = 0, cases = 0;
  if (!file) {
    fprintf(stderr, "cases.txt is not there: name it\n");
    return 2;
  }
  for (int i = 0; i < 3; i++) next(file);
  for (next(file); strcmp(word, "end") != 0; next(file)) {
    if (strcmp(word, "parameter") == 0) {
      next(file);
      const long numbers = strtol(next(file), NULL, 10);
      next(file);
      for (long i = 0; i < numbers; i++) next(file);
      continue;
    }
    if (strcmp(word, "case") != 0) stop(word);
    const size_t rows = (size_t)strtol(next(file), NULL, 10);
    const method *m = NULL;
    next(file);
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
      if (strcmp(methods[i].name, word) == 0) m = &methods[i];
    if (!m) stop(word);
    char name[512];
    strcpy(name, next(file));
    cases++;
    void *data[2][2 * LARGEST], *wanted[LARGEST];
    double bounds[LARGEST][3];
    ptrdiff_t strides[2][2 * LARGEST][10];
    make_model_array arrays[2][2 * LARGEST];
    if (m->inputs > LARGEST || m->outputs > LARGEST) stop("too many variables");
    for (int i = 0; i < m->inputs + m->outputs; i++) {
      const int output = i >= m->inputs;
      const variable *const v = output ? &m->out[i - m->inputs] : &m->in[i];
      const size_t numbers = numbers_of(v);
      if (strcmp(next(file), output ? "out" : "in") != 0) stop(word);
      next(file);
      if ((size_t)strtol(next(file), NULL, 10) != rows * numbers) stop(name);
      for (int k = 0; output && k < 3; k++) bounds[i - m->inputs][k] = strtod(next(file), NULL);
      for (int apart = 0; apart < 2; apart++) {
        data[apart][i] = room(rows * numbers * sizes[v->kind]);
        memset(data[apart][i], 0, rows * numbers * sizes[v->kind]);
        lay_out(v, rows, strides[apart][i], apart);
        arrays[apart][i].data = data[apart][i];
        arrays[apart][i].strides = apart ? strides[apart][i] : NULL;
      }
      if (output) wanted[i - m->inputs] = room(rows * numbers * sizes[v->kind]);
      for (size_t k = 0; k < rows * numbers; k++) {
        next(file);
        if (output) put(wanted[i - m->inputs], v->kind, k, word);
        else
          for (int apart = 0; apart < 2; apart++)
            put(data[apart][i], v->kind, placed(k / numbers, k % numbers, rows, numbers, apart), word);
      }
    }
    void *const workspace = m->workspace ? room(m->workspace) : NULL;
    int32_t *const status = room(rows * sizeof *status);
    for (int turn = 0; turn < (m->run ? 4 : 2); turn++) {
      const int apart = turn % 2;
      for (int i = 0; i < m->outputs; i++) {
        const variable *const v = &m->out[i];
        memset(data[apart][m->inputs + i], 0, rows * numbers_of(v) * sizes[v->kind]);
      }
      const int code = call(m, (ptrdiff_t)rows, arrays[apart], arrays[apart] + m->inputs, status, workspace, turn / 2);
      if (code < 0) {
        printf("%s, %s: error %d\n", name, m->name, code);
        failed = 1;
        continue;
      }
      for (int i = 0; i < m->outputs; i++) {
        const variable *const v = &m->out[i];
        const size_t numbers = numbers_of(v);
        double largest = 0.0;
        for (size_t k = 0; k < rows * numbers; k++) {
          const double size = fabs(number(wanted[i], v->kind, k));
          if (isfinite(size) && size > largest) largest = size;
        }
        for (size_t k = 0; k < rows * numbers; k++) {
          const size_t at = placed(k / numbers, k % numbers, rows, numbers, apart);
          const double got = number(data[apart][m->inputs + i], v->kind, at), right = number(wanted[i], v->kind, k);
          if (differs(got, right, bounds[i][0], bounds[i][1], largest, bounds[i][2])) {
            printf("%s, %s: output %d, number %lu: got %.17g, expected %.17g\n", name, m->name, i, (unsigned long)k, got, right);
            failed = 1;
            break;
          }
        }
      }
    }
    for (int i = 0; i < m->inputs + m->outputs; i++)
      for (int apart = 0; apart < 2; apart++) free(data[apart][i]);
    for (int i = 0; i < m->outputs; i++) free(wanted[i]);
    free(workspace);
    free(status);
  }
  fclose(file);
  printf("%d cases: %s\n", cases, failed ? "FAILED" : "passed");
  return failed;
}
