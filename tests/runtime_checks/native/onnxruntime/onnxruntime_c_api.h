/* The part of onnxruntime's C API that examples/solvers/decay_onnx.c calls, for the tests: the wheel has the library
 * without its header. Functions are at their places in the table, which onnxruntime only ever adds to
 * (https://onnxruntime.ai/docs/api/c/struct_ort_api.html). */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define ORT_API_VERSION 18

typedef struct OrtStatus OrtStatus;
typedef struct OrtEnv OrtEnv;
typedef struct OrtSession OrtSession;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtValue OrtValue;
typedef enum { ORT_LOGGING_LEVEL_ERROR = 3 } OrtLoggingLevel;
typedef enum { ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE = 11 } ONNXTensorElementDataType;
typedef enum { OrtArenaAllocator = 1 } OrtAllocatorType;
typedef enum { OrtMemTypeDefault = 0 } OrtMemType;

#define OTHERS(from, to) void* others_##from[(to) - (from)]

typedef struct OrtApi {
  OTHERS(0, 2);
  const char* (*GetErrorMessage)(const OrtStatus*);
  OrtStatus* (*CreateEnv)(OrtLoggingLevel, const char*, OrtEnv**);
  OTHERS(4, 7);
  OrtStatus* (*CreateSession)(const OrtEnv*, const char*, const OrtSessionOptions*, OrtSession**);
  OTHERS(8, 9);
  OrtStatus* (*Run)(OrtSession*, const OrtRunOptions*, const char* const*, const OrtValue* const*, size_t,
                    const char* const*, size_t, OrtValue**);
  OrtStatus* (*CreateSessionOptions)(OrtSessionOptions**);
  OTHERS(11, 24);
  OrtStatus* (*SetIntraOpNumThreads)(OrtSessionOptions*, int);
  OTHERS(25, 49);
  OrtStatus* (*CreateTensorWithDataAsOrtValue)(const OrtMemoryInfo*, void*, size_t, const int64_t*, size_t,
                                               ONNXTensorElementDataType, OrtValue**);
  OTHERS(50, 69);
  OrtStatus* (*CreateCpuMemoryInfo)(OrtAllocatorType, OrtMemType, OrtMemoryInfo**);
  OTHERS(70, 92);
  void (*ReleaseEnv)(OrtEnv*);
  void (*ReleaseStatus)(OrtStatus*);
  void (*ReleaseMemoryInfo)(OrtMemoryInfo*);
  void (*ReleaseSession)(OrtSession*);
  void (*ReleaseValue)(OrtValue*);
  OTHERS(97, 100);
  void (*ReleaseSessionOptions)(OrtSessionOptions*);
} OrtApi;

typedef struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t);
  const char* (*GetVersionString)(void);
} OrtApiBase;

const OrtApiBase* OrtGetApiBase(void);
