/* make_model: what a host finds in the shared object, and only there: the functions by name, with the contract
   and the cases. torchferry's native runtime loads it as it loads an archive: tf_load("libmake_model.so", ...). */
#include "make_model.h"

typedef int torchferry_function(ptrdiff_t, const make_model_array *, const make_model_array *, const void *const *, int32_t *, void *);

struct torchferry_method {
  const char *name;
  torchferry_function *function;
  size_t workspace;
};

/* Texts are in pieces, which stand one after the other; null ends them. */
struct torchferry_kernel {
  const char *format, *instructions;
  const char *const *contract, *const *cases;
  size_t count;
  const struct torchferry_method *methods;
};

/* What this was compiled for, by the names that Linux has for it. */
static const char instructions[] = ""
#ifdef __AVX__
  "avx "
#endif
#ifdef __AVX2__
  "avx2 "
#endif
#ifdef __FMA__
  "fma "
#endif
#ifdef __F16C__
  "f16c "
#endif
#ifdef __BMI2__
  "bmi2 "
#endif
#ifdef __AVX512F__
  "avx512f "
#endif
#ifdef __AVX512DQ__
  "avx512dq "
#endif
#ifdef __AVX512CD__
  "avx512cd "
#endif
#ifdef __AVX512BW__
  "avx512bw "
#endif
#ifdef __AVX512VL__
  "avx512vl "
#endif
#ifdef __BMI__
  "bmi1 "
#endif
#ifdef __ARM_FEATURE_SVE
  "sve "
#endif
  ;

static const char *const contract_text[] = {
  "{\n \042schema\042: 1,\n \042name\042: \042make_model\042,\n \042source\042: {\n  \042kind\042: \042python\042,\n  \042library\042: \042torch\042,\n  \042version\042: \0422.13.0+cpu\042,\n  \042model\042: \042make_model\042,\n  \042sha256\042: \042c4697ec7be972aff0fc3d74ee451861750d4bb79c46f2e2def5dd29a8b45f263\042,\n  \042refused_imports\042: [\n   \042robertson\042\n  ],\n  \042revision\042: \04211e0ca8ddd2776e6d97bea291e542797f2abda50\042,\n  \042files\042: {\n   \042robertson.py\042: \042c4697ec7be972aff0fc3d74ee451861750d4bb79c46f2e2def5dd29a8b45f263\042\n  }\n },\n \042created_with\042: {\n  \042torchferry\042: \0420.1.0\042,\n  \042torch\042: \0422.13.0+cpu\042,\n  \042python\042: \0423.11.7\042,\n  \042command\042: \042\042\n },\n \042inputs\042: [\n  {\n   \042name\042: \042y\042,\n   \042shape\042: [\n    3\n   ],\n   \042dtype\042: \042float64\042,\n   \042type\042: \042Tensor\042,\n   \042sampling\042: {\n    \042kind\042: \042recorded\042,\n    \042low\042: -1.0,\n    \042high\042: 1.0,\n    \042spread\042: 0.05\n   }\n  }\n ],\n \042outputs\042: [\n  {\n   \042name\042: \042rate\042,\n   \042shape\042: [\n    3\n   ],\n   \042dtype\042: \042float64\042,\n   \042type\042: \042Tensor\042,\n   \042sampling\042: {\n    \042kind\042: \042uniform\042,\n    \042low\042: -1.0,\n    \042high\042: 1.0,\n    \042spread\042: 0.0\n   }\n  }\n ],\n \042batch\042: {\n  \042ndim\042: 1,\n  \042sizes\042: [\n   0,\n   1,\n   2,\n   5,\n   13,\n   1000\n  ],\n  \042ranks\042: [\n   1\n  ],\n  \042limits\042: \042\042\n },\n \042methods\042: {\n  \042forward\042: {\n   \042inputs\042: [\n    \042y\042\n   ],\n   \042outputs\042: [\n    \042rate\042\n   ],\n   \042needs_grad\042: false,\n   \042how\042: \042\042,\n   \042zeros\042: [],\n   \042symmetric\042: []\n  },\n  \042jacobian\042: {\n   \042inputs\042: [\n    \042y\042\n   ],\n   \042outputs\042: [\n    \042rate\042,\n    [\n     \042rate\042,\n     \042y\042\n    ],\n    [\n     \042rate\042,\n     \042k\042\n    ]\n   ],\n   \042needs_grad\042: false,\n   \042how\042: \042reverse mode (forward mode: 105 operations; reverse mode: 93 operations); by parameters: forward mode\042,\n   \042zeros\042: [],\n   \042symmetric\042: []\n  }\n },\n \042parameters\042: [\n  {\n   \042name\042: \042k\042,\n   \042shape\042: [\n    3\n   ],\n   \042dtype\042: \042float64\042\n  }\n ],\n \042tolerance\042: {\n  \042dtypes\042: {\n   \042float64\042: {\n    \042rtol\042: 1e-10,\n    \042atol\042: 1e-12,\n    \042floor\042: 0.0\n   },\n   \042float32\042: {\n    \042rtol\042: 1e-05,\n    \042atol\042: 1e-06,\n    \042floor\042: 0.0\n   },\n   \042float16\042: {\n    \042rtol\042: 0.01,\n    \042atol\042: 0.001,\n    \042floor\042: 0.0\n   },\n   \042bfloat16\042: {\n    \042rtol\042: 0.05,\n    \042atol\042: 0.01,\n    ",
  "\042floor\042: 0.0\n   },\n   \042complex128\042: {\n    \042rtol\042: 1e-10,\n    \042atol\042: 1e-12,\n    \042floor\042: 0.0\n   },\n   \042complex64\042: {\n    \042rtol\042: 1e-05,\n    \042atol\042: 1e-06,\n    \042floor\042: 0.0\n   }\n  },\n  \042outputs\042: {}\n },\n \042devices\042: [\n  \042cpu\042\n ],\n \042operators\042: [\n  \042aten::__derive_index\042,\n  \042aten::__getitem__\042,\n  \042aten::__not__\042,\n  \042aten::__range_length\042,\n  \042aten::_set_item\042,\n  \042aten::add\042,\n  \042aten::append\042,\n  \042aten::cat\042,\n  \042aten::contiguous\042,\n  \042aten::dim\042,\n  \042aten::eq\042,\n  \042aten::expand\042,\n  \042aten::format\042,\n  \042aten::gt\042,\n  \042aten::len\042,\n  \042aten::list\042,\n  \042aten::lt\042,\n  \042aten::movedim\042,\n  \042aten::mul\042,\n  \042aten::narrow\042,\n  \042aten::ne\042,\n  \042aten::neg\042,\n  \042aten::reshape\042,\n  \042aten::select\042,\n  \042aten::select_backward\042,\n  \042aten::size\042,\n  \042aten::slice\042,\n  \042aten::stack\042,\n  \042aten::sub\042,\n  \042aten::unbind\042,\n  \042prim::CallMethod\042,\n  \042prim::Constant\042,\n  \042prim::GetAttr\042,\n  \042prim::If\042,\n  \042prim::ListConstruct\042,\n  \042prim::ListUnpack\042,\n  \042prim::Loop\042,\n  \042prim::RaiseException\042,\n  \042prim::TupleConstruct\042,\n  \042prim::TupleIndex\042,\n  \042prim::is_cpu\042,\n  \042prim::max\042,\n  \042prim::min\042\n ],\n \042findings\042: [\n  {\n   \042check\042: \042batch size\042,\n   \042what\042: \042unbind() reads a size\042,\n   \042where\042: \042robertson.py:27\042,\n   \042reason\042: \042capture and eager mode agree at every size that was run, to 100000\042,\n   \042severity\042: \042sound\042,\n   \042evidence\042: \042\042,\n   \042mend\042: \042\042\n  }\n ],\n \042envelope\042: {\n  \042values\042: {\n   \042y\042: {\n    \042low\042: -0.04995376072147524,\n    \042high\042: 1000000000000.0\n   }\n  },\n  \042dtypes\042: [\n   \042float64\042\n  ]\n },\n \042differentiable\042: false,\n \042solvers\042: [],\n \042info\042: [],\n \042per_element\042: [],\n \042graph\042: \04215b3018dbeb4abb6f0ca28e0ed94e4cdb140000ca3338287746db641b1ab186a\042\n}",
  0
};

static const char *const cases_text[] = {
  "torchferry cases 1\nparameter float64 3 k\n0x1.47ae147ae147bp-5 0x1.3880000000000p+13 0x1.c9c3800000000p+24\ncase 3 forward warmup\nin float64 9\n0x1.0000000000000p+0 0x0.0p+0 0x0.0p+0 0x1.cccccc0000000p-1 0x1.4f8b580000000p-16 0x1.99999a0000000p-4 0x1.99999a0000000p-3 0x1.0c6f7a0000000p-20\n0x1.99999a0000000p-1\nout float64 9 0x1.b7cdfd9d7bdbbp-34 0x1.19799812dea11p-40 0x0.0p+0\n-0x1.47ae147ae147bp-5 0x1.47ae147ae147bp-5 0x0.0p+0 -0x1.0624dc61eb854p-6 0x1.0624dc94fdf3ap-8 0x1.89374a795810bp-7 -0x1.6353f80000000p-36 -0x1.f750ee756ea97p-16\n0x1.f75104aaae297p-16\ncase 1 forward batch_1\nin float64 3\n0x1.df02b1d591b55p-1 0x1.4a848269baebfp-5 0x1.0a2464fb1b90ap-4\nout float64 3 0x1.b7cdfd9d7bdbbp-34 0x1.19799812dea11p-40 0x0.0p+0\n0x1.a2d9780c8102dp+4 -0x1.7dba38652f6fap+15 0x1.7d85dd362ddf8p+15\ncase 7 forward batch_7\nin float64 21\n0x1.c92ddeeafe3efp-1 0x1.f2ee73b2d1710p-6 0x1.0cf738744165ep-3 0x1.e636df857bfd9p-1 -0x1.3f7530403fccdp-8 -0x1.f769265c39ecdp-11 0x1.818a401e1a121p-3 -0x1.a07d8b0ef7259p-6\n0x1.9e441fa0d0d9bp-1 0x1.bc30b465629d9p-1 -0x1.c879c8fa15456p-6 0x1.e8811a33c8c8ep-5 0x1.004b178fcf593p+0 0x1.8c9d5c74e2917p-5 0x1.d437fc4720857p-6 0x1.abfcaed1703e8p-3\n0x1.0f88e83dc0162p-8 0x1.a5ed44bcc75e8p-1 0x1.cf9148f741599p-1 -0x1.23accd8c89a68p-5 0x1.f8c0a6798c02ep-4\nout float64 21 0x1.b7cdfd9d7bdbbp-34 0x1.19799812dea11p-40 0x0.0p+0\n0x1.3fa941037ac82p+5 -0x1.b3515f4735b85p+14 0x1.b2b18aa6b3fafp+14 0x1.20f9c95c7a4e8p-7 -0x1.646bdbae984c1p+9 0x1.646abab4ceef9p+9 -0x1.9b609b51ad9a2p+7 -0x1.2bb1cf7704296p+14\n0x1.2ee890ada7849p+14 -0x1.0a6165a5eb5d3p+4 -0x1.6b9a17866ff50p+14 0x1.6bdcafdfd96fdp+14 0x1.b977b3cd97f66p+3 -0x1.12bdcff13cf31p+16 0x1.12b004339e865p+16 0x1.11158678af37ep+5\n-0x1.1292200e08b3ep+9 0x1.0180c7a67dc06p+9 -0x1.5f4c634f0da81p+5 -0x1.28c689b10518ep+15 0x1.291e5cc9d8dc5p+15\ncase 3 forward small_1e-12\nin float64 9\n0x1.19799812dea11p-40 0x0.0p+0 0x0.0p+0 0x1.faa7aa73fc41ep-41 0x1.70ef53c80fda2p-56 0x1.c25c26f52e71cp-44 0x1.c25c26f52e71cp-43 0x1.2725dd10a3b82p-60\n0x1.c2",
  "5c26f52e71cp-41\nout float64 9 0x1.b7cdfd9d7bdbbp-34 0x1.19799812dea11p-40 0x0.0p+0\n-0x1.6849b86a12b9bp-45 0x1.6849b86a12b9bp-45 0x0.0p+0 -0x1.4442589c25ca8p-45 0x1.4442589c2553bp-45 0x1.db5e7393c2908p-87 -0x1.203afa3682e2fp-47 0x1.203afa3682e1cp-47\n0x1.303c73d60a484p-95\ncase 3 forward large_1e%2B12\nin float64 9\n0x1.d1a94a2000000p+39 0x0.0p+0 0x0.0p+0 0x1.a3185b95bc48cp+39 0x1.312cff7ea86d8p+24 0x1.74876edd21dbap+36 0x1.74876edd21dbap+37 0x1.e847ffeb51334p+19\n0x1.74876edd21dbap+39\nout float64 9 0x1.b7cdfd9d7bdbbp-34 0x1.19799812dea11p-40 0x0.0p+0\n-0x1.2a05f20000000p+35 0x1.2a05f20000000p+35 0x0.0p+0 0x1.0f0cf035bd80dp+74 -0x1.b1ae4cb53454fp+74 0x1.4542b8feeda84p+73 0x1.b1ae4dc839f16p+72 -0x1.b34ea3312449ep+72\n0x1.a05568ea587bbp+64\ncase 3 jacobian warmup\nin float64 9\n0x1.0000000000000p+0 0x0.0p+0 0x0.0p+0 0x1.cccccc0000000p-1 0x1.4f8b580000000p-16 0x1.99999a0000000p-4 0x1.99999a0000000p-3 0x1.0c6f7a0000000p-20\n0x1.99999a0000000p-1\nout float64 9 0x1.b7cdfd9d7bdbbp-34 0x1.19799812dea11p-40 0x0.0p+0\n-0x1.47ae147ae147bp-5 0x1.47ae147ae147bp-5 0x0.0p+0 -0x1.0624dc61eb854p-6 0x1.0624dc94fdf3ap-8 0x1.89374a795810bp-7 -0x1.6353f80000000p-36 -0x1.f750ee756ea97p-16\n0x1.f75104aaae297p-16\nout float64 27 0x1.b7cdfd9d7bdbbp-34 0x1.19799812dea11p-40 0x0.0p+0\n-0x1.47ae147ae147bp-5 0x0.0p+0 0x0.0p+0 0x1.47ae147ae147bp-5 -0x0.0p+0 -0x0.0p+0 0x0.0p+0 0x0.0p+0\n-0x0.0p+0 -0x1.47ae147ae147bp-5 0x1.f400007d00000p+9 0x1.999998ec00000p-3 0x1.47ae147ae147bp-5 -0x1.12ffffdfad000p+11 -0x1.999998ec00000p-3 0x0.0p+0\n0x1.2bffff80da000p+10 -0x0.0p+0 -0x1.47ae147ae147bp-5 0x1.f400007d00000p+12 0x1.47ae146d00000p-7 0x1.47ae147ae147bp-5 -0x1.f7c0007cd7560p+12 -0x1.47ae146d00000p-7\n0x0.0p+0 0x1.dfffffebab000p+5 -0x0.0p+0\nout float64 27 0x1.b7cdfd9d7bdbbp-34 0x1.19799812dea11p-40 0x0.0p+0\n-0x1.0000000000000p+0 0x0.0p+0 0x0.0p+0 0x1.0000000000000p+0 0x0.0p+0 0x0.0p+0 0x0.0p+0 0x0.0p+0\n0x0.0p+0 -0x1.cccccc0000000p-1 0x1.0c6f79dcb5780p-19 0x0.0p+0 0x1.cccccc0000000p-1 -0x1.0c6f79dcb5780p-19 -0x1.b7cdfc28ae4",
  "00p-32 0x0.0p+0\n0x0.0p+0 0x1.b7cdfc28ae400p-32 -0x1.99999a0000000p-3 0x1.ad7f2a04f9640p-21 0x0.0p+0 0x1.99999a0000000p-3 -0x1.ad7f2a04f9640p-21 -0x1.197997fb06240p-40\n0x0.0p+0 0x0.0p+0 0x1.197997fb06240p-40\ncase 1 jacobian batch_1\nin float64 3\n0x1.df02b1d591b55p-1 0x1.4a848269baebfp-5 0x1.0a2464fb1b90ap-4\nout float64 3 0x1.b7cdfd9d7bdbbp-34 0x1.19799812dea11p-40 0x0.0p+0\n0x1.a2d9780c8102dp+4 -0x1.7dba38652f6fap+15 0x1.7d85dd362ddf8p+15\nout float64 9 0x1.b7cdfd9d7bdbbp-34 0x1.19799812dea11p-40 0x0.0p+0\n-0x1.47ae147ae147bp-5 0x1.44e16d4487261p+9 0x1.9376c13210ad0p+8 0x1.47ae147ae147bp-5 -0x1.2795c896ff7f2p+21 -0x1.9376c13210ad0p+8 0x0.0p+0 0x1.27817a802b36bp+21\n-0x0.0p+0\nout float64 9 0x1.b7cdfd9d7bdbbp-34 0x1.19799812dea11p-40 0x0.0p+0\n-0x1.df02b1d591b55p-1 0x1.579cac84298b5p-9 0x0.0p+0 0x1.df02b1d591b55p-1 -0x1.579cac84298b5p-9 -0x1.aab9e4cf55609p-10 0x0.0p+0 0x0.0p+0\n0x1.aab9e4cf55609p-10\ncase 7 jacobian batch_7\nin float64 21\n0x1.c92ddeeafe3efp-1 0x1.f2ee73b2d1710p-6 0x1.0cf738744165ep-3 0x1.e636df857bfd9p-1 -0x1.3f7530403fccdp-8 -0x1.f769265c39ecdp-11 0x1.818a401e1a121p-3 -0x1.a07d8b0ef7259p-6\n0x1.9e441fa0d0d9bp-1 0x1.bc30b465629d9p-1 -0x1.c879c8fa15456p-6 0x1.e8811a33c8c8ep-5 0x1.004b178fcf593p+0 0x1.8c9d5c74e2917p-5 0x1.d437fc4720857p-6 0x1.abfcaed1703e8p-3\n0x1.0f88e83dc0162p-8 0x1.a5ed44bcc75e8p-1 0x1.cf9148f741599p-1 -0x1.23accd8c89a68p-5 0x1.f8c0a6798c02ep-4\nout float64 21 0x1.b7cdfd9d7bdbbp-34 0x1.19799812dea11p-40 0x0.0p+0\n0x1.3fa941037ac82p+5 -0x1.b3515f4735b85p+14 0x1.b2b18aa6b3fafp+14 0x1.20f9c95c7a4e8p-7 -0x1.646bdbae984c1p+9 0x1.646abab4ceef9p+9 -0x1.9b609b51ad9a2p+7 -0x1.2bb1cf7704296p+14\n0x1.2ee890ada7849p+14 -0x1.0a6165a5eb5d3p+4 -0x1.6b9a17866ff50p+14 0x1.6bdcafdfd96fdp+14 0x1.b977b3cd97f66p+3 -0x1.12bdcff13cf31p+16 0x1.12b004339e865p+16 0x1.11158678af37ep+5\n-0x1.1292200e08b3ep+9 0x1.0180c7a67dc06p+9 -0x1.5f4c634f0da81p+5 -0x1.28c689b10518ep+15 0x1.291e5cc9d8dc5p+15\nout float64 63 0x1.b7cdfd9d7bdbbp-34 0x1.19799812dea11p-40 0x0.0p+0\n-0x1.47ae147ae1",
  "47bp-5 0x1.4853c869e9d4ep+10 0x1.30860a1de4554p+8 0x1.47ae147ae147bp-5 -0x1.be666dc3e3f34p+20 -0x1.30860a1de4554p+8 0x0.0p+0 0x1.be1458d1c978dp+20\n-0x0.0p+0 -0x1.47ae147ae147bp-5 -0x1.3341eda9ca5adp+3 -0x1.85f68d666de18p+5 0x1.47ae147ae147bp-5 0x1.1da07b1460ce4p+18 0x1.85f68d666de18p+5 0x0.0p+0\n-0x1.1d9e1490857abp+18 0x0.0p+0 -0x1.47ae147ae147bp-5 0x1.f9b2289bcef1cp+12 -0x1.fc69403fc4b16p+7 0x1.47ae147ae147bp-5 0x1.7265646618c0fp+20 0x1.fc69403fc4b16p+7\n0x0.0p+0 -0x1.745f168eb48fep+20 0x0.0p+0 -0x1.47ae147ae147bp-5 0x1.2a28cc3e1b4cap+9 -0x1.169c54eaa37b9p+8 0x1.47ae147ae147bp-5 0x1.97f9bb4a2db6ap+20\n0x1.169c54eaa37b9p+8 0x0.0p+0 -0x1.981f0063b57a1p+20 0x0.0p+0 -0x1.47ae147ae147bp-5 0x1.1dc72bba69997p+8 0x1.e426175cae929p+8 0x1.47ae147ae147bp-5\n-0x1.62a2d455bfafap+21 -0x1.e426175cae929p+8 0x0.0p+0 0x1.6299e61c61dc5p+21 -0x0.0p+0 -0x1.47ae147ae147bp-5 0x1.0186113438af7p+13 0x1.4b769f7f60fb0p+5\n0x1.47ae147ae147bp-5 -0x1.f5a324b6da9aap+17 -0x1.4b769f7f60fb0p+5 0x0.0p+0 0x1.e58ac3a3970fbp+17 -0x0.0p+0 -0x1.47ae147ae147bp-5 0x1.3413959bafb4cp+10\n-0x1.640c70ea0e07cp+8 0x1.47ae147ae147bp-5 0x1.04a09a40b9d0cp+21 0x1.640c70ea0e07cp+8 0x0.0p+0 -0x1.04c71cb36d46bp+21 0x0.0p+0\nout float64 63 0x1.b7cdfd9d7bdbbp-34 0x1.19799812dea11p-40 0x0.0p+0\n-0x1.c92ddeeafe3efp-1 0x1.0619b99bc8cd8p-8 0x0.0p+0 0x1.c92ddeeafe3efp-1 -0x1.0619b99bc8cd8p-8 -0x1.e6324c1f85d1ap-11 0x0.0p+0 0x0.0p+0\n0x1.e6324c1f85d1ap-11 -0x1.e636df857bfd9p-1 0x1.3a193c5ec1a29p-18 0x0.0p+0 0x1.e636df857bfd9p-1 -0x1.3a193c5ec1a29p-18 -0x1.8ea543e542d2ep-16 0x0.0p+0\n0x0.0p+0 0x1.8ea543e542d2ep-16 -0x1.818a401e1a121p-3 -0x1.50fcedd7fcdf2p-6 0x0.0p+0 0x1.818a401e1a121p-3 0x1.50fcedd7fcdf2p-6 -0x1.52cc20c0ddb05p-11\n0x0.0p+0 0x0.0p+0 0x1.52cc20c0ddb05p-11 -0x1.bc30b465629d9p-1 -0x1.b3872d99d9a16p-10 0x0.0p+0 0x1.bc30b465629d9p-1 0x1.b3872d99d9a16p-10\n-0x1.96f90af542fb8p-11 0x0.0p+0 0x0.0p+0 0x1.96f90af542fb8p-11 -0x1.004b178fcf593p+0 0x1.6ab334d6d22c5p-10 0x0.0p+0 0x1.004b178fcf593p+0\n-0x1.6ab334d6d22c5p-10 -0x1.333b9b6212d",
  "a1p-9 0x0.0p+0 0x0.0p+0 0x1.333b9b6212da1p-9 -0x1.abfcaed1703e8p-3 0x1.bf87d09527c1dp-9 0x0.0p+0\n0x1.abfcaed1703e8p-3 -0x1.bf87d09527c1dp-9 -0x1.200324ea50fafp-16 0x0.0p+0 0x0.0p+0 0x1.200324ea50fafp-16 -0x1.cf9148f741599p-1 -0x1.1f8bd9f9b0f19p-8\n0x0.0p+0 0x1.cf9148f741599p-1 0x1.1f8bd9f9b0f19p-8 -0x1.4c524ff25ad3ep-10 0x0.0p+0 0x0.0p+0 0x1.4c524ff25ad3ep-10\nend\n",
  0
};

static const struct torchferry_method methods[] = {
  { "forward", make_model_forward, MAKE_MODEL_FORWARD_WORKSPACE },
  { "jacobian", make_model_jacobian, MAKE_MODEL_JACOBIAN_WORKSPACE },
};

#if defined(_WIN32)
__declspec(dllexport)
#endif
extern const struct torchferry_kernel torchferry_kernel;
const struct torchferry_kernel torchferry_kernel = {
  "torchferry kernel 1", instructions, contract_text, cases_text, 2, methods
};
