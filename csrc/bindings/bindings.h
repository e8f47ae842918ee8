// What the parts of the Python face share: arrays in and out, and checks that become a ValueError.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>
#include "cpu.h"
#include "kernels/row_passes.h"
#include "kernels/pack.h"

namespace quintet {

namespace nb = nanobind;

template <class T, size_t N> using In = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <class T, size_t N> using Out = nb::ndarray<nb::numpy, T, nb::ndim<N>>;

template <class T, size_t N> Out<T, N> fresh(std::initializer_list<size_t> shape) {
  size_t n = 1;
  for (size_t s : shape) n *= s;
  T* data = new T[std::max<size_t>(n, 1)];
  return Out<T, N>(data, shape, nb::capsule(data, [](void* p) noexcept { delete[] static_cast<T*>(p); }));
}

inline void require(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(what);
}

template <class T> T field(const nb::dict& d, const char* name) {
  require(d.contains(name), (std::string("missing ") + name).c_str());
  return nb::cast<T>(d[name]);
}

inline void require_targets(const In<int32_t, 1>& targets, size_t rows, int k, int vocab) {
  require(targets.size() == rows, "score: one target per row");
  require(k >= 0 && k <= vocab, "score: k out of range");
  for (size_t r = 0; r < rows; r++) require(targets.data()[r] >= 0 && targets.data()[r] < vocab, "score: target out of range");
}

// What scoring tells of n rows: the target's log-probability, the k most likely tokens with theirs, and the log-sum-exp.
struct Scored {
  Out<float, 1> chosen;
  Out<int32_t, 2> ids;
  Out<float, 2> top;
  Out<double, 1> sums;

  Scored(size_t n, size_t k)
      : chosen(fresh<float, 1>({n})), ids(fresh<int32_t, 2>({n, k})), top(fresh<float, 2>({n, k})), sums(fresh<double, 1>({n})) {}
  Scores rows() const { return {int(ids.shape(1)), chosen.data(), ids.data(), top.data(), sums.data()}; }
  nb::tuple tuple() const { return nb::make_tuple(chosen, ids, top, sums); }
};

// "q8", "q4", "none" or "least".
inline Floats floats_from(const std::string& quantize) {
  constexpr std::pair<const char*, Floats> known[] = {
      {"q8", Floats::q8}, {"q4", Floats::q4}, {"none", Floats::kept}, {"least", Floats::least}};
  for (const auto& [name, floats] : known)
    if (quantize == name) return floats;
  throw std::invalid_argument("quantize must be q8, q4, none or least, got '" + quantize + "'");
}

void bind_packs(nb::module_& m);
void bind_sampling(nb::module_& m, nb::class_<Cpu>& cpu);
void bind_tokens(nb::module_& m);
void bind_vision(nb::module_& m);

// One of several words, which stand for values.
template <class T> T choice(const nb::dict& d, const char* name, std::initializer_list<std::pair<const char*, T>> choices) {
  const auto given = field<std::string>(d, name);
  for (const auto& [word, value] : choices)
    if (given == word) return value;
  throw std::invalid_argument(std::string("unknown ") + name + " '" + given + "'");
}

}  // namespace quintet
