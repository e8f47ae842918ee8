// What the face of sampling, and what its tests look at, share: rows of logits and masks, and a sampler that one draw uses at a time.
#pragma once
#include <nanobind/stl/optional.h>
#include <optional>
#include "bindings/bindings.h"
#include "sampling/sample.h"

namespace quintet {

// Logits may be a view with padded rows: unit stride within a row, any stride between rows.
using Logits = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
inline int check_logits(const Logits& l) {
  require(l.stride(1) == 1 || l.shape(1) <= 1, "logits: rows must be contiguous");
  require(l.shape(1) > 0 && l.shape(1) < (1u << 24) && l.shape(0) < (1u << 24), "logits: bad shape");
  return int(l.shape(1));
}

// A sampler that is in use, by a draw that released the GIL, cannot be used a second time.
struct PySampler {
  Sampler sampler;
  bool in_use = false;  // guarded by the GIL
};

class Use {
 public:
  explicit Use(PySampler& s) : s_(s) {
    require(!s.in_use, "a sampler draws for one row at a time");
    s.in_use = true;
  }
  ~Use() { s_.in_use = false; }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  PySampler& s_;
};

using Masks = std::optional<In<uint32_t, 2>>;
inline const uint32_t* masks_row(const Masks& masks, size_t r) { return masks ? masks->data() + r * masks->shape(1) : nullptr; }
inline void check_masks(const Masks& masks, size_t rows, int vocab) {
  require(!masks || (masks->shape(0) == rows && masks->shape(1) == mask_words(vocab)),
          "masks: one row of vocab / 32 words, rounded up, per row");
}

}  // namespace quintet
