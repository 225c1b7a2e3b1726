/* The integration of decay.c with the ONNX container and onnxruntime's C API: decay_onnx FILE.onnx
 *
 * The file is verified before (torchferry verify FILE.onnx): its cases need NumPy to be read. */
#include <onnxruntime_c_api.h>
#include <stdio.h>

enum { N = 4, STEPS = 200 };

static const OrtApi* ort;

static int fail(OrtStatus* status) {
  fprintf(stderr, "decay_onnx: %s\n", ort->GetErrorMessage(status));
  ort->ReleaseStatus(status);
  return 1;
}

#define TRY(call)                        \
  do {                                   \
    OrtStatus* status_ = (call);         \
    if (status_) return fail(status_);   \
  } while (0)

/* A tensor of N numbers on the caller's memory: onnxruntime reads from there, and writes to there. */
static OrtStatus* tensor(const OrtMemoryInfo* memory, double* x, OrtValue** value) {
  const int64_t shape[] = {N};
  return ort->CreateTensorWithDataAsOrtValue(memory, x, N * sizeof *x, shape, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, value);
}

int main(int argc, char** argv) {
  double y[N] = {1, 2, 3, 4}, k[N] = {0.5, 1, 1.5, 2}, heat[N] = {0};
  double t[N], guess[N], rate1[N], heat1[N], rate2[N], heat2[N];
  double* const memory[] = {y, k, t, guess, rate1, heat1, rate2, heat2};
  enum { Y, K, T, GUESS, RATE1, HEAT1, RATE2, HEAT2, VALUES };
  const char *const inputs[] = {"y", "k", "t"}, *const outputs[] = {"rate", "heat"};
  const double dt = 0.01;
  OrtEnv* env;
  OrtSessionOptions* options;
  OrtSession* session;
  OrtMemoryInfo* cpu;
  OrtValue* v[VALUES] = {NULL};

  if (argc != 2) return fprintf(stderr, "usage: decay_onnx FILE.onnx\n"), 2;
  ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  if (!ort) return fprintf(stderr, "decay_onnx: this onnxruntime is older than its header\n"), 1;
  TRY(ort->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "decay", &env));
  TRY(ort->CreateSessionOptions(&options));
  TRY(ort->SetIntraOpNumThreads(options, 1));
  TRY(ort->CreateSession(env, argv[1], options, &session));
  TRY(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &cpu));
  for (int i = 0; i < VALUES; ++i) TRY(tensor(cpu, memory[i], &v[i]));

  const OrtValue *const now[] = {v[Y], v[K], v[T]}, *const then[] = {v[GUESS], v[K], v[T]};
  OrtValue *first[] = {v[RATE1], v[HEAT1]}, *second[] = {v[RATE2], v[HEAT2]};
  for (int step = 0; step < STEPS; ++step) {
    for (int i = 0; i < N; ++i) t[i] = step * dt;
    TRY(ort->Run(session, NULL, inputs, now, 3, outputs, 2, first));
    for (int i = 0; i < N; ++i) guess[i] = y[i] + dt * rate1[i], t[i] += dt;
    TRY(ort->Run(session, NULL, inputs, then, 3, outputs, 2, second));
    for (int i = 0; i < N; ++i) {
      heat[i] += 0.5 * dt * (heat1[i] + heat2[i]);
      y[i] += 0.5 * dt * (rate1[i] + rate2[i]);
    }
  }
  for (int i = 0; i < N; ++i) printf("%24.16e %24.16e\n", y[i], heat[i]);

  for (int i = 0; i < VALUES; ++i) ort->ReleaseValue(v[i]);
  ort->ReleaseMemoryInfo(cpu);
  ort->ReleaseSession(session);
  ort->ReleaseSessionOptions(options);
  ort->ReleaseEnv(env);
  return 0;
}
