/* torchferry: verified TorchScript archives in C.
 *
 * Every function returns a status and never throws, exits or prints; the text of the last failure is in
 * tf_last_error. Handles are numbers that are looked up, so a closed or invented one is TF_ERROR_HANDLE, not a crash.
 * Any function may be called from any thread, also on one shared handle: calls run side by side, while tf_to and
 * tf_set_parameter wait for calls that are under way.
 *
 * Memory is described, not copied: inputs are read in place through their strides, outputs are written to the
 * caller's memory. Text and arrays that a query hands out belong to the handle and live until tf_close.
 */
#ifndef TORCHFERRY_H
#define TORCHFERRY_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define TF_API __declspec(dllexport)
#else
#define TF_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Grows when a declaration below changes; tf_abi_version() is that of the library that was loaded. */
#define TF_ABI_VERSION 5
#define TF_MAX_RANK 32

/* Fixed-width, so that other languages know the size. */
typedef int32_t tf_status;
enum {
  TF_OK = 0,
  TF_ERROR_INTERNAL = 1,    /* a bug of torchferry's */
  TF_ERROR_ARGUMENT = 2,    /* a null pointer, an index or option out of range */
  TF_ERROR_HANDLE = 3,      /* null, closed, or never was one */
  TF_ERROR_FILE = 4,        /* the file is not there or cannot be read */
  TF_ERROR_ARCHIVE = 5,     /* truncated, tampered with, not torchferry's, or of another schema */
  TF_ERROR_NAME = 6,        /* no such method, input, output or parameter */
  TF_ERROR_COUNT = 7,       /* too few or too many inputs or outputs */
  TF_ERROR_SHAPE = 8,       /* rank or sizes are not the contract's, or batches do not agree */
  TF_ERROR_DTYPE = 9,
  TF_ERROR_DEVICE = 10,     /* memory on another device than the model */
  TF_ERROR_STRIDE = 11,     /* negative, or elements of outputs that share memory */
  TF_ERROR_BUFFER = 12,     /* an output buffer is too small */
  TF_ERROR_MODEL = 13,      /* the model itself failed while it ran */
  TF_ERROR_UNAVAILABLE = 14,/* a device that this machine or this libtorch does not have */
  TF_ERROR_MEMORY = 15,
  TF_ERROR_FROZEN = 16,     /* parameters were not asked to stay settable */
  TF_ERROR_MISMATCH = 17,   /* a stored case gave other numbers */
  TF_ERROR_ENVELOPE = 18,   /* an input has values outside the range that was checked */
  TF_NOT_CONVERGED = 19,    /* tf_call, tf_call_named: some elements of an implicit model have not converged. All outputs
                               are written, those elements as NaN; the method newton_info says why, element by element */
  TF_ERROR_TRUST = 20,      /* the file is native code that this user did not make here: see the option trust */
  TF_ERROR_SIGNATURE = 21   /* the file is not signed, or with another key, or not any more, or not as it is now */
};

typedef int32_t tf_dtype;
enum {
  TF_FLOAT64 = 1,
  TF_FLOAT32 = 2,
  TF_FLOAT16 = 3,
  TF_BFLOAT16 = 4,
  TF_INT64 = 5,
  TF_INT32 = 6,
  TF_INT16 = 7,
  TF_INT8 = 8,
  TF_UINT8 = 9,
  TF_BOOL = 10,
  TF_COMPLEX64 = 11,
  TF_COMPLEX128 = 12
};

typedef int32_t tf_device_type;
enum { TF_CPU = 1, TF_CUDA = 2 };

typedef struct tf_device {
  tf_device_type type;
  int32_t index; /* of the CUDA device; ignored for the CPU */
} tf_device;

/* Memory of the caller's. A variable of the contract's shape [3, 3] with a batch of 100 has shape {100, 3, 3}. */
typedef struct tf_tensor {
  void* data;             /* may be null where there are no elements */
  tf_dtype dtype;
  int32_t rank;
  const int64_t* shape;   /* may be null where rank is 0 */
  const int64_t* strides; /* in elements, not negative; null: contiguous, the last index runs fastest */
  tf_device device;
} tf_tensor;

/* What the contract says of an input, output or parameter. */
typedef struct tf_variable {
  const char* name;       /* of a Jacobian block: its output's; "tangent:a" and "cotangent:a" belong to variable a */
  const char* by;         /* of a Jacobian block: its input's or parameter's name; otherwise null */
  tf_dtype dtype;
  int32_t rank;
  const int64_t* shape;   /* without the batch; -1 - k is the open size k, which every call decides: see tf_size_name */
} tf_variable;

enum { TF_ENGINE_TORCHSCRIPT = 0, TF_ENGINE_KERNEL = 1 };
enum { TF_TRUST_GRAPHS = 0, TF_TRUST_NATIVE = 1 };
enum { TF_ENVELOPE_OFF = 0, TF_ENVELOPE_WARN = 1, TF_ENVELOPE_ERROR = 2 };

typedef struct tf_options {
  size_t size;                /* sizeof(tf_options); tf_default_options sets it */
  int32_t settable_parameters;/* 0: parameters are folded into the graph at load; 1: tf_set_parameter works */
  int32_t intra_op_threads;   /* OpenMP threads while the model runs; the host's number is restored. 0: the host's. Default 1.
                                 A kernel starts threads of its own, for more than 4,000 elements */
  int32_t fusion_depth;       /* specialisations that torch may compile for the shapes it sees; -1: torch's own. Default 0 */
  int32_t optimize;           /* 0: run the graph as it is. Default 1; never for graphs of over 20,000 nodes */
  int32_t check_integrity;    /* compare every record with the manifest. Default 1 */
  int32_t envelope;           /* inputs outside the range that was checked: TF_ENVELOPE_OFF (default), _WARN or _ERROR */
  int32_t keep_memory;        /* 1: freed blocks of up to 32 MiB stay with the process, up to 1 GiB, from now on and for all
                                 that it does (glibc's mallopt): a call on thousands of rows does not fetch its memory
                                 from the system again. Default 0 */
  int32_t engine;             /* TF_ENGINE_KERNEL: the C sources that a .pt carries run it, built once by this machine's
                                 compiler, once they have given the numbers of its cases; else TorchScript does, and
                                 tf_last_warning says why. Default TF_ENGINE_TORCHSCRIPT */
  int32_t trust;              /* TF_TRUST_NATIVE: native code may run that this user has not exported or converted here: a
                                 .pt2, a kernel that a .pt carries, a kernel's shared object. Default TF_TRUST_GRAPHS */
  const char* public_key;     /* the path of a public key (Ed25519, PEM) that has to have signed the file, which needs
                                 OpenSSL's libcrypto; native code that the file is may run then. Default null */
} tf_options;

typedef struct tf_model_handle* tf_model;
typedef struct tf_result_handle* tf_result;

TF_API int32_t tf_abi_version(void);
TF_API const char* tf_version(void); /* of torchferry and of the libtorch that runs */
TF_API const char* tf_status_name(tf_status status);

/* The text of this thread's last failure on that handle; of one without a handle (tf_load, a null or closed
 * handle) for null. Empty where nothing failed. It lives until this thread's next failure. */
TF_API const char* tf_last_error(tf_model model);

/* What the option TF_ENVELOPE_WARN said of this thread's last call, or TF_ENGINE_KERNEL of its tf_load; empty where
 * there was nothing to say. */
TF_API const char* tf_last_warning(void);

TF_API tf_status tf_default_options(tf_options* options);
/* path: an archive; a .pt2, or the shared object of a kernel, which are native code: see the option trust.
 * device: "cpu", "cuda" or "cuda:1"; null is "cpu". options: null for the defaults. *model is null after a failure. */
TF_API tf_status tf_load(const char* path, const char* device, const tf_options* options, tf_model* model);
TF_API tf_status tf_close(tf_model model);

TF_API tf_status tf_name(tf_model model, const char** name);
TF_API tf_status tf_engine(tf_model model, const char** name); /* what runs it: "torchscript", "pt2" or "kernel" */
TF_API tf_status tf_contract_json(tf_model model, const char** json);
TF_API tf_status tf_batch_ndim(tf_model model, int32_t* ndim); /* 1: batch dimensions come first; 0: whole shapes */
/* Sizes that a call may choose, where shapes are whole; an output's open sizes are those of the inputs. */
TF_API tf_status tf_size_count(tf_model model, int32_t* count);
TF_API tf_status tf_size_name(tf_model model, int32_t index, const char** name);
TF_API tf_status tf_method_count(tf_model model, int32_t* count);
TF_API tf_status tf_method_name(tf_model model, int32_t index, const char** name);
/* In all that follows a null method is "forward". */
TF_API tf_status tf_input_count(tf_model model, const char* method, int32_t* count);
TF_API tf_status tf_input(tf_model model, const char* method, int32_t index, tf_variable* variable);
TF_API tf_status tf_output_count(tf_model model, const char* method, int32_t* count);
TF_API tf_status tf_output(tf_model model, const char* method, int32_t index, tf_variable* variable);
TF_API tf_status tf_parameter_count(tf_model model, int32_t* count);
TF_API tf_status tf_parameter(tf_model model, int32_t index, tf_variable* variable);
/* The unit of its numbers: "MPa", of a Jacobian block "MPa/(mm)", "1" without a dimension. Empty where nobody has said
 * it, and for tangents and cotangents. */
TF_API tf_status tf_input_unit(tf_model model, const char* method, int32_t index, const char** unit);
TF_API tf_status tf_output_unit(tf_model model, const char* method, int32_t index, const char** unit);
TF_API tf_status tf_parameter_unit(tf_model model, int32_t index, const char** unit);

/* Inputs and outputs in the contract's order. Batches of inputs broadcast; an output has the batch of all of them.
 * A batch of zero elements is a call like any other. Outputs may be the memory of inputs, but share none with each
 * other. On CUDA the work is queued on torch's current stream of this thread: see tf_synchronize. */
TF_API tf_status tf_call(tf_model model, const char* method, int32_t n_inputs, const tf_tensor* inputs,
                         int32_t n_outputs, const tf_tensor* outputs);
/* By name, in any order: all inputs, and those outputs that are wanted. A Jacobian block is "output/input". */
TF_API tf_status tf_call_named(tf_model model, const char* method, int32_t n_inputs, const char* const* input_names,
                               const tf_tensor* inputs, int32_t n_outputs, const char* const* output_names,
                               const tf_tensor* outputs);
/* Outputs stay in torch's memory and are not copied; tf_result_get describes them until tf_result_free. */
TF_API tf_status tf_call_borrow(tf_model model, const char* method, int32_t n_inputs, const tf_tensor* inputs,
                                tf_result* result);
TF_API tf_status tf_result_get(tf_result result, int32_t index, tf_tensor* output);
TF_API tf_status tf_result_free(tf_result result);

/* Parameters by their dotted name. Setting copies; it needs settable_parameters. */
TF_API tf_status tf_set_parameter(tf_model model, const char* name, const tf_tensor* value);
TF_API tf_status tf_get_parameter(tf_model model, const char* name, const tf_tensor* value);

TF_API tf_status tf_device_of(tf_model model, tf_device* device);
TF_API tf_status tf_to(tf_model model, const char* device);
TF_API tf_status tf_synchronize(tf_model model); /* wait for the model's device */

/* Replay the cases that the archive carries. TF_ERROR_MISMATCH where one differs; both counts may be null. */
TF_API tf_status tf_run_cases(tf_model model, int32_t* compared, int32_t* failed);

#ifdef __cplusplus
}
#endif
#endif
