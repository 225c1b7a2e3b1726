#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <torchferry/torchferry.h>

/// The contract of an archive as plain values: `contract.json`, schema 1. What a host needs is typed; `json` holds
/// all of it.
namespace torchferry {

constexpr int kSchema = 1;

struct Variable {
  std::string name;
  std::vector<int64_t> shape;  ///< without the batch; -1 - k is the open size k of `Contract::sizes`
  tf_dtype dtype = TF_FLOAT64;
  std::string type;  ///< Scalar, SR2, ...
  std::string unit;  ///< "MPa", "1" without a dimension; empty where nobody has said it
};

/// An output of a method. A Jacobian block d `name` / d `by` has the output's shape, then the input's.
struct Output {
  std::string name;
  std::optional<std::string> by;
  std::vector<int64_t> shape;
  tf_dtype dtype = TF_FLOAT64;
  std::string unit;  ///< of a block the quotient: "MPa/(mm)"

  /// "stress", or "stress/strain" for a block.
  std::string label() const { return by ? name + "/" + *by : name; }
};

struct Method {
  std::string name;
  std::vector<Variable> inputs;  ///< in call order
  std::vector<Output> outputs;
  bool needs_grad = false;
};

struct Parameter {
  std::string name;  ///< dotted attribute path in the file
  std::vector<int64_t> shape;
  tf_dtype dtype = TF_FLOAT64;
  std::string unit;
};

/// The values of an input that were checked, both ends included.
struct Range {
  double low = 0.0;
  double high = 0.0;
};

struct Bounds {
  double rtol = 0.0;
  double atol = 0.0;
  double floor = 0.0;  ///< what rounding leaves of a derivative that is zero
};

struct Contract {
  std::string name;
  std::string made_with_torchferry;
  std::string made_with_torch;
  int batch_ndim = 1;  ///< 1: any number of leading batch dimensions; 0: shapes are whole, fixed but for open sizes
  std::vector<std::string> sizes;  ///< names of the open sizes, which every call decides anew
  std::vector<Method> methods;
  std::vector<Parameter> parameters;
  std::map<tf_dtype, Bounds> tolerance;
  std::map<std::string, Bounds> output_tolerance;
  std::map<std::string, Range> envelope;  ///< by input name
  bool nan_where_not_converged = false;   ///< an implicit model, whose elements that do not converge are NaN
  std::string graph;  ///< sha256 of the canonical text of the graphs; empty in files that do not say it
  std::string json;

  /// Throws `Error` (TF_ERROR_NAME) with the names that there are.
  const Method& method(const std::string& name) const;
  /// By block, by output name, else by dtype; exact for integers, but iterations, and booleans.
  Bounds bounds(const Output& output) const;
};

/// Throws `Error` (TF_ERROR_ARCHIVE) with the field at fault; `where` is the file.
Contract contract_from_json(const std::string& text, const std::string& where);

const char* dtype_name(tf_dtype dtype);
/// "[3, 3]", or "[n, 3]" where a size is open
std::string shape_text(const std::vector<int64_t>& shape, const std::vector<std::string>& sizes = {});

}  // namespace torchferry
