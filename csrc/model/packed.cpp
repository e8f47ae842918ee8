// Model: tensors as it keeps them, handed out and taken back.
#include <cstring>
#include <stdexcept>
#include "model/model.h"

namespace quintet {
namespace {

void require(bool holds, const std::string& name, const char* rule) {
  if (!holds) throw std::invalid_argument("tensor '" + name + "': " + rule);
}

}  // namespace

std::span<const uint8_t> Model::packed(const std::string& name) {
  int n = 0, k = 0;
  if (const auto* slot = matrix_slot(name, &n, &k); slot && *slot) return {(*slot)->data, (*slot)->bytes()};
  const auto* vec = vector_slot(name, &n);
  require(vec && !vec->empty(), name, "the model does not have it");
  return {reinterpret_cast<const uint8_t*>(vec->data()), vec->size() * sizeof(float)};
}

void Model::give(const std::string& name, const std::string& type, int rows, int cols, const uint8_t* data, size_t size, Floats floats) {
  int n = 0, k = 0;
  if (auto* slot = matrix_slot(name, &n, &k)) {
    Packed shape = packed_shape(type, n, k, floats);
    require(rows == n && cols == k && size == shape.bytes(), name, "wrong shape");
    require(reinterpret_cast<uintptr_t>(data) % 64 == 0, name, "not aligned");
    require(!*slot, name, "given twice");
    require(act_.floats() == is_float(shape.format), name, "floats are kept where all matrices are");
    shape.data = const_cast<uint8_t*>(data);  // nobody writes to a matrix that is packed
    *slot = shape;
    return;
  }
  auto* vec = vector_slot(name, &n);
  require(vec != nullptr, name, "the model does not have it");
  require(int64_t(rows) * cols == n && size == size_t(n) * sizeof(float), name, "wrong shape");
  vec->resize(size_t(n));
  std::memcpy(vec->data(), data, size);
}

}  // namespace quintet
